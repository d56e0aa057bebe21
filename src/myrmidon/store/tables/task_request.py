"""Task requests with their slices, tags, secrets and stdin; immutable once stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter

from msgspec import Struct, json, structs

from myrmidon.model.ids import Micros
from myrmidon.model.task_request import NO_COMMAND_JSON, is_terminate_task
from myrmidon.store.engine.db import LostRace, Tx
from myrmidon.store.engine.records import columns_of, insert_of
from myrmidon.store.engine.sql import Insert, Row, RowDelete


class RequestRow(Struct, frozen=True, gc=False):
    """A stored request with its first slice."""

    id: int
    resource_group_id: int
    external_id: str | None
    job_id: int | None
    task_graph_insertion_id: int | None
    package_name: str | None
    func_name: str | None
    language: str | None
    name: str
    created_at: Micros
    authenticated: str
    user_name: str
    priority: int
    service_account: str
    parent_task_id: int | None
    parent_run: int | None
    root_task_id: int | None
    detached: int
    retries: int
    max_num_retries: int
    max_num_instances: int
    timeout: Micros | None
    lease: Micros
    deadline_at: Micros
    requires_policy: str
    routing: str
    tags: str
    metadata: str
    code: str | None = None
    signature: str | None = None
    memory_mb: int | None = None
    num_inputs: int = 0
    num_outputs: int = 0
    identity: str | None = None
    resume_scope: str | None = None
    environment: str | None = None
    label: str | None = None
    definition_hash: str | None = None
    added_by: int | None = None
    num_slices: int = 1
    queue: int = 0
    expiration: Micros = 0
    wait_for_capacity: int = 0
    idempotent: int = 0
    properties_hash: str = ""
    properties: str = ""

    def first_slice(self) -> SliceRow:
        return SliceRow(
            self.id, 0, self.queue, self.expiration, self.wait_for_capacity, self.idempotent, self.properties_hash,
            self.properties,
        )  # fmt: skip


class SliceRow(Struct, frozen=True, gc=False):
    """One fallback of a request. The first is stored in the row of the request."""

    task_id: int
    slice: int
    queue: int
    expiration: Micros
    wait_for_capacity: int
    idempotent: int
    properties_hash: str
    properties: str


_COLUMNS = columns_of(RequestRow)
_REQUESTS = insert_of("task_requests", RequestRow)
_SLICE_COLUMNS = columns_of(SliceRow)
_FURTHER_SLICES = insert_of("further_slices", SliceRow)
_SECRETS = Insert("secret_bytes", "task_id, secret_bytes")
_STDIN = Insert("task_stdin", "task_id, content")
_TAGS = Insert("task_tags", "tag, task_id")
WITHOUT_ROWS = ("environment:", "os:", "pool:", "priority:", "python:", "service_account:", "user:")
"""How tags begin that most tasks have by themselves. They have no rows in task_tags."""


def has_rows(tag: str) -> bool:
    """Whether tasks with this tag have rows in task_tags. A list by another tag looks at the newest tasks."""
    return not tag.startswith(WITHOUT_ROWS)


def text_of_tag(tag: str) -> str:
    """What the column ``tags`` of a request with this tag contains."""
    return json.encode(tag).decode()


def insert(tx: Tx, requests: Sequence[RequestRow], slices: Sequence[SliceRow], tags: Sequence[tuple[str, int]]) -> None:
    """Store requests with their further slices and their tags.

    The caller has checked that their external ids are free; LostRace when one was taken meanwhile.
    """
    plain: list[Row] = []
    named: list[Row] = []
    for request in requests:
        (plain if request.external_id is None else named).append(structs.astuple(request))
    if plain:
        tx.insert(_REQUESTS, plain)
    if named and tx.insert_new(_REQUESTS, named) != len(named):
        raise LostRace("an external id was taken")
    if slices:
        tx.insert(_FURTHER_SLICES, list(map(structs.astuple, slices)))
    if tags:
        tx.insert(_TAGS, tags)


def insert_secrets(tx: Tx, rows: Sequence[tuple[int, bytes]]) -> None:
    tx.insert(_SECRETS, rows)


def insert_stdin(tx: Tx, rows: Sequence[tuple[int, bytes]]) -> None:
    tx.insert(_STDIN, rows)


READ = f"SELECT {_COLUMNS} FROM task_requests WHERE id {{in:ids}} ORDER BY id"


def read(tx: Tx, ids: Sequence[int]) -> dict[int, RequestRow]:
    return {row[0]: RequestRow(*row) for row in tx.all(READ, ids=ids)}


class RunPolicy(Struct, frozen=True, gc=False):
    """The part of a request that decides what follows the end of a run."""

    id: int
    num_outputs: int
    retries: int
    max_num_retries: int
    max_num_instances: int
    timeout: Micros | None
    resume_scope: str | None
    idempotent: int

    @property
    def offers_result(self) -> bool:
        """Whether an equal later task may take over the result."""
        return bool(self.idempotent) or self.resume_scope is not None


RUN_POLICIES = """
    SELECT r.id, r.num_outputs, r.retries, r.max_num_retries, r.max_num_instances, r.timeout,
           r.resume_scope,
           CASE WHEN r.idempotent = 1 OR r.num_slices = 1 THEN r.idempotent
                ELSE (SELECT MAX(s.idempotent) FROM further_slices s WHERE s.task_id = r.id) END
      FROM task_requests r WHERE r.id {in:ids}
