"""Checks which parts of a ring exist in PostgreSQL, and whether this version may use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from shmring.errors import Damaged, VersionMismatch
from shmring.table_ring import functions
from shmring.table_ring.functions import Parts

__all__ = ["check_functions", "find_schema", "is_there"]

# Runs a statement with parameters, and returns its rows.
Call = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]


def find_schema(call: Call, name: str) -> tuple[str | None, str, bool]:
    """Return the schema of a ring, plain and quoted for SQL, and whether the ring exists.

    If the ring does not exist, this is the schema in which it would be made, if there is one.
    """
    schema, quoted, found = call(
        "SELECT s.name, quote_ident(s.name), s.found FROM (SELECT n.nspname, true"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relname = %s AND pg_table_is_visible(c.oid)"
        " UNION ALL SELECT current_schema(), false)"
        " AS s (name, found) ORDER BY s.found DESC LIMIT 1",
        (f"{name}_ring",),
    )[0]
    if set("'$") & set(schema or ""):
        raise ValueError(
            f"table ring {name!r} cannot be in schema {schema!r}, whose name has a"
            " quotation mark or a dollar sign; set another search_path"
        )
    return schema, quoted, found


def check_functions(call: Call, ring: Parts) -> None:
    """Raise if a handle of this version must not call the functions."""
    renew = f"TableRing.renew(url, name={ring.name!r})"
    # One statement reads all texts at one moment, also while another session subscribes.
    source = "(SELECT p.prosrc FROM pg_proc p WHERE p.oid = to_regprocedure(%s))"
    version, made, subscribed, holders, told = call(
        f"SELECT {', '.join([source] * 4)}, ARRAY[format('SELECT (%%s)::smallint', r.subscribers),"
        f" format('SELECT (%%s)::bigint', r.holders)] FROM {_called(ring)}_ring r",
        [f"{ring.named(f'_{which}')}()" for which in functions.CONSTANTS],
    )[0]
    if version != f"SELECT ({functions.VERSION})::integer":
        said = version and re.search(r"\d+", version)
        raise VersionMismatch(
            f"the functions of table ring {ring.name!r} are"
            f" {f'version {said.group()}' if said else 'missing'}, this shmring knows"
            f" {functions.VERSION}; {renew} replaces them, when all its users have this shmring"
        )
    if made != functions.made_source(ring):
        raise Damaged(
            f"the functions of table ring {ring.name!r} were made for another ring: {made}; this"
            f" is {ring.made}; {renew} makes them again"
        )
    if [subscribed, holders] != told:
        raise Damaged(
            f"table ring {ring.name!r}: the functions that push know other subscribers than table"
            f" {ring.name}_ring; {renew} makes them again"
        )


def is_there(call: Call, ring: Parts) -> bool:
    """Whether the ring that a handle knows exists; raise if parts of it are missing."""
    parts = [ring.named(suffix) for suffix in ("_ring", "", "_subscribers", "_claims", "_push")]
    query = "SELECT n FROM unnest(%s::text[]) n WHERE to_regclass(n) IS NULL"
    lost = {part for (part,) in call(query, (parts,))}
    if parts[0] in lost:
        return False
    made = call(f"SELECT slots, stride FROM {_called(ring)}_ring", ())
    if made != [(ring.layout.slots, ring.layout.stride)]:
        return False
    if lost:
        raise Damaged(
            f"table ring {ring.name!r} lost {', '.join(sorted(lost))}; TableRing.drop, create again"
        )
    check_functions(call, ring)
    query = "SELECT p.proname FROM pg_proc p WHERE p.pronamespace = %s::regnamespace"
    there = {function for (function,) in call(query, (ring.schema,))}
    if missing := sorted(set(functions.names(ring.name)) - there):
        raise Damaged(
            f"table ring {ring.name!r} lost the functions {', '.join(missing)};"
            f" TableRing.renew(url, name={ring.name!r}) makes them again"
        )
    return True


def _called(ring: Parts) -> str:
    """Return the ring's name for a statement in which the driver looks for parameters."""
    return ring.named().replace("%", "%%")
