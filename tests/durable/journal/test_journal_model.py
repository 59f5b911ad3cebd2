"""Property test: the journal's log and its replay against a plain list, with crashes in between."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from simulated_disk import SimulatedDisk

from shmring.durable import replay, verify
from shmring.durable.journal.log import ENTRY, JournalLog
from shmring.errors import JournalGap, NoSpace

MESSAGES = st.lists(
    st.one_of(st.binary(max_size=30), st.just(b"\xabJR1" * 75), st.just(b"y" * 700)),
    min_size=1,
    max_size=4,
)


class JournalModel(RuleBasedStateMachine):
    """`written` is what was appended; a prefix of it may be forgotten, an unsynced end lost."""

    @initialize()
    def start(self) -> None:
        self.disk = SimulatedDisk()
        self.ring = 0
        self.written: list[tuple[int, bytes]] = []
        # Refused for want of space and cut off, but the cut may be lost in a crash.
        self.refused: list[tuple[int, bytes]] = []
        self.synced = 0
        self.forgotten = 0
        self.open()

    def open(self) -> None:
        self.log = JournalLog(
            self.disk,
            "/j",
            uuid=bytes([self.ring]) * 16,
            schema=b"schema" * self.ring,
            segment_bytes=2000,
        )

    def found(self) -> list[tuple[int, bytes]]:
        try:
            return [(m.message_id, bytes(m.data)) for m in replay("/j", disk=self.disk)]
        except FileNotFoundError:
            return []

    @rule(messages=MESSAGES, skipped=st.integers(0, 3), small=st.booleans())
    def append(self, messages: list[bytes], skipped: int, small: bool) -> None:
        first = self.log.end + skipped
        if self.refused:  # the same messages again: a message in a ring does not change
            first, messages = self.refused[0][0], [data for _, data in self.refused] + messages
        entries = slots = b""
        new: list[tuple[int, bytes]] = []
        for data in messages:
            slot = len(slots) // 300
            entries += ENTRY.pack(0, slot, len(data), 0, 0)
            new.append((first + slot, data))
            slots += data.ljust(-(-max(len(data), 1) // 300) * 300, b"\0")
        end = first + len(slots) // 300
        before = self.disk.capacity
        if small:
            self.disk.capacity = sum(len(i.now) for i in self.disk.names_now.values()) + 500
        try:
            self.log.append(first, end, entries, [slots], first * 300)
            self.written += new
            self.refused = []
        except NoSpace:
            assert small
            self.refused = new
        finally:
            self.disk.capacity = before

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.synced = len(self.written)

    @rule(back=st.integers(0, 12))
    def forget(self, back: int) -> None:
        self.sync()
        consumed = self.written[-back][0] if 0 < back <= len(self.written) else self.log.end
        self.log.forget(max_bytes=None, max_age=None, consumed=consumed)
        before, self.forgotten = self.forgotten, len(self.written) - len(self.found())
        newly = self.written[before : self.forgotten]
        assert all(message_id < consumed for message_id, _ in newly)

    @rule(another=st.booleans())
    def reopen(self, another: bool) -> None:
        self.log.close()
        self.ring += another
        self.open()
        self.synced = len(self.written)

    @rule(seed=st.integers(0, 1000), odds=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    def crash(self, seed: int, odds: float) -> None:
        rng = random.Random(seed)
        self.disk = self.disk.crash(
            lambda: rng.random() if rng.random() < 0.2 else float(rng.random() < odds)
        )
        before = self.found()
        self.open()
        after = self.found()
        assert before == after
        everything = self.written + self.refused
        first = everything.index(after[0]) if after else self.forgotten
        assert first <= self.forgotten
        assert after == everything[first : first + len(after)]
        assert first + len(after) >= self.synced
        self.written = everything[: first + len(after)]
        self.refused = []
        self.forgotten = first
        self.synced = len(self.written)

    @rule(at=st.integers(0, 200), length=st.integers(0, 50))
    def replay_a_part(self, at: int, length: int) -> None:
        kept = self.written[self.forgotten :]
        try:
            part = list(replay("/j", from_=at, until=at + length, disk=self.disk))
        except FileNotFoundError:
            assert not kept
            return
        except JournalGap:
            assert not kept or at < kept[0][0]
            return
        wanted = [m for m in kept if at <= m[0] < at + length]
        assert [(m.message_id, bytes(m.data)) for m in part] == wanted

    @invariant()
    def holds_what_was_written(self) -> None:
        if hasattr(self, "log"):
            kept = self.written[self.forgotten :]
            assert self.found() == kept
            if self.disk.names("/j"):
                counted = verify("/j", disk=self.disk)
                assert counted.messages == len(kept)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


JournalModel.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestJournalModel = JournalModel.TestCase
