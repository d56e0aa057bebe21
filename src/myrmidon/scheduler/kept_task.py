"""A task that becomes ready in a transaction that claims next: its row is written once, with the state it has by then.

A submit claims for a waiting bot, and an exchange claims the child of the task that it reports. The only task that has
become ready is then kept out of the tables until the claim. A claim that takes it inserts no row into task_to_run, and
reads nothing back. Otherwise it is written as any other task, at the end of the transaction at the latest. The events
READY and RUNNING are written in both cases.
"""

from collections.abc import Sequence

from msgspec import Struct

from myrmidon.model import dimensions
from myrmidon.model.bot import Bot
from myrmidon.model.ids import Micros, next_run_number
from myrmidon.model.states import RUNNING
from myrmidon.model.task_request import Constant
from myrmidon.model.task_result import TaskResult
from myrmidon.model.task_to_run import Accepts, TaskToRun
from myrmidon.model.value import Value
from myrmidon.scheduler.new_task import NewTask
from myrmidon.store.engine.db import Tx
from myrmidon.store.tables import task_result, task_to_run
from myrmidon.store.tables.task_queues import Queue
from myrmidon.store.tables.task_request import Extras, RequestRow, SliceRow, Work, work_of


class Contents(Struct, frozen=True):
    """What the bot gets of a task besides its request."""

    inputs: list[Value]
    output_types: list[str]
    extras: Extras


class KeptTask(Struct):
    """A ready task whose row, and whose row of task_to_run, are not written yet. Its events are."""

    to_run: TaskToRun
    task: TaskResult
    request: RequestRow
    slice: SliceRow
    queue: Queue
    is_new: bool
    """Its row is to be inserted; otherwise it is to be updated."""
    contents: Contents | None
    """None if it must be read."""
    num_events: int = 1

    @property
    def work(self) -> Work:
        return work_of(self.request, self.slice)

    def keep(self, tx: Tx, now: Micros) -> None:
        """Write the event READY, and leave the rows to the claim or to the end of the transaction."""
        task_result.announce(tx, self.task, now)
        task_to_run.count(tx, [self.to_run])
        tx.defer(_write, [self])

    def start(self, tx: Tx, now: Micros) -> None:
        """Move a task that was taken to RUNNING, and write its row."""
        self.task.state = RUNNING
        self.task.reason = ""
        self.num_events += 1
        task_result.announce(tx, self.task, now)
        self.write_task(tx)

    def write_task(self, tx: Tx) -> None:
        if self.is_new:
            task_result.insert_announced(tx, [self.task])
        else:
            task_result.save_announced(tx, self.task, self.num_events)


def may_be_kept(tx: Tx, row: TaskToRun) -> bool:
    """Whether the only row that is to be added is one that each bot of its queue can take equally well."""
    return not row.instance and not row.shared and row.avoid_bot is None and not tx.deferred(_write)


def contents_of(new_task: NewTask) -> Contents | None:
    """The contents of a task of a new job; None if it reads more than constants."""
    request, inputs = new_task.request, []
    for given in request.inputs:
        if not isinstance(given, Constant):
            return None
        payload = given.payload
        inputs.append(Value(0, given.type, payload.inline, payload.digest, payload.size))
    extras = Extras(new_task.task_id, new_task.label, None, None, request.secret_bytes, request.stdin)
    return Contents(inputs, [output.type for output in request.outputs], extras)


def take(tx: Tx, bot: Bot, now: Micros, *, accepts: Accepts, leave: frozenset[int]) -> KeptTask | None:
    """The kept task, if there is one and this bot may run it. The caller starts it, or raises."""
    several: list[KeptTask] = tx.deferred(_write)
    for kept in several:
        queue = kept.queue
        if (
            accepts.includes(functions=queue.of_functions)
            and kept.task.id not in leave
            and kept.to_run.expires_at > now
            and next_run_number(kept.task.run_number) is not None
            and dimensions.serves(queue.dimensions, bot.dimensions)
        ):
            several.clear()
            task_to_run.uncount(tx, [kept.to_run])
            return kept
    return None


def write(tx: Tx) -> bool:
    """Write the kept task; whether there was one."""
    several = tx.deferred(_write)
    rows = several[:]
    several.clear()
    _write(tx, rows)
    return bool(rows)


def _write(tx: Tx, several: Sequence[KeptTask]) -> None:
    for kept in several:
        kept.write_task(tx)
        task_to_run.insert_counted(tx, [kept.to_run])
