"""A prepared statement, sent straight through libpq.

A cursor of the driver converts, describes and keeps more than a message needs. This is most of a
client's work for one message, and half of its work for a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.generators import execute

__all__ = ["Statement"]

_BINARY = [pq.Format.BINARY] * 3


class Statement:
    """A statement with parameters in PostgreSQL's binary form, prepared in each session.

    Parameters
    ----------
    name : name of the prepared statement
    """

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
