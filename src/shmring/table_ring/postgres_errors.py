"""The meaning of PostgreSQL's errors."""

from __future__ import annotations

from typing import Any

from sqlalchemy import exc

__all__ = ["is_gone", "is_renewed", "said", "sqlstate"]


def sqlstate(error: exc.StatementError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def said(error: exc.StatementError) -> str:
    diagnosis: Any = getattr(error.orig, "diag", None)
    return str(diagnosis.message_primary if diagnosis else error.orig)


def is_renewed(error: exc.StatementError) -> bool:
    # The function was replaced after the statement was read, or while it ran. PostgreSQL does not
    # translate messages of an XX000.
    state = sqlstate(error)
    return state == "42883" or (
        state == "XX000" and said(error).startswith("cache lookup failed for function")
    )


def is_gone(error: exc.StatementError) -> bool:
    # A table or sequence by name, a function, a schema; a sequence by its number alone.
    return sqlstate(error) in ("42P01", "42883", "3F000", "XX000")