"""


def run_policies(tx: Tx, ids: Sequence[int]) -> dict[int, RunPolicy]:
    return {row[0]: RunPolicy(*row) for row in tx.all(RUN_POLICIES, ids=ids)}


ALL_SLICES = f"""(
    SELECT id AS task_id, 0 AS slice, {_SLICE_COLUMNS.removeprefix("task_id, slice, ")}
      FROM task_requests WHERE id {{in:ids}}
     UNION ALL
    SELECT {_SLICE_COLUMNS} FROM further_slices WHERE task_id {{in:ids}}
)"""
"""All slices of some tasks, as a table."""
SLICES = f"SELECT {_SLICE_COLUMNS} FROM {ALL_SLICES} s ORDER BY task_id, slice"
FURTHER_SLICES = f"SELECT {_SLICE_COLUMNS} FROM further_slices WHERE task_id {{in:ids}} ORDER BY task_id, slice"


def slices(tx: Tx, ids: Sequence[int]) -> dict[int, list[SliceRow]]:
    found: dict[int, list[SliceRow]] = {}
    for row in tx.all(SLICES, ids=ids):
        found.setdefault(row[0], []).append(SliceRow(*row))
    return found


def slices_of(tx: Tx, requests: Collection[RequestRow]) -> dict[int, list[SliceRow]]:
    """The slices of requests that were read; most have no further ones."""
    found = {request.id: [request.first_slice()] for request in requests}
    if several := [request.id for request in requests if request.num_slices > 1]:
        for row in tx.all(FURTHER_SLICES, ids=several):
            found[row[0]].append(SliceRow(*row))
    return found


SET_PRIORITY = "UPDATE task_requests SET priority = :priority WHERE id {in:ids}"


def set_priority(tx: Tx, ids: Sequence[int], priority: int) -> None:
    """Change the priority of locked tasks; no other field that users give can change."""
    tx.run(SET_PRIORITY, ids=ids, priority=priority)


CLEAR_SCOPE = "UPDATE task_requests SET resume_scope = NULL WHERE id = :id AND resume_scope IS NOT NULL"


def clear_resume_scope(tx: Tx, task_id: int) -> None:
    """Keep the result of a task from answering others: it is more than its outputs."""
    tx.run(CLEAR_SCOPE, id=task_id)


class Work(Struct, frozen=True, gc=False):
    """The part of a request that its bot gets, with the slice to run."""

    task_id: int
    name: str
    package_name: str | None
    func_name: str | None
    language: str | None
    user_name: str
    priority: int
    service_account: str
    parent_task_id: int | None
    retries: int
    lease: Micros
    deadline_at: Micros
    slice: int
    queue: int
    properties: str
    metadata: str
    job_id: int | None
    code: str | None
    signature: str | None
    memory_mb: int | None
    num_inputs: int
    num_outputs: int
    environment: str | None


_OF_SLICE = ("task_id", "slice", "queue", "properties")
_SAME = [name for name in Work.__struct_fields__ if name not in _OF_SLICE]
_of_request = attrgetter(*_SAME)


def work_of(request: RequestRow, one: SliceRow) -> Work:
    """The same of a request that is in memory."""
    same = dict(zip(_SAME, _of_request(request), strict=True))
    return Work(task_id=request.id, slice=one.slice, queue=one.queue, properties=one.properties, **same)


_WORK = """
    SELECT r.id, r.name, r.package_name, r.func_name, r.language, r.user_name, r.priority, r.service_account,
           r.parent_task_id, r.retries, r.lease, r.deadline_at, {slice}, r.metadata,
           r.job_id, r.code, r.signature, r.memory_mb, r.num_inputs, r.num_outputs, r.environment
