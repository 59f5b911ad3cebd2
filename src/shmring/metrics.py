"""Metrics of this host's rings and sidecars, for Prometheus.

:data:`METRICS` describes each metric. A label is a name that people have given, or one of a few
fixed words (for example a role), but never a process id. The rings of a sidecar's clients are
counted together.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from shmring._shmring import JOURNAL_BRANCH
from shmring.common.arguments import seconds_of
from shmring.common.closing import Closing
from shmring.errors import ShmringError
from shmring.observers.findings import AGE, findings, floor_holder
from shmring.observers.host import HostLook, Observer, RingLook, Seen
from shmring.observers.spark_workers import SparkWorker
from shmring.ring.names import REPLIES
from shmring.ring.records import Counters, ParticipantRecord, is_journal
from shmring.sidecars.rings import Staff

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

__all__ = ["METRICS", "HostMetrics", "Metric"]

Labels = tuple[str, ...]
Kind = Literal["gauge", "counter"]
Counts = dict[tuple[object, ...], tuple[int, ...]]
Samples = dict[str, dict[Labels, float]]


class Metric(NamedTuple):
    """A metric; its name in Prometheus begins with ``shmring_``."""

    name: str
    kind: Kind
    labels: Labels
    words: str


# Columns: name, kind, labels, description.
# CHANGE: edit this for a new metric
_TABLE = """\
memory_bytes            gauge   -               Size of /dev/shm.
memory_free_bytes       gauge   -               Bytes of /dev/shm that are free.
findings                gauge   severity,kind,ring,sidecar Findings of `shmring check`.
ring_slots              gauge   ring            Slots of the ring.
ring_used_slots         gauge   ring            Slots that are still held.
ring_size_bytes         gauge   ring            Size of the ring's file.
ring_claimed_slots      counter ring            Slots ever claimed.
ring_participants       gauge   ring,role,state Participants: alive, stopped or dead.
ring_participants_limit gauge   ring            Participants for which there is room.
ring_messages           counter ring,role       Messages pushed or taken.
ring_bytes              counter ring,role       Bytes pushed.
ring_full_waits         counter ring,role       Waits for room.
ring_empty_waits        counter ring,role       Waits for a message.
ring_contended          counter ring,role       Races for a claim or take lost.
ring_recovered          counter ring,role       Dead participants cleared away.
ring_lost_slots         counter ring,role       Slots lost by drop_oldest.
ring_redelivered_messages counter ring,role       Messages taken again.
ring_dropped_messages   counter ring,role       Messages lost by when_full="drop".
branch_lag_slots        gauge   ring,branch     Slots still to be taken.
branch_lag_messages     gauge   ring,branch     Messages still to be taken.
branch_lag_seconds      gauge   ring,branch     Age of the oldest message held.
branch_consumers        gauge   ring,branch     Living consumers.
branch_orphans          gauge   ring,branch     Seats of dead consumers with messages.
journal_lag_seconds     gauge   ring            Age of the oldest message not on disk.
journal_sync_seconds    counter ring            Time of the journal's syncs.
sidecar_queue_slots     gauge   sidecar         Slots of requests that wait.
sidecar_queue_requests  gauge   sidecar         Requests that wait.
sidecar_queue_seconds   gauge   sidecar         Age of the oldest request.
sidecar_workers         gauge   sidecar,state   Workers: busy, idle, loading or stopped.
sidecar_clients         gauge   sidecar         Clients that are there.
sidecar_reply_bytes     gauge   sidecar         Size of rings for answers.
sidecar_requests        counter sidecar         Requests taken by workers.
sidecar_busy_seconds    counter sidecar         Time of workers with requests.
sidecar_restarts        counter sidecar         Workers that were replaced.
sidecar_moved_requests  gauge   sidecar         Requests at work that have left the ring.
sidecar_floor_pid       gauge   sidecar,worker  Process that holds the ring while others idle.
spark_workers           gauge   state           Spark's Python workers with rings, busy or idle.
spark_worker_bytes      gauge   state           Memory that only the workers use.
spark_ring_bytes        gauge   -               Size of the workers' rings."""


def _metric(line: str) -> Metric:
    name, kind, labels, words = line.split(None, 3)
    names = () if labels == "-" else tuple(labels.split(","))
    return Metric(name, cast("Kind", kind), names, words)


