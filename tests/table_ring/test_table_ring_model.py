"""TableRing against a plain model: lists, and the rule that nobody skips a number."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)

from shmring.errors import Empty, Full, MessageTooLarge
from shmring.table_ring import TableRing

MESSAGES = st.binary(max_size=300)
NAMES = st.sampled_from(["a", "b", "c"])


class Machine(RuleBasedStateMachine):
    """Several handles on one ring, in one thread: every answer is known beforehand."""

    url = ""
    names = itertools.count()

    @initialize(slots=st.integers(1, 12), scattered=st.booleans(), first=NAMES)
    def create(self, slots: int, scattered: bool, first: str) -> None:
        self.name = f"model_{next(self.names)}"
        self.slots = slots
        self.log: list[bytes] = []
        self.popped = {first: 0}
        self.admin = TableRing.create(
            self.url,
            name=self.name,
            slots=slots,
            scattered=scattered,
            subscribers=[first],
            durability="delayed",
        )
        self.handles = {first: self.attach(first)}

    def attach(self, name: str) -> TableRing:
        return TableRing.attach(self.url, name=self.name, subscriber=name, durability="delayed")

    def free(self) -> int:
        return self.slots - (len(self.log) - min(self.popped.values()))

    @rule(data=MESSAGES)
    def push(self, data: bytes) -> None:
        if self.free():
            assert self.admin.push(data, timeout=0) == len(self.log)
            self.log.append(data)
        else:
            with pytest.raises(Full):
                self.admin.push(data, timeout=0)

    @rule(rows=st.lists(MESSAGES, min_size=1, max_size=14))
    def push_many(self, rows: list[bytes]) -> None:
        if len(rows) <= self.free():
            assert self.admin.push_many(rows, timeout=0) == len(self.log)
            self.log += rows
        else:
            with pytest.raises(MessageTooLarge if len(rows) > self.slots else Full):
                self.admin.push_many(rows, timeout=0)

    @rule(data=st.data(), limit=st.integers(1, 14), many=st.booleans())
    def pop(self, data: st.DataObject, limit: int, many: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.popped)))
        begin = self.popped[name]
        expected = self.log[begin : begin + (limit if many else 1)]
        handle = self.handles[name]
        if expected:
            got = handle.pop_many(limit, timeout=0) if many else [handle.pop(timeout=0)]
            assert got == expected
            self.popped[name] += len(got)
        else:
            with pytest.raises(Empty):
                handle.pop_many(limit, timeout=0) if many else handle.pop(timeout=0)

    @rule(name=NAMES)
    def subscribe(self, name: str) -> None:
        if name in self.popped:
            with pytest.raises(ValueError, match="already"):
                self.admin.subscribe(name)
        else:
            self.admin.subscribe(name)
            self.popped[name] = len(self.log)
            self.handles[name] = self.attach(name)

    @rule(name=NAMES)
    def unsubscribe(self, name: str) -> None:
        if name in self.popped and len(self.popped) > 1:
            self.admin.unsubscribe(name)
            del self.popped[name]
            self.handles.pop(name).close()
        else:
            with pytest.raises((LookupError, ValueError)):
                self.admin.unsubscribe(name)

    @rule(name=NAMES)
    def attach_again(self, name: str) -> None:
        if name in self.popped:
            self.handles[name].close()
            self.handles[name] = self.attach(name)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "admin"):
            return
        assert self.admin.positions() == (len(self.log), self.popped)
        expected = {
            self.admin.layout.slot_of(n): (n, self.log[n], holders)
            for n in range(max(0, len(self.log) - self.slots), len(self.log))
            if (holders := sum(position <= n for position in self.popped.values()))
        }
        found = self.admin.table().to_pylist()
        assert [row["slot"] for row in found] == list(range(self.slots))
        for row in found:
            shown = (row["message_id"], row["message"], row["reference_count"])
            assert shown == expected.get(row["slot"], (None, None, 0))

    def teardown(self) -> None:
        if not hasattr(self, "admin"):
            return
        for handle in (self.admin, *self.handles.values()):
            handle.close()
        TableRing.drop(self.url, name=self.name)


@pytest.fixture
def url(either: str) -> str:
    return either


@pytest.mark.parametrize("examples", [10, pytest.param(50, marks=pytest.mark.long)])
def test_behaves_like_the_model(url: str, examples: int) -> None:
    class OnThisDatabase(Machine):
        pass

    OnThisDatabase.url = url
    run_state_machine_as_test(
        OnThisDatabase,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
