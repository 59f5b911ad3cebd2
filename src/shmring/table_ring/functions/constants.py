"""The functions that are constants."""

from __future__ import annotations

from shmring.table_ring.functions.parts import Parts

__all__ = ["holders", "made", "made_source", "subscribed", "version"]


def version(ring: Parts, number: int) -> str:
    """Return the function with the version of all functions."""
    return _constant(ring, "version", "integer", number)


def made(ring: Parts) -> str:
    """Return the function with the ring for which all functions were made."""
    return (
        f"CREATE OR REPLACE FUNCTION {ring.named('_made')}() RETURNS text"
        f" LANGUAGE sql IMMUTABLE AS $${made_source(ring)}$$"
    )


def made_source(ring: Parts) -> str:
    """Return the body of this function."""
    return f"SELECT $ring${ring.made}$ring$::text"


def subscribed(ring: Parts, count: int) -> str:
    """Return the function with the number of subscribers."""
    return _constant(ring, "subscribed", "smallint", count)


def holders(ring: Parts, bits: int) -> str:
    """Return the function with the subscribers' bits of `holders`."""
    return _constant(ring, "holders", "bigint", bits)


def _constant(ring: Parts, suffix: str, kind: str, value: int) -> str:
    return (
        f"CREATE OR REPLACE FUNCTION {ring.named(f'_{suffix}')}() RETURNS {kind}"
        f" LANGUAGE sql IMMUTABLE AS 'SELECT ({value})::{kind}'"
    )
