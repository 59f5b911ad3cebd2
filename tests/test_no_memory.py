"""Python refuses an allocation, each in turn: MemoryError, and no message is lost or held by it."""

from __future__ import annotations

import pytest

import shmring

pytest.importorskip("_testcapi", reason="CPython's own tests are not installed")


@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
@pytest.mark.parametrize("how", ["pop", "iterate", "lease", "lease_many", "next"])
def test_a_message_that_there_is_no_memory_for_comes_again(ring, child, how, exclusive):
    child(f"import no_memory; no_memory.messages({ring.name!r}, {how!r}, {exclusive})").end()


def test_large_messages_that_there_is_no_memory_for_come_again(name, child):
    with shmring.create(name, slots=16_384, temporary=True):
        child(f"import no_memory; no_memory.large_messages({name!r})").end()


def test_a_claim_that_there_is_no_memory_for_is_aborted(ring, child):
    child(f"import no_memory; no_memory.claims({ring.name!r})").end()
