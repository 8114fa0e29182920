"""A connection to PostgreSQL: how it reads, and how it writes so that the end of every transaction can be known."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import psycopg

from everthread.store.database import Dialect, Question, Row

DIALECT = Dialect(
    name="postgresql",
    now="extract(epoch FROM clock_timestamp())::double precision",
    lock="FOR UPDATE",
    share="FOR SHARE",
    new_ids="SELECT nextval(pg_get_serial_sequence('{0}', 'id')) FROM generate_series(1, ?)",
    day="to_char(to_timestamp({0}) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
)
IDLE_SECONDS = 60
DOUBT_SECONDS = 1

log = logging.getLogger(__name__)

_PLACEHOLDER = re.compile(r"\?")


class PostgresConnection:
    """One psycopg connection in autocommit mode; transactions are begun and ended by hand."""

    dialect = DIALECT

    def __init__(
        self, raw: psycopg.Connection[Row], give_back: Callable[[psycopg.Connection[Row]], None], begin: str
    ) -> None:
        self.raw = raw
        self.in_doubt: int | None = None
        self._give_back = give_back
        self._begin = begin

    def _execute(self, sql: str, values: Sequence[Any]) -> psycopg.Cursor[Row]:
        # The statements are our own constants; psycopg wants them typed as literals.
        return self.raw.execute(_PLACEHOLDER.sub("%s", sql).encode(), tuple(values) or None)

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return self.ask([(sql, values)])[0]

    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self.all(sql, values)
        return rows[0] if rows else None

    def ask(self, questions: Sequence[Question]) -> list[list[Row]]:
        asked = [self._execute(*question) for question in questions]
        return [cursor.fetchall() for cursor in asked]

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._execute(sql, values)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_PLACEHOLDER.sub("%s", sql).encode(), [tuple(row) for row in rows])

    def begin(self) -> None:
        self.run(self._begin)

    def commit(self) -> None:
        self.run("COMMIT")

    def committed(self, batch: int) -> bool:
        raise NotImplementedError(f"nothing is written here, so batch {batch} cannot be in doubt")

    @property
    def in_transaction(self) -> bool:
        return self.raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def rollback(self) -> None:
        if self.in_transaction:
            self.run("ROLLBACK")

    def savepoint(self) -> None:
        self.run("SAVEPOINT item")

    def release(self) -> None:
        self.run("RELEASE SAVEPOINT item")

    def rollback_to_savepoint(self) -> None:
        self.run("ROLLBACK TO SAVEPOINT item")
        self.run("RELEASE SAVEPOINT item")

    def close(self) -> None:
        self._give_back(self.raw)


class PostgresWriter(PostgresConnection):
    """A connection that writes. Each transaction carries its number, so that one can see whether it was committed.

    (The server's own numbers of transactions do not serve: after a crash it gives lost ones to others.)
    Within a transaction only who needs rows waits for the server; everything else is sent along with the next question.
    """

    def __init__(
        self, raw: psycopg.Connection[Row], give_back: Callable[[psycopg.Connection[Row]], None], writer: str,
        numbers: Iterator[int],
    ) -> None:  # fmt: skip
        super().__init__(raw, give_back, "BEGIN")
        # What fails in a pipeline takes preparations with it that the driver believes done.
        raw.prepare_threshold = None
        # Should this machine vanish, what its last transaction holds is free again soon.
        self.run(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        self._writer = writer
        self._numbers = numbers
        self._batch = 0
        self._holds_number = False
        """Whether the server has certainly begun the transaction: from then on others see that it has not ended."""
        self._sending = ExitStack()
        self._pipeline: psycopg.Pipeline | None = None

    def begin(self) -> None:
        self.in_doubt = None
        self._holds_number = False
        self._batch = next(self._numbers)
        if psycopg.Pipeline.is_supported():
            self._pipeline = self._sending.enter_context(self.raw.pipeline())
        self.run("BEGIN")
        self.run(
            "INSERT INTO writers (id, batch) VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, seen = now()",
            (self._writer, self._batch),
        )

    @property
    def in_transaction(self) -> bool:
        """The driver does not know while answers are missing."""
        return self._pipeline is not None or super().in_transaction

    def ask(self, questions: Sequence[Question]) -> list[list[Row]]:
        answers = super().ask(questions)
        self._holds_number = True
        return answers

    def commit(self) -> None:
        if not self._holds_number:
            self._wait()  # else the batch could be taken for lost, and be found by the server later
        self.in_doubt = self._batch
        self.run("COMMIT")
        self._all_answered()
        self.in_doubt = None

    def rollback(self) -> None:
        try:
            self._all_answered()
        except psycopg.Error as error:
            log.debug("an error in what is taken back: %s", error)
        super().rollback()

    def _all_answered(self) -> None:
        """Wait until the server has done all that was sent; raise what went wrong in it."""
        self._pipeline = None
        self._sending.close()

    def release(self) -> None:
        super().release()
        self._wait()

    def rollback_to_savepoint(self) -> None:
        try:
            self._wait()
        except psycopg.Error as error:
            log.debug("an error in what is taken back: %s", error)
        super().rollback_to_savepoint()
        self._wait()

    def _wait(self) -> None:
        if self._pipeline is not None:
            self._pipeline.sync()

    def committed(self, batch: int) -> bool:
        # While the server has not noticed that the other connection broke, the row is locked: one asks again later.
        # A row that the other connection has made itself cannot be seen yet; to make it is to wait for that one.
        self.run(
            f"BEGIN; SET LOCAL lock_timeout = '{DOUBT_SECONDS}s'; "
            f"INSERT INTO writers (id, batch) VALUES ('{self._writer}', 0) ON CONFLICT (id) DO NOTHING; COMMIT"
        )
        row = self.one("SELECT batch FROM writers WHERE id = ? FOR UPDATE NOWAIT", (self._writer,))
        return row is not None and row[0] == batch
