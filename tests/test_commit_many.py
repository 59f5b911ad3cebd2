"""Claim.commit_many(): several messages by one store."""

from __future__ import annotations

import pytest

import shmring


def test_messages_of_a_claim_become_readable_together(ring):
    with ring.producer() as out, ring.consumer("b", start="earliest") as inp:
        claim = out.claim(4 * 300)
        claim.buffer[:2] = b"ab"
        claim.buffer[600:1200] = b"x" * 600
        with pytest.raises(shmring.Empty):
            inp.lease(timeout=0)
        claim.commit_many([2, 0, 600])
        with inp.lease_many(10, timeout=0) as batch:
            assert [bytes(message) for message in batch] == [b"ab", b"", b"x" * 600]
            assert batch.message_ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("lengths", "error"),
    [
        ([300], "the parts have 1 slots, the claim has 2"),
        ([1, -1], "length must be"),
        ([], "parts"),
    ],
)
def test_lengths_that_do_not_make_up_the_claim_publish_nothing(ring, lengths, error):
    with ring.producer() as out, ring.consumer("b", start="earliest") as inp:
        claim = out.claim(2 * 300)
        with pytest.raises(ValueError, match=error):
            claim.commit_many(lengths)
        claim.commit_many([1, 2])
        assert len(inp.lease_many(10, timeout=0)) == 2
        with pytest.raises(shmring.Closed):
            claim.commit_many([1, 2])
