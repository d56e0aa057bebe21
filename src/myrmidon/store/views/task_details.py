"""One task in full: its request, its result and its runs."""

from collections.abc import Sequence

from myrmidon.store.engine.db import Tx
from myrmidon.store.tables.task_request import ALL_SLICES
from myrmidon.store.views import run_details
from myrmidon.store.views.selection import GROUP_NAME, Selection
from myrmidon.wire.tasks import RequestInfo, ResultInfo, RunInfo, SliceInfo, TaskInfo

TASK = Selection(
    TaskInfo,
    "t",
    left_out=["request", "result", "runs", "annotation"],
    task_id="t.id",
    group=GROUP_NAME.format("t"),
)
REQUEST = Selection(
    RequestInfo,
    "r",
    left_out=["slices", "has_secret", "stdin_size"],
    user="r.user_name",
    parent=("r.parent_task_id", "COALESCE(r.parent_run, 0)"),
    root="r.root_task_id",
    function="r.package_name || ':' || r.func_name",
    reruns="r.max_num_retries",
    max_instances="r.max_num_instances",
    lease_s="r.lease",
)
RESULT = Selection(
    ResultInfo,
    "t",
    slice="t.current_task_slice",
    run=("t.id", "NULLIF(COALESCE(t.instance_id, t.run_number), 0)"),
    exit_code="u.exit_code",
    duration="u.duration",
    deduped_from=("t.deduped_from", "COALESCE(t.deduped_run, 0)"),
)
READ = f"""
    SELECT {TASK.columns}, {REQUEST.columns}, {RESULT.columns},
           (SELECT LENGTH(i.content) FROM task_stdin i WHERE i.task_id = t.id)
      FROM task_results t JOIN task_requests r ON r.id = t.id
      LEFT JOIN task_runs u ON u.task_id = t.id AND u.run = COALESCE(t.instance_id, t.run_number)
                           AND u.generation = t.generation AND t.state NOT IN ('WAITING', 'READY', 'RUNNING')
     WHERE t.id = :task
"""
SLICE = Selection(SliceInfo, "s", expiration_s="s.expiration")
SLICES = f"SELECT {SLICE.columns} FROM {ALL_SLICES} s ORDER BY s.slice"


def read(tx: Tx, task_id: int, runs: Sequence[RunInfo], *, has_secret: bool) -> TaskInfo:
    """A task that is stored, without its annotation."""
    row = tx.all(READ, task=task_id)[0]
    request = REQUEST(row[TASK.width :], SLICE.read(tx, SLICES, ids=[task_id]), has_secret, row[-1])
    return TASK(row, request, RESULT(row[TASK.width + REQUEST.width :]), runs)


RUN = Selection(
    RunInfo,
    "u",
    left_out=["stats", "silent_since", "given_up_at", "progress", "error"],
    run=("u.task_id", "u.run"),
    number="u.run",
)
RUNS = f"SELECT {RUN.columns}, u.progress, u.error FROM task_runs u WHERE u.task_id = :task ORDER BY u.run"


def runs(tx: Tx, task_id: int) -> list[tuple[RunInfo, str | None]]:
    """The runs of a task, oldest first, each with the stored text of its error."""
    stats = run_details.stats(tx, [task_id])
    rows = tx.all(RUNS, task=task_id)
    return [(RUN(row, stats.get((task_id, row[1])), None, None, row[-2]), row[-1]) for row in rows]