"""
WORK = f"""
    {_WORK.format(slice="0, r.queue, r.properties")} FROM task_requests r WHERE r.id {{in:ids}}
     UNION ALL
    {_WORK.format(slice="s.slice, s.queue, s.properties")}
      FROM task_requests r JOIN further_slices s ON s.task_id = r.id WHERE r.id {{in:ids}}
"""


def work(tx: Tx, ids: Sequence[int]) -> dict[tuple[int, int], Work]:
    """What bots need to run these tasks, by task and slice."""
    return {(row[0], row[12]): Work(*row) for row in tx.all(WORK, ids=ids)}


class Extras(Struct, frozen=True, gc=False):
    """What only some tasks have and their bot gets: a label, other code since a rerun of the job, a secret, stdin."""

    task_id: int
    label: str | None = None
    code: str | None = None
    environment: str | None = None
    secret_bytes: bytes | None = None
    stdin: bytes | None = None

    def __repr__(self) -> str:
        """Omits the secret and the stdin."""
        return f"Extras(task_id={self.task_id})"


EXTRAS = """
    SELECT r.id, r.label, c.runs_as, e.runs_as, s.secret_bytes, i.content
      FROM task_requests r
      LEFT JOIN job_codes c ON c.job_id = r.job_id AND c.code = r.code
      LEFT JOIN job_codes e ON e.job_id = r.job_id AND e.code = r.environment
      LEFT JOIN secret_bytes s ON s.task_id = r.id
      LEFT JOIN task_stdin i ON i.task_id = r.id
     WHERE r.id {in:ids}
"""


def extras(tx: Tx, ids: Sequence[int]) -> dict[int, Extras]:
    """The extras of these tasks. Only for the bot that claims them."""
    return {row[0]: Extras(*row[:4], *map(_bytes, row[4:])) for row in tx.all(EXTRAS, ids=ids)}


def _bytes(column: bytes | None) -> bytes | None:
    return bytes(column) if column is not None else None


TERMINATE_TASKS = """
    SELECT id, func_name, properties FROM task_requests
     WHERE id {in:ids} AND func_name IS NULL AND properties LIKE :no_command
"""


def terminate_tasks(tx: Tx, ids: Sequence[int]) -> set[int]:
    """Those of the tasks that tell a bot to terminate."""
    rows = tx.all(TERMINATE_TASKS, ids=ids, no_command=f"%{NO_COMMAND_JSON}%") if ids else []
    return {row[0] for row in rows if is_terminate_task(row[1], row[2])}


SECRETS = "SELECT task_id, secret_bytes FROM secret_bytes WHERE task_id {in:ids}"


def secrets(tx: Tx, ids: Sequence[int]) -> dict[int, bytes]:
    """The secret bytes of tasks, to mask them in their logs."""
    return {row[0]: bytes(row[1]) for row in tx.all(SECRETS, ids=ids)}


WITH_SECRET = "SELECT task_id FROM secret_bytes WHERE task_id {in:ids}"


def with_secret(tx: Tx, ids: Sequence[int]) -> set[int]:
    """Those of the tasks that have secret bytes; the bytes are not read."""
    return {row[0] for row in tx.all(WITH_SECRET, ids=ids)}


STDIN_SIZES = "SELECT task_id, LENGTH(content) FROM task_stdin WHERE task_id {in:ids}"


def stdin_sizes(tx: Tx, ids: Sequence[int]) -> dict[int, int]:
    """The size of the stdin of those of the tasks that have one, in bytes."""
    return {row[0]: int(row[1]) for row in tx.all(STDIN_SIZES, ids=ids)}


EXISTING = "SELECT id FROM task_requests WHERE id {in:ids}"


def existing(tx: Tx, ids: Sequence[int]) -> set[int]:
    """Those of the ids that are stored; used when it is unknown whether an earlier attempt was committed."""
    return {row[0] for row in tx.all(EXISTING, ids=ids)}


NEWEST = "SELECT MAX(id) FROM task_requests"


def newest(tx: Tx) -> int:
    """The greatest task id; 0 when there are no tasks."""
    row = tx.one(NEWEST)
    return (row[0] or 0) if row else 0


BY_EXTERNAL = """
    SELECT external_id, id FROM task_requests
     WHERE resource_group_id = :resource_group AND external_id {in_text:external_ids}
