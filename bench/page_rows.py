"""A database that a web page has to cope with: a thousand real tasks, copied inside the database, each copy some
minutes older than the last.

The real ones are submitted, claimed and finished by the verbs: commands and functions, alone and in jobs, of several
users, in several pools and queues; one in ten fails, some wait for a bot that there is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.bed import Bed
from myrmidon.model.ids import show_task
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Finish
from myrmidon.model.value import GroupOwner, OutputValue
from myrmidon.scheduler import cancel, report, shared_values, submit_job
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.store.engine.db import open_db
from myrmidon.store.engine.migrate import migrate
from myrmidon.store.engine.sql import Insert
from myrmidon.store.engine.table_copy import tables
from myrmidon.store.tables import activity, log
from myrmidon.store.tables.log_times import Mark

MINUTE = 60_000_000
WEEK_MINUTES = 7 * 24 * 60
AGE = 10 * MINUTE
"""The newest tasks are this old, so that they are old enough to be counted."""
INT = "int64"
POOLS = ("default", "build", "test", "gpu")
COPIED = (
    "task_requests", "task_tags", "task_results", "task_runs", "task_to_run", "task_inputs",
    "task_outputs", "task_edges", "completed_task_edges", "jobs",
    "values", "shared_values", "resource_group_to_shared_value_ref", "job_to_shared_value_ref", "bot_events",
)  # fmt: skip
IDS = frozenset((
    "id", "task_id", "job_id", "parent", "child", "owner_job_id", "value_id", "shared_value_id", "parent_task_id",
    "root_task_id", "deduped_from", "blocked_by", "added_by",
))  # fmt: skip


class Sizes(NamedTuple):
    """How much to fill in: tasks are ``plain + jobs * 20``, times ``copies``."""

    plain: int = 700
    jobs: int = 15
    copies: int = 1_000
    bots: int = 200
    queues: int = 100
    values: int = 20

    @property
    def tasks(self) -> int:
        return (self.plain + self.jobs * NODES) * self.copies


NODES = 20
"""Tasks of a job."""
FAILS = 10
"""Of this many tasks, and of this many jobs, one fails."""
LAST = ("join", "join-fails")
"""The label of the last task of a job."""
SMALL = Sizes(plain=140, jobs=3, copies=100, bots=20, queues=20, values=5)
"""20,000 tasks."""


class LongLog(NamedTuple):
    """A task with a long log."""

    task: str
    last_line: str


def fill(database: Path, sizes: Sizes, *, lines: int) -> LongLog:
    """Make the database, with one log of this many lines; nothing may use it yet."""
    bed = Bed(f"sqlite:///{database}", durable=False)
    try:
        _Base(bed, sizes).make()
        bed.db.write(_age)
        for table in tables():
            if table.name in COPIED:
                bed.db.write(partial(_copy, table=table.name, columns=table.columns, copies=sizes.copies))
        bed.db.write(partial(_add_activity, bed=bed, per_minute=max(sizes.tasks // WEEK_MINUTES, 1)))
        long_log = _write_long_log(bed, lines)
        bed.db.write(partial(keep_bots_alive, now=bed.now()))
        bed.db.write(lambda tx: tx.run("ANALYZE"))
        return long_log
    finally:
        bed.close()


class _Base:
    """The tasks that are copied."""

    def __init__(self, bed: Bed, sizes: Sizes) -> None:
        self.bed = bed
        self.sizes = sizes

    def make(self) -> None:
        for number in range(self.sizes.bots):
            self.bed.greet(f"bot-{number:03}", {"pool": [POOLS[number % len(POOLS)]], "os": ["Linux"]})
        for start in range(0, self.sizes.plain, 100):
            self.bed.submit([self.command(n) for n in range(start, min(start + 100, self.sizes.plain))])
            self.run_all(start)
        for number in range(self.sizes.jobs):
            self.submit_job(number)
            self.run_all(number * NODES)
        for number in range(self.sizes.values):
            self.add_value(number)
        waiting = self.bed.submit([self.waiting(n) for n in range(self.sizes.queues)])
        given_up = waiting[len(waiting) // 10 :]
        self.bed.db.write(lambda tx: cancel.cancel(tx, given_up, now=self.bed.now(), ids=self.bed.ids))

    def command(self, number: int) -> dict[str, Any]:
        dimensions = {"pool": [POOLS[number % len(POOLS)]], "os": ["Linux"]}
        properties = {"dimensions": dimensions, "command": ["sh", "-c", f"make part-{number}"]}
        return {
            "name": f"compile part {number % 50}",
            "user": f"user-{number % 20}",
            "tags": [f"branch:{number % 7}", f"build:{number}", "suite:nightly"],
            "slices": [{"properties": properties}],
        }

    def waiting(self, number: int) -> dict[str, Any]:
        """A task of a queue that no bot serves; it waits for longer than the oldest copy is old."""
        properties = {"dimensions": {"pool": ["default"], "rack": [str(number)]}, "command": ["true"]}
        slice_ = {"properties": properties, "expiration_s": 7 * 86400, "wait_for_capacity": True}
        return {"name": f"waits {number}", "slices": [slice_], "tags": ["suite:waits"]}

    def submit_job(self, number: int) -> None:
        """A function, several that take its result, and one that comes after these."""
        first = {"task": self.function("lib.split", [], 0)}
        middle = {f"part-{n}": {"task": self.function(f"lib.work_{n % 4}", ["split"], n)} for n in range(NODES - 2)}
        last = {"requires": list(middle), "task": self.function("lib.join", ["split"], 0)}
        raw = {"name": f"pipeline {number % 5}", "tasks": {"split": first, **middle, LAST[number % FAILS == 0]: last}}
        now = self.bed.now()
        draft = draft_job(raw, now=now, ids=self.bed.ids)
        submit_job.submit_job(self.bed.db.write, self.bed.group_id, draft, now=now, ids=self.bed.ids)

    def function(self, name: str, parents: Sequence[str], number: int) -> dict[str, Any]:
        inputs = [{"kind": "output_of", "type": INT, "label": label, "position": 0} for label in parents]
        dimensions = {"pool": [POOLS[number % len(POOLS)]], "os": ["Linux"]}
        return {
            "name": name,
            "function": {"package_name": "lib", "func_name": name},
            "slices": [{"properties": {"dimensions": dimensions}}],
            "inputs": inputs,
            "outputs": [{"type": INT, "shared": False}],
            "tags": ["suite:functions"],
        }

    def add_value(self, number: int) -> None:
        payload = Payload(inline=b"\x01" * (number + 1), size=number + 1)
        self.bed.db.write(
            lambda tx: shared_values.create_value(
                tx, GroupOwner(self.bed.group_id), INT, payload, now=self.bed.now(), ids=self.bed.ids
            )
        )

    def run_all(self, seed: int) -> None:
        """Run whatever is ready, on the bots in turn; one task in ten of those that are not in a job fails."""
        idle = 0
        for turn in range(seed, seed + 100 * self.sizes.bots):
            bot = f"bot-{turn % self.sizes.bots:03}"
            claimed = self.bed.claim(7, bot)
            idle = 0 if claimed else idle + 1
            if idle == len(POOLS):
                return
            ends = [self.end_of(one, failed=(turn + nth) % FAILS == 0) for nth, one in enumerate(claimed)]
            now, ids = self.bed.now(), self.bed.ids
            self.bed.db.write(partial(report.report, bot_id=bot, reports=ends, session=1, now=now, ids=ids))

    def end_of(self, claimed: Claimed, *, failed: bool) -> Finish:
        failed = claimed.label == LAST[True] or (failed and not claimed.output_types)
        outputs = [OutputValue(kind, Payload(inline=b"\x07", size=1)) for kind in claimed.output_types if not failed]
        return Finish(
            task_id=claimed.task_id,
            run=claimed.run,
            token=claimed.token,
            exit_code=int(failed),
            duration=1.5,
            outputs=outputs,
        )


# ---------------------------------------------------------------- copies


def _moved(column: str, step: str, micros: str) -> str:
    """A column of a copy: ids and times lie further back."""
    name = f's."{column}"'
    if column in IDS:
        return f"{name} - {step}"
    return f"{name} - {micros}" if column.endswith(("_at", "_since", "_time")) else name


def _copy(tx: Any, table: str, columns: Sequence[str], copies: int) -> None:
    """Copies over six days, the ids as far back as the times."""
    apart = 6 * 24 * 60 * MINUTE // copies
    made = _list(_moved(c, f"n.value * {(apart // 1000) << 20}", f"n.value * {apart}") for c in columns)
    names = _list(f'"{c}"' for c in columns)
    tx.run(
        f'INSERT INTO "{table}" ({names}) SELECT {made} FROM {{each:copies}} n CROSS JOIN "{table}" s',
        copies=list(range(1, copies)),
    )


def _age(tx: Any) -> None:
    for table in tables():
        if table.name in COPIED:
            sets = [(c, _moved(c, str((AGE // 1000) << 20), str(AGE))) for c in table.columns]
            text = _list(f'"{c}" = {value}'.replace("s.", "") for c, value in sets if value != f's."{c}"')
            tx.run(f'UPDATE "{table.name}" SET {text}')


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _add_activity(tx: Any, bed: Bed, per_minute: int) -> None:
    """The counts of a week, from which the charts are drawn."""
    now = bed.now() // MINUTE * MINUTE
    rows = [
        (now - n * MINUTE, bed.group_id, what, per_minute)
        for n in range(1, WEEK_MINUTES)
        for what in (activity.SUBMITTED, "SUCCEEDED", "FAILED")
    ]
    tx.insert(Insert("activity", "minute_at, resource_group_id, what, num"), rows)


def keep_bots_alive(tx: Any, now: int) -> None:
    """Else the server would find that they are silent."""
    tx.run("UPDATE bots SET heartbeat = :now, due_at = :later", now=now + 60 * MINUTE, later=now + 24 * 60 * MINUTE)


# ---------------------------------------------------------------- a long log

CHUNK_LINES = 2_000


def _line(number: int) -> bytes:
    return f"{number:07} compiled a part of the program\n".encode()


def _write_long_log(bed: Bed, lines: int) -> LongLog:
    """A task that has written for hours: a mark of the time every hundred lines, in both streams."""
    bed.greet("writer", {"pool": ["logs"]})
    properties = {"dimensions": {"pool": ["logs"]}, "command": ["true"]}
    bed.submit([{"name": "a long log", "slices": [{"properties": properties}]}])
    [claimed] = bed.claim(1, "writer")
    logs = open_db(log.log_url(bed.url), durable=False, bulk=True)
    migrate(logs, bed.now())
    sent = [0, 0]
    for start in range(0, lines, CHUNK_LINES):
        stream = start // CHUNK_LINES % 2
        chunk = [_line(n) for n in range(start, min(start + CHUNK_LINES, lines))]
        marks = [Mark(bed.now(), sent[stream] + len(chunk[0]) * n) for n in range(0, len(chunk), 100)]
        item = report.LogBytes(
            task_id=claimed.task_id,
            run=claimed.run,
            token=claimed.token,
            stream=stream,
            offset=sent[stream],
            content=b"".join(chunk),
            marks=marks,
        )
        sent[stream] += len(item.content)
        logs.write(partial(report.append_log, item=item))
    logs.close()
    bed.finish([claimed], "writer")
    return LongLog(show_task(claimed.task_id), f"{lines - 1:07}")
