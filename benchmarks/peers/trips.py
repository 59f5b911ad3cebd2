"""The clock of a round-trip measurement."""

from __future__ import annotations

import itertools
import time


class Trips:
    """Times single round trips until `seconds` are over.

    ``while trips.go_on(): <one round trip>`` includes the clock itself (about 0.1 us).
    """

    def __init__(self, seconds: float) -> None:
        self._moments = [time.perf_counter_ns()]
        self._end = self._moments[0] + int(seconds * 1e9)

    def go_on(self) -> bool:
        """Note the moment; whether there is time for another trip."""
        now = time.perf_counter_ns()
        self._moments.append(now)
        return now < self._end

    def result(self) -> dict[str, float]:
        """Median, 99th and 99.9th percentile in microseconds."""
        moments = self._moments[1:]
        trips = sorted(b - a for a, b in itertools.pairwise(moments))
        return {
            "median": trips[len(trips) // 2] / 1e3,
            "p99": trips[len(trips) - 1 - len(trips) // 100] / 1e3,
            "p999": trips[len(trips) - 1 - len(trips) // 1000] / 1e3,
        }
