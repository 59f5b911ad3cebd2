"""A process that a sidecar starts, and the group that it leads."""

from __future__ import annotations

import sys

from programs import ended

AGAIN = """
import os, signal, subprocess, time
from shmring.sidecars.supervisor import Child

first = Child(["true"], leads=True)
while first.status is None:
    time.sleep(0.01)
first.bury()
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(first.pid - 1))
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
assert other.pid == first.pid
first.signal(signal.SIGKILL)
assert other.communicate(b"lives") == (b"lives", None)
assert other.returncode == 0
"""


def test_signal_goes_to_no_group_that_has_the_number_of_one_that_has_ended() -> None:
    ended("unshare", "-Urpf", "--mount-proc", sys.executable, "-c", AGAIN, check=True)
