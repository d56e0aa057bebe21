"""The floor: the rows of a life written by a bare loop, with the best statements each database has.

Nothing is checked, nothing is read but the ids of the tasks that a claim takes, and all rows are ready before the clock
starts. Inserts are copies of what the verbs insert; an update sets all rows of a batch at once where all get
the same values: all but the ends of runs, which took their own time each. Three commits per batch, as the verbs
have. What is left is what the database itself costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

from bench.bed import BOT, Bed, a_request, recorded
from bench.rows import Copier, Sample, copier, sample
from myrmidon.model.task_result import Finish
from myrmidon.scheduler import claim, report
from myrmidon.store.engine.db import Dialect, Insert, Row
from myrmidon.store.engine.mariadb import Mariadb
from myrmidon.store.engine.postgresql import Postgresql
from myrmidon.store.engine.sql import RowUpdate, insert_text
from myrmidon.store.engine.sqlite import ROWS_PER_INSERT, Sqlite

# {} is a plain parameter, {ids} the list of the batch's tasks.
TAKE = "SELECT task_id FROM task_to_run WHERE queue = {} AND expires_at > {} ORDER BY task_rank, task_id LIMIT {}"
LOCKED = " FOR UPDATE SKIP LOCKED"
USED_UP = "DELETE FROM task_to_run WHERE task_id {ids}"
CLAIMED = "UPDATE bots SET heartbeat = {}, nonce = {} WHERE id = {}"
RUNNING = """UPDATE task_results SET state = 'RUNNING', reason = '', run_number = 1, bot_id = {}, started_at = {},
    modified_at = {}, seq = seq + 1 WHERE id {ids}"""
ENDED = RowUpdate(
    "task_runs",
    key="task_id, run",
    sets="""started_at, modified_at, ended_at, duration, state = 'SUCCEEDED', reason = '', due_at = NULL,
        exit_code = 0""",
    types="bigint, int, bigint, bigint, bigint, double",
)
SUCCEEDED = """UPDATE task_results SET state = 'SUCCEEDED', reason = '', instance_id = 1, completed_at = {},
    modified_at = {}, due_at = {}, seq = seq + 1 WHERE id {ids}"""
NUMBERED = "UPDATE shared_numbers SET value = value + {} WHERE name = 'outbox_position'"
BEAT = "UPDATE bots SET heartbeat = {}, idle_at = {} WHERE id = {}"

RETENTION = 30 * 86_400 * 1_000_000
Step = Callable[[], Any]


class Writer(Protocol):
    """One connection, and how it writes best. What comes back is ready to run."""

    def insert(self, statement: Insert, rows: Sequence[Row]) -> list[Step]: ...
    def run(self, text: str, params: Sequence[Any], ids: Sequence[int] = ()) -> Step: ...
    def update(self, statement: RowUpdate, rows: Sequence[Row]) -> Step: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class SqliteWriter:
    """Multi-row VALUES in few fixed sizes."""

    locked = ""

    def __init__(self, url: str, *, durable: bool) -> None:
        self._link = Sqlite(url.removeprefix("sqlite:///"), durable=durable, exclusive=False).connect(writer=True)
        self._execute = self._link.connection.execute
        self.begin, self.commit, self.close = self._link.begin, self._link.commit, self._link.close

    def insert(self, statement: Insert, rows: Sequence[Row]) -> list[Step]:
        steps: list[Step] = []
        done = 0
        for size in ROWS_PER_INSERT:
            text = insert_text(Dialect.SQLITE, statement, size, only_new=False)
            while len(rows) - done >= size:
                steps.append(self._rows(text, rows[done : done + size]))
                done += size
        return steps

    def update(self, statement: RowUpdate, rows: Sequence[Row]) -> Step:
        return lambda: self._link.update_rows(statement, rows)

    def run(self, text: str, params: Sequence[Any], ids: Sequence[int] = ()) -> Step:
        there = "IN (" + ",".join("?" * len(ids)) + ")"
        values = (*params, *ids)
        text = text.replace("{ids}", there).replace("{}", "?")
        return lambda: self._execute(text, values).fetchall()

    def _rows(self, text: str, rows: Sequence[Row]) -> Step:
        return lambda: self._execute(text, tuple(chain.from_iterable(rows)))


class PostgresqlWriter:
    """COPY for rows, an array for ids, prepared statements."""

    locked = LOCKED

    def __init__(self, url: str, *, durable: bool) -> None:
        self._link = Postgresql(url, durable=durable).connect(writer=True)
        self._cursor = self._link.cursor
        self.begin, self.commit, self.close = self._link.begin, self._link.commit, self._link.close

    def insert(self, statement: Insert, rows: Sequence[Row]) -> list[Step]:
        text = f"COPY {statement.table} ({statement.columns}) FROM STDIN".encode()

        def step() -> None:
            with self._cursor.copy(text) as copy:
                for row in rows:
                    copy.write_row(row)

        return [step]

    def update(self, statement: RowUpdate, rows: Sequence[Row]) -> Step:
        return lambda: self._link.update_rows(statement, rows)

    def run(self, text: str, params: Sequence[Any], ids: Sequence[int] = ()) -> Step:
        places = iter(range(1, len(params) + 1))
        while "{}" in text:
            text = text.replace("{}", f"${next(places)}", 1)
        raw = text.replace("{ids}", f"= ANY(${len(params) + 1}::bigint[])").encode()
        values = (*params, "{" + ",".join(map(str, ids)) + "}") if ids else tuple(params)

        def step() -> Any:
            found = self._cursor.execute(raw, values)
            return found.fetchall() if found.description else None

        return step


class MariadbWriter:
    """Multi-row VALUES and IN lists. Values are written into the text, which is how this driver binds them."""

    locked = LOCKED

    def __init__(self, url: str, *, durable: bool) -> None:
        self._link = Mariadb(url, durable=durable).connect(writer=True)
        self.begin, self.commit, self.close = self._link.begin, self._link.commit, self._link.close

    def insert(self, statement: Insert, rows: Sequence[Row]) -> list[Step]:
        head = f"INSERT INTO {statement.table} ({statement.columns}) VALUES "
        return [lambda: self._link.query(head + ",".join([_row(row) for row in rows]))]

    def update(self, statement: RowUpdate, rows: Sequence[Row]) -> Step:
        return lambda: self._link.update_rows(statement, rows)

    def run(self, text: str, params: Sequence[Any], ids: Sequence[int] = ()) -> Step:
        text = text.replace("{ids}", "IN (" + ",".join(map(str, ids)) + ")")
        for value in params:
            text = text.replace("{}", _literal(value), 1)

        return lambda: self._link.query(text).rows


def _row(row: Row) -> str:
    return "(" + ",".join([_literal(value) for value in row]) + ")"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return repr(value)


WRITERS = {
    Dialect.SQLITE: SqliteWriter,
    Dialect.POSTGRESQL: PostgresqlWriter,
    Dialect.MARIADB: MariadbWriter,
}


class Batch(NamedTuple):
    """Three transactions, ready to run."""

    submit: list[Step]
    take: Step
    claim: list[Step]
    finish: list[Step]
    ids: list[int]


class Floor:
    """The bare loop over a database that has the real tables."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        bed.greet()
        self._submit: Sample = sample(bed, a_request())
        self._claim, self._finish = self._rest_of_life()
        self._writer: Any = WRITERS[bed.db.dialect](bed.url, durable=bed.durable)

    def close(self) -> None:
        self._writer.close()

    def prepare(self, n: int) -> Batch:
        """Make the parameters of a batch; not part of what is measured."""
        now = self._bed.now()
        later = now - self._submit.at
        ids = self._bed.ids.block(n, now)
        w = self._writer
        take = w.run(TAKE + w.locked, (self._submit.queue, now, n))
        numbered = [w.run(NUMBERED, (n,))] if self._bed.db.dialect is Dialect.SQLITE else []
        return Batch(
            self._inserts(self._submit.copiers, ids, later) + numbered,
            take,
            [
                w.run(USED_UP, (), ids),
                *self._inserts(self._claim, ids, later),
                w.run(RUNNING, (BOT, now, now), ids),
                w.run(CLAIMED, (now, now, BOT)),
                *numbered,
            ],
            [
                w.update(ENDED, [(task_id, 1, now, now, now, 0.1 + n / 1e6) for n, task_id in enumerate(ids)]),
                w.run(SUCCEEDED, (now, now, now + RETENTION), ids),
                *self._inserts(self._finish, ids, later),
                w.run(BEAT, (now, now, BOT)),
                *numbered,
            ],
            ids,
        )

    def live(self, batch: Batch) -> None:
        """The measured loop."""
        w = self._writer
        w.begin()
        for step in batch.submit:
            step()
        w.commit()
        w.begin()
        taken = batch.take()
        for step in batch.claim:
            step()
        w.commit()
        w.begin()
        for step in batch.finish:
            step()
        w.commit()
        if len(taken) != len(batch.ids):
            raise RuntimeError(f"the floor took {len(taken)} of {len(batch.ids)} tasks")

    def _inserts(self, copiers: Sequence[Copier], ids: Sequence[int], later: int) -> list[Step]:
        steps: list[Step] = []
        for c in copiers:
            rows = [_plain(row) for task_id in ids for row in c.copy(task_id, later)]
            steps += self._writer.insert(c.statement, rows)
        return steps

    def _rest_of_life(self) -> tuple[list[Copier], list[Copier]]:
        """Claim and finish the sampled task for real, and keep what that inserts."""
        bed, at = self._bed, self._submit.at
        poll = bed.poll(1)
        claimed, started = recorded(bed, lambda tx: claim.claim(tx, poll, now=at, ids=bed.ids))
        done = [Finish(task_id=c.task_id, run=c.run, token=c.token, exit_code=0, duration=0.1) for c in claimed]
        _, ended = recorded(bed, lambda tx: report.report(tx, BOT, done, session=1, now=at, ids=bed.ids))
        return [copier(s, rows) for s, rows in started if rows], [copier(s, rows) for s, rows in ended if rows]


def _plain(row: Row) -> Row:
    """Members of enums as the strings they are: drivers take their time over anything else."""
    return tuple([str(value) if isinstance(value, str) else value for value in row])