#: All metrics, in the order in which they are exported.
METRICS: tuple[Metric, ...] = tuple(map(_metric, _TABLE.splitlines()))
# Names of a participant's counters, each with the metric that sums it over all participants.
# CHANGE: edit this for a new counter that each participant has
_COUNTED = {name: f"ring_{name}" for name in Counters.__annotations__} | {
    "overrun": "ring_lost_slots",
    "dropped": "ring_dropped_messages",
    "redelivered": "ring_redelivered_messages",
}
_counts = itemgetter(*_COUNTED, "synced_ns")
_NOTHING = (0,) * (len(_COUNTED) + 1)


class HostMetrics(Closing):
    """Looks at the host now and then, and sums up the counters of its participants.

    A participant's counters vanish with the participant; the sums stay.

    Parameters
    ----------
    interval : seconds between two looks, made by a thread; None starts no thread: call look()
    age : seconds for which a message may be held, or wait, without a finding
    foreign : whether to include other users' rings
    """

    def __init__(
        self, *, interval: float | None = 1.0, age: float = AGE, foreign: bool = False
    ) -> None:
        if interval is not None:
            seconds_of("interval", interval, threading.TIMEOUT_MAX)
        self._age = seconds_of("age", age)
        self._observer = Observer(foreign=foreign)
        self._lock = threading.Lock()
        self._before: HostLook | None = None
        self._looked = 0.0
        self._seen: Counts = {}
        self._ticks: dict[int, int] = {}  # CPU time of Spark's Python workers at the last look
        self._counted: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._samples: Samples = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.look()
        if interval is not None:
            self._thread = threading.Thread(
                target=self._run, args=(interval,), name="shmring-metrics", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Close all rings."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._observer.close()

    def _run(self, interval: float) -> None:
        while not self._ended.wait(interval):
            # A look may fail, for example without free file descriptors: the next may succeed.
            with suppress(ShmringError, OSError):
                self.look()

    @property
    def samples(self) -> Samples:
        """Return the last look's values: by metric, then by the values of its labels."""
        return self._samples

    def look(self) -> HostLook:
        """Look now."""
        with self._lock:
            now, at = self._observer.look(), time.monotonic()
            passed = at - self._looked if self._before else 0.0
            samples: Samples = {metric.name: {} for metric in METRICS}
            samples["memory_bytes"][()] = now.memory
            samples["memory_free_bytes"][()] = now.free
            for each in findings(now, self._before, age=self._age):
                severity = "stuck" if each.status == 2 else "warning"
                labels = (severity, each.kind, each.ring or "", each.sidecar or "")
                samples["findings"][labels] = samples["findings"].get(labels, 0) + 1
            before, self._seen = self._seen, {}
            # CHANGE: edit this for a new metric
            for ring in now.rings:
                if ring.seen is not None:
                    self._add(samples, ring, ring.seen, before, passed)
            self._add_spark(samples, now.spark)
            self._forget(now)
            for (name, labels), value in self._counted.items():
                samples[name][labels] = value
            self._before, self._looked, self._samples = now, at, samples
            return now

    def collect(self) -> Iterator[Family]:
        """Yield all metrics, with or without values, for a registry of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        samples = self._samples  # one look's values; another thread may replace the attribute
        for metric in METRICS:
            family = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            made = family(f"shmring_{metric.name}", metric.words, labels=metric.labels)
            for labels, value in samples[metric.name].items():
                made.add_metric(labels, value)
            yield made

    def _add(
        self,
        samples: Samples,
        ring: RingLook,
        seen: Seen,
        before: Counts,
        passed: float,
    ) -> None:
        if ring.is_reply:
            sidecar = ring.name.removeprefix(REPLIES).rpartition(".")[0]
            replies = samples["sidecar_reply_bytes"]
            replies[(sidecar,)] = replies.get((sidecar,), 0) + seen.info.file_bytes
            return
        if ring.is_parked:
            return
        # CHANGE: edit this for a new metric
        name, stats = ring.name, seen.stats
        samples["ring_slots"][(name,)] = stats["slots"]
        samples["ring_used_slots"][(name,)] = stats["used"]
        samples["ring_size_bytes"][(name,)] = seen.info.file_bytes
        samples["ring_claimed_slots"][(name,)] = stats["claimed"] - seen.info.first_sequence
        samples["ring_participants_limit"][(name,)] = seen.info.participants
        for role in ("attached", "producer", "consumer"):
            for state in ("alive", "stopped", "dead"):
                samples["ring_participants"][(name, role, state)] = 0
            for counter in Counters.__annotations__ if role != "attached" else ():
                self._counted[_COUNTED[counter], (name, role)] += 0
        for participant in stats["participants"]:
            self._count(name, seen, participant, before)
        for participant in seen.processes():
            alive, stopped = participant["alive"], participant["stopped"]
            state = "dead" if not alive else "stopped" if stopped else "alive"
            there = samples["ring_participants"]
            labels = (name, participant["role"], state)
            there[labels] = there.get(labels, 0) + 1
        for branch in stats["branches"]:
            labels = (name, branch["name"])
            samples["branch_lag_slots"][labels] = branch["lag"]
            samples["branch_lag_messages"][labels] = branch["waiting"]
            samples["branch_lag_seconds"][labels] = seen.ages.get(branch["name"], 0.0)
            samples["branch_consumers"][labels] = branch["consumers"]
            samples["branch_orphans"][labels] = branch["orphans"]
            if is_journal(branch):
                samples["journal_lag_seconds"][(name,)] = seen.ages.get(branch["name"], 0.0)
                self._counted["journal_sync_seconds", (name,)] += 0
        if ring.sidecar is not None:
            self._add_sidecar(samples, ring.sidecar, name, seen, passed)

    def _add_sidecar(
        self, samples: Samples, sidecar: str, ring: str, seen: Seen, passed: float
    ) -> None:
        staff = Staff.of(seen.stats["participants"])
        stopped = sum(worker["stopped"] for worker in (*staff.workers, *staff.loading))
        going = [worker for worker in staff.workers if not worker["stopped"]]
        busy = sum(map(staff.is_busy, going))
        loading = sum(not worker["stopped"] for worker in staff.loading)
        states = {"busy": busy, "idle": len(going) - busy, "loading": loading, "stopped": stopped}
        for state, count in states.items():
            samples["sidecar_workers"][(sidecar, state)] = count
        at = (sidecar,)
        samples["sidecar_queue_slots"][at] = sum(b["lag"] for b in seen.stats["branches"])
        samples["sidecar_queue_requests"][at] = sum(b["waiting"] for b in seen.stats["branches"])
        samples["sidecar_queue_seconds"][at] = max(seen.ages.values(), default=0.0)
        samples["sidecar_clients"][at] = len(staff.clients)
        samples["sidecar_reply_bytes"].setdefault(at, 0)
        samples["sidecar_restarts"][at] = staff.restarts
        samples["sidecar_moved_requests"][at] = len(staff.moved)
        if (worker := floor_holder(seen)) is not None:
            samples["sidecar_floor_pid"][(sidecar, worker["name"])] = worker["pid"]
        samples["sidecar_requests"][at] = self._counted["ring_messages", (ring, "consumer")]
        self._counted["sidecar_busy_seconds", at] += passed * busy

    def _add_spark(self, samples: Samples, workers: list[SparkWorker]) -> None:
        before, self._ticks = self._ticks, {worker.pid: worker.ticks for worker in workers}
        for name in ("spark_workers", "spark_worker_bytes"):
            samples[name] = {("busy",): 0, ("idle",): 0}
        samples["spark_ring_bytes"][()] = sum(worker.ring_bytes for worker in workers)
        for worker in workers:
            state = ("idle" if before.get(worker.pid) == worker.ticks else "busy",)
            samples["spark_workers"][state] += 1
            samples["spark_worker_bytes"][state] += worker.private_bytes

    # CHANGE: edit this for a new metric
    def _count(
        self,
        ring: str,
        seen: Seen,
        participant: ParticipantRecord,
        before: Counts,
    ) -> None:
        """Add the growth of a participant's counters since the last look to the ring's sums."""
        role = participant["role"]
        if role not in ("producer", "consumer"):
            return
        counts: tuple[int, ...] = _counts(participant)
        identity = participant["seat"], participant["pid"], participant["joined_ns"]
        key = (ring, seen.info.uuid, *identity)
        self._seen[key] = counts
        known = before.get(key, _NOTHING)
        if counts != known:
            *gained, synced = (max(0, now - was) for now, was in zip(counts, known, strict=True))
            for metric, gain in zip(_COUNTED.values(), gained, strict=True):
                self._counted[metric, (ring, role)] += gain
            if synced and participant["branch"] == JOURNAL_BRANCH:
                self._counted["journal_sync_seconds", (ring,)] += synced / 1e9

    # CHANGE: edit this for a new metric
    def _forget(self, now: HostLook) -> None:
        """Remove the series of rings and sidecars that are gone; the first label names them."""
        there = {ring.name for ring in now.rings} | {ring.sidecar for ring in now.rings}
        for key in [key for key in self._counted if key[1][0] not in there]:
            del self._counted[key]
