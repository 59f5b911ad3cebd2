"""A prepared statement, sent straight through libpq.

A cursor of the driver converts, describes and keeps more than a message needs: with it a push or a
pop of one message takes twice as many instructions of the client.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.generators import execute

from shmring.table_ring.schema import MESSAGE_BYTES

_BINARY = [pq.Format.BINARY] * 3
_BYTEA = 17
# Dimensions, nulls, element type, count, lower bound; then length and bytes of each message.
_HEADER = struct.Struct(">5i")
_LENGTHS = [struct.pack(">i", length) for length in range(MESSAGE_BYTES + 1)]


class Statement:
    """A statement with parameters in PostgreSQL's binary form, prepared in each session."""

    def __init__(self, name: str, sql: str) -> None:
        self._name = f"shmring_{name}".encode()
        self._sql = sql.encode()
        self._session: pq.abc.PGconn | None = None

    def run(
        self, connection: psycopg.Connection[Any], parameters: Sequence[bytes]
    ) -> pq.abc.PGresult:
        """Run the statement, and return its rows in binary form."""
        if connection.pgconn is self._session:
            try:
                return self._send(connection, parameters)
            except InvalidSqlStatementName:
                # The driver itself forgets all statements after a DROP or ROLLBACK.
                pass
        self._session = connection.pgconn
        self._session.send_prepare(self._name, self._sql)
        _answer(connection)
        return self._send(connection, parameters)

    def _send(
        self, connection: psycopg.Connection[Any], parameters: Sequence[bytes]
    ) -> pq.abc.PGresult:
        connection.pgconn.send_query_prepared(
            self._name, parameters, _BINARY[: len(parameters)], result_format=pq.Format.BINARY
        )
        return _answer(connection)


def _answer(connection: psycopg.Connection[Any]) -> pq.abc.PGresult:
    # The driver waits, as for every statement: an interrupt cancels the statement.
    (result,) = connection.wait(execute(connection.pgconn))
    if result.status == pq.ExecStatus.FATAL_ERROR:
        raise error_from_result(result, connection.info.encoding)
    return result


def bytea_array(messages: Sequence[bytes]) -> bytes:
    """Return messages as a parameter of type bytea[], by one join and not by a call a message."""
    parts = [_HEADER.pack(1, 0, _BYTEA, len(messages), 1)]
    for message in messages:
        parts += (_LENGTHS[len(message)], message)
    return b"".join(parts)
