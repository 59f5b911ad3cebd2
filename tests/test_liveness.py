"""A living process is never taken for dead, whatever happens to its descriptors."""

from __future__ import annotations

from closed_streams import LOG

import shmring

LOGGING = f"""{LOG}
    import shmring
    os.closerange(0, 3)
    with shmring.attach(sys.argv[1]) as ring, ring.producer() as out, ring.consumer("a") as inp:
        out.push(b"hello")
        inp.pop()
        with shmring.create(sys.argv[1] + ".made", slots=1024, temporary=True):
            log()
    os._exit(0)
"""


def test_what_is_written_to_closed_standard_streams_is_not_written_into_a_ring(ring, child):
    child(LOGGING, ring.name).end()
    shmring.attach(ring.name).close()