"""


def by_external(tx: Tx, resource_group_id: int, external_ids: Sequence[str]) -> dict[str, int]:
    return dict(tx.all(BY_EXTERNAL, resource_group=resource_group_id, external_ids=external_ids))


CHILDREN = "SELECT id FROM task_requests WHERE parent_task_id = :parent AND id > :after ORDER BY id LIMIT :n"


def children(tx: Tx, parent_task_id: int, *, after: int = 0, n: int = 1000) -> list[int]:
    """The next n tasks that this task has started, by id."""
    return [row[0] for row in tx.all(CHILDREN, parent=parent_task_id, after=after, n=n)]


OF_GROUP = "SELECT id FROM task_requests WHERE resource_group_id = :resource_group LIMIT :n"


def of_group(tx: Tx, resource_group_id: int, n: int) -> list[int]:
    return [row[0] for row in tx.all(OF_GROUP, resource_group=resource_group_id, n=n)]


TAGGED = """
    SELECT task_id FROM task_tags
     WHERE tag = :tag AND task_id > :after AND task_id <= :until ORDER BY task_id LIMIT :n
"""
LOOKED_AT = 5_000
"""How many requests one page reads, at most, if none of its tags has rows."""
END_OF_LOOK = "SELECT id FROM task_requests WHERE id > :after ORDER BY id LIMIT 1 OFFSET :n"
WITH_TAG = """
    SELECT id FROM task_requests
     WHERE id > :after AND id <= :until AND {instr}(tags, :tag) > 0 ORDER BY id LIMIT :n
"""
ALSO_TAGGED = "SELECT id FROM task_requests WHERE id {in:ids} AND {instr}(tags, :tag) > 0"


def tagged(tx: Tx, tags: Sequence[str], *, after: int, until: int, n: int) -> tuple[list[int], int | None]:
    """Up to n tasks that have all these tags, by id, and the id to continue after; None at the end."""
    first = next(filter(has_rows, tags), None)
    end: int | None = None
    if first is not None:
        page = [row[0] for row in tx.all(TAGGED, tag=first, after=after, until=until, n=n)]
    else:
        first = tags[0]
        row = tx.one(END_OF_LOOK, after=after, n=LOOKED_AT)
        end = row[0] if row is not None and row[0] < until else None
        given = {"tag": text_of_tag(first), "after": after, "until": until if end is None else end}
        page = [row[0] for row in tx.all(WITH_TAG, n=n, **given)]
    cursor = page[-1] if len(page) == n else end
    for tag in tags:
        if page and tag != first:
            page = sorted(row[0] for row in tx.all(ALSO_TAGGED, tag=text_of_tag(tag), ids=page))
    return page, cursor


# ---------------------------------------------------------------- request keys


TAGS_OF = "SELECT id, tags FROM task_requests WHERE id {in:ids}"
_DELETE_TAGS = RowDelete("task_tags", key="tag, task_id", types="text, bigint")
DELETES = tuple(
    f"DELETE FROM {table} WHERE {column} {{in:ids}}"
    for table, column in (
        ("request_keys", "subject"),
        ("secret_bytes", "task_id"),
        ("task_stdin", "task_id"),
        ("further_slices", "task_id"),
        ("task_requests", "id"),
    )
)


def tags_of(tx: Tx, ids: Sequence[int]) -> list[tuple[int, str]]:
    """The tags of each of these tasks, as stored JSON lists."""
    return [(row[0], row[1]) for row in tx.all(TAGS_OF, ids=ids)]


def delete(tx: Tx, ids: Sequence[int], tags: Sequence[tuple[str, int]]) -> None:
    """Delete requests. ``tags`` are those of their tags that have rows, each with its task."""
    if tags:
        tx.delete_rows(_DELETE_TAGS, tags)
    for text in DELETES:
        tx.run(text, ids=ids)
