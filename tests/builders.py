"""A small world to tell stories in: one database, one resource group, some bots, and time that passes on request.

    w.bot("b1", os="Linux")                    a bot shakes hands
    task = w.submit(priority=10)               a command for any bot of the pool; every field may be given
    job = w.job({"a": [], "b": ["a"]})         a graph, by label and parents; job["a"] is the task's id
    [run] = w.claim("b1")                      a bot takes a task ...
    w.start(run); w.finish(run)                ... and does it
    w.lose("b1")                               its lease runs out
    assert w.state(task) == "READY"

Fields are given flat, whether they belong to the request, to its slice or to the properties.
"""

from __future__ import annotations

import inspect
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import count
from typing import Any

from msgspec import structs

from myrmidon.model.bot import Bot, Handshake
from myrmidon.model.errors import MyrmidonError
from myrmidon.model.ids import IdSource, Micros
from myrmidon.model.task_request import Payload, Properties, Slice, TaskRequest
from myrmidon.model.task_result import Fault, Finish, GiveBack, Report, Start, TaskResult, TaskRun
from myrmidon.model.value import OutputValue
from myrmidon.scheduler import bots as fleet
from myrmidon.scheduler import (
    cancel,
    claim,
    explain,
    extend,
    maintenance,
    outages,
    report,
    rerun,
    resource_groups,
    submit,
    submit_job,
)
from myrmidon.scheduler.claim import Claimed
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.scheduler.policy import DEFAULT_RULES, SECOND, Rules
from myrmidon.scheduler.report import Reply
from myrmidon.scheduler.submit import Submitted
from myrmidon.scheduler.submit_job import JobSubmitted
from myrmidon.store.engine.db import Db
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import outbox, shared_numbers, stored_file, task_result, task_run
from myrmidon.store.tables.job import Job
from myrmidon.store.tables.resource_group import ResourceGroup
from tests.conftest import Clock

RULES = structs.replace(DEFAULT_RULES, secret_key=b"the servers' key")
LEASE_S = 300
TOKEN_KEY = b"the servers' other key"
_PROPERTIES = frozenset(Properties.__struct_fields__) - {"inputs", "outputs"}
_SLICE = frozenset(Slice.__struct_fields__)


# ---------------------------------------------------------------- documents


def a_slice(**given: Any) -> dict[str, Any]:
    """A slice of a command; ``os="Linux"`` and the like are wanted dimensions."""
    known = {key: given.pop(key) for key in list(given) if key in _PROPERTIES | _SLICE | {"files", "paths"}}
    files = {name: known.pop(key) for key, name in (("files", "inputs"), ("paths", "outputs")) if key in known}
    wanted = {"pool": ["default"], **{key: [value] for key, value in given.items()}, **known.pop("dimensions", {})}
    properties = {"command": ["true"], **files, **{key: known.pop(key) for key in list(known) if key in _PROPERTIES}}
    return {"properties": {"dimensions": wanted, **properties}, **known}


def a_task(**given: Any) -> dict[str, Any]:
    """A request for a command. ``slices`` may be given as lists of flat fields."""
    if "slices" in given:
        return {"name": "a task", **given, "slices": [a_slice(**piece) for piece in given["slices"]]}
    piece = {key: given.pop(key) for key in list(given) if key not in _REQUEST}
    return {"name": "a task", "slices": [a_slice(**piece)], **given}


_REQUEST = frozenset(TaskRequest.__struct_fields__) - {"slices"}


def a_function(
    inputs: Sequence[Any] = (), outputs: Sequence[str | dict[str, Any]] = (), **given: Any
) -> dict[str, Any]:
    """A request for a function; outputs are type strings, or whole objects."""
    raw = a_task(**{"name": "a function", **given})
    for piece in raw["slices"]:
        del piece["properties"]["command"]
    function = {"package_name": "pack", "func_name": given.get("name", "f")}
    returned = [{"type": one} if isinstance(one, str) else one for one in outputs]
    return {**raw, "function": function, "inputs": list(inputs), "outputs": returned}


def constant(content: bytes = b"\x01", of: str = "int64") -> dict[str, Any]:
    return {"kind": "constant", "type": of, "payload": {"inline": b64encode(content).decode()}}


def output_of(label: str, position: int = 0, of: str = "int64") -> dict[str, Any]:
    return {"kind": "output_of", "type": of, "label": label, "position": position}


def gathered(*parts: str, of: str = "int64", shape: bytes | None = None) -> dict[str, Any]:
    """An input of several outputs, named ``label`` or ``label:position``, all of one type."""
    named = [part.rpartition(":") if ":" in part else (part, ":", "0") for part in parts]
    listed = [{"label": label, "position": int(position), "type": of} for label, _, position in named]
    raw: dict[str, Any] = {"kind": "gathered", "type": f"List<{of}>", "parts": listed}
    return {**raw, "shape": {"inline": b64encode(shape).decode()}} if shape is not None else raw


def a_part(label: str, position: int = 0, of: str = "int64") -> dict[str, Any]:
    return {"label": label, "position": position, "type": of}


def shared(value_id: int, of: str = "int64") -> dict[str, Any]:
    return {"kind": "shared", "type": of, "shared_value_id": value_id}


def shared_output(of: str = "int64") -> dict[str, Any]:
    return {"type": of, "shared": True}


def inline(content: bytes = b"\x2a") -> Payload:
    return Payload(inline=content, size=len(content))


def returned(*contents: bytes, of: str = "int64") -> list[OutputValue]:
    """What a function's run hands in."""
    return [OutputValue(of, inline(content)) for content in contents]


def a_graph(edges: Mapping[str, Sequence[str]], nodes: Mapping[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """A document: labels with their parents; ``nodes`` changes single ones, other fields are the graph's or, for
    those that a graph does not have, those of every task."""
    top = {key: given.pop(key) for key in list(given) if key in _GRAPH}
    tasks = {label: a_node(parents, given, (nodes or {}).get(label, {})) for label, parents in edges.items()}
    return {"name": "a job", **top, "tasks": tasks}


_GRAPH = frozenset({"name", "failure_policy", "max_num_retries", "external_id", "metadata", "tags", "routing"})
_NODE = frozenset({"requires_policy", "hold", "reruns"})


def a_node(parents: Sequence[str], every: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """One node. Its task may be given whole (``task=``) or by fields."""
    fields = {**every, **own}
    node = {key: fields.pop(key) for key in list(fields) if key in _NODE}
    task = fields.pop("task", None) or a_task(**fields)
    return {"requires": list(parents), **node, "task": task}


# ---------------------------------------------------------------- the world


class World:
    """Everything a story needs. ``now`` is the only time there is."""

    def __init__(self, db: Db, clock: Clock, ids: IdSource, rules: Rules = RULES) -> None:
        self.db = db
        self.clock = clock
        self.ids = ids
        self.rules = rules
        self.removed = False
        """Whether the story has deleted something, so that the numbers of events have gaps."""
        self.sessions: dict[str, int] = {}
        self.nonces = count(1)
        self.bot_of: dict[tuple[int, int], str] = {}
        self.group: ResourceGroup = self.new_group("default")
        vars(db)["clock"] = clock

    @property
    def now(self) -> Micros:
        return self.clock.now

    def do(self, verb: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Run a verb in a transaction, with the time, ids and rules it asks for."""
        known = {"now": self.now, "ids": self.ids, "rules": self.rules}
        more = {key: known[key] for key in inspect.signature(verb).parameters.keys() & known.keys()}
        return self.db.write(lambda tx: verb(tx, *args, **{**more, **given}))

    def read(self, reader: Callable[..., Any], *args: Any, **given: Any) -> Any:
        return self.db.read(lambda tx: reader(tx, *args, **given))

    def store_file(self, digest: str, size: int = 7) -> str:
        """Note that the resource group has stored a file; its bytes do not matter here."""
        self.db.write(lambda tx: stored_file.insert(tx, digest, self.group.id, size=size, now=self.now))
        return digest

    def new_group(self, name: str) -> ResourceGroup:
        group: ResourceGroup = self.do(resource_groups.create_group, name)
        return group

    # -- time

    def advance(self, seconds: float) -> None:
        """Time passes, and the service is alive all the while."""
        self.clock.advance(seconds)

        def alive(tx: Any) -> None:
            if shared_numbers.lock(tx, "last_alive"):
                shared_numbers.put(tx, "last_alive", self.now)

        self.db.write(alive)

    def outage(self, seconds: float) -> None:
        """Time passes while no server runs, or the clock jumps."""
        self.clock.advance(seconds)

    def sweep(self) -> list[maintenance.Step]:
        """A heartbeat of the service, then all maintenance that is due."""
        self.db.write(lambda tx: outages.record_alive(tx, self.now, self.rules))
        return self.maintain()

    def carry(self) -> int:
        """Carry out what is left of decisions, and nothing else; the number of chunks."""
        return sum(step.n for step in self.maintain(timed=False) if step.kind == maintenance.CHUNKS)

    def maintain(self, *, timed: bool = True) -> list[maintenance.Step]:
        return maintenance.run_due(self.db, lambda: self.now, self.ids, self.rules, timed=timed)

    def lose(self, bot_id: str, seconds: float = LEASE_S) -> None:
        """A bot falls silent for the length of a lease; the others beat on."""
        self.advance(seconds)
        for other, session in self.sessions.items():
            if other != bot_id:
                self.do(bots.heartbeat, other, session)
        self.sweep()

    # -- the fleet

    def bot(
        self, bot_id: str, *, pool: str = "default", holds: Sequence[Claimed] = (), **given: Any
    ) -> fleet.HandshakeResult:
        """A bot shakes hands, each time as a new process; capabilities are ``os="Linux"`` or ``dimensions={...}``."""
        facts = {
            key: given.pop(key) for key in list(given) if key in Handshake.__struct_fields__ and key != "dimensions"
        }
        session = facts.pop("session", self.sessions.get(bot_id, 0) + 1)
        has = {"id": [bot_id], "pool": [pool], **{k: [v] for k, v in given.items() if k != "dimensions"}}
        has.update(given.get("dimensions", {}))
        kept = [(run.task_id, run.run) for run in holds]
        hello = Handshake(bot_id=bot_id, session=session, dimensions=has, holds=kept, **facts)
        welcome: fleet.HandshakeResult = self.do(fleet.handshake, hello)
        self.sessions[bot_id] = session
        return welcome

    def bots(self, *bot_ids: str, **given: Any) -> None:
        for bot_id in bot_ids:
            self.bot(bot_id, **given)

    def bot_row(self, bot_id: str) -> Bot:
        found: Bot | None = self.read(bots.read, bot_id)
        assert found is not None
        return found

    def poll(self, bot_id: str, n: int = 1, nonce: int | None = None) -> claim.Poll:
        chosen = next(self.nonces) if nonce is None else nonce
        return claim.Poll(bot_id=bot_id, session=self.sessions[bot_id], nonce=chosen, n=n, token_key=TOKEN_KEY)

    def claim(self, bot_id: str, n: int = 1, nonce: int | None = None) -> list[Claimed]:
        """What a bot gets when it asks for up to n tasks."""
        got: list[Claimed] = self.do(claim.claim, self.poll(bot_id, n, nonce))
        self.bot_of.update({(run.task_id, run.run): bot_id for run in got})
        return got

    def take(self, bot_id: str, *, started: bool = True) -> Claimed:
        """The one task that a bot gets, and begins."""
        [run] = self.claim(bot_id)
        if started:
            self.start(run)
        return run

    def report(self, *items: Report) -> list[Reply]:
        """All reports of one bot in one call."""
        bot_id = self.bot_of[(items[0].task_id, items[0].run)]
        replies: list[Reply] = self.do(report.report, bot_id, items, session=self.sessions[bot_id])
        return replies

    def start(self, run: Claimed) -> Reply:
        return self.report(Start(run.task_id, run.run, run.token))[0]

    def finish(self, run: Claimed, exit_code: int | None = 0, **given: Any) -> Reply:
        return self.report(finished(run, exit_code, **given))[0]

    def fail(self, run: Claimed) -> Reply:
        return self.finish(run, 1)

    def fault(self, run: Claimed, kind: str = "bot_error", **given: Any) -> Reply:
        return self.report(Fault(task_id=run.task_id, run=run.run, token=run.token, kind=kind, **given))[0]

    def give_back(self, run: Claimed) -> Reply:
        return self.report(GiveBack(run.task_id, run.run, run.token))[0]

    def beat(self, bot_id: str, *runs: Claimed) -> list[tuple[int, int]]:
        """A sign of life; which of the held runs must stop."""
        holds = [(run.task_id, run.run, run.token) for run in runs]
        stop: list[tuple[int, int]] = self.do(report.heartbeat, bot_id, holds, session=self.sessions[bot_id])
        return stop

    def do_one(self, bot_id: str, exit_code: int = 0, **given: Any) -> Claimed:
        """A bot takes one task, starts and ends it."""
        run = self.take(bot_id)
        self.finish(run, exit_code, **given)
        return run

    def work(self, bot_id: str, exit_code: int = 0, **given: Any) -> list[int]:
        """A bot does whatever it gets until there is nothing more; the tasks in the order they were done."""
        done: list[int] = []
        while runs := self.claim(bot_id, 256):
            self.report(*(finished(run, exit_code, **given) for run in runs))
            self.carry()
            done += [run.task_id for run in runs]
        return done

    # -- tasks and jobs

    def draft(self, raw: Any, **given: Any) -> submit.Draft:
        return submit.draft_task(raw, now=self.now, ids=self.ids, rules=self.rules, **given)

    def submit_all(self, *raws: Any, key: str | None = None, group: ResourceGroup | None = None) -> list[Any]:
        """One answer or error for each document."""
        drafts = [self.draft(raw, request_key=key) for raw in raws]
        answers: list[Any] = self.do(submit.submit, (group or self.group).id, drafts)
        return answers

    def submit_raw(self, raw: Any, **given: Any) -> Submitted:
        [answer] = self.submit_all(raw, **given)
        if isinstance(answer, MyrmidonError):
            raise answer
        assert isinstance(answer, Submitted)
        return answer

    def submit(self, *, key: str | None = None, group: ResourceGroup | None = None, **given: Any) -> int:
        """Submit a command; its id."""
        return self.submit_raw(a_task(**given), key=key, group=group).task_id

    def submit_many(self, n: int, **given: Any) -> list[int]:
        return [answer.task_id for answer in self.submit_all(*(a_task(**given) for _ in range(n)))]

    def function(self, inputs: Sequence[Any] = (), outputs: Sequence[Any] = (), **given: Any) -> Submitted:
        return self.submit_raw(a_function(inputs, outputs, **given))

    def job_raw(
        self, raw: Any, *, key: str | None = None, group: ResourceGroup | None = None, resume: bool = False
    ) -> Graph:
        draft = draft_job(raw, now=self.now, ids=self.ids, request_key=key, rules=self.rules, resume=resume)
        answer = submit_job.submit_job(
            self.db.write, (group or self.group).id, draft, now=self.now, ids=self.ids, rules=self.rules
        )
        return Graph(answer)

    def job(
        self,
        edges: Mapping[str, Sequence[str]],
        *,
        key: str | None = None,
        group: ResourceGroup | None = None,
        deadline_s: int | None = None,
        **given: Any,
    ) -> Graph:
        """Submit a graph of commands."""
        raw = a_graph(edges, **given)
        return self.job_raw({**raw, "deadline_s": deadline_s} if deadline_s else raw, key=key, group=group)

    def extend(self, job: Graph, edges: Mapping[str, Sequence[str]], **given: Any) -> extend.Extended:
        by = given.pop("by", None)
        more = {key: given.pop(key) for key in ("requires", "parts", "delegates") if key in given}
        raw = given.pop("raw", None) or {**a_graph(edges, **given), **more}
        added: extend.Extended = self.do(extend.extend, job.id, raw, group_id=self.group.id, by=by)
        job.ids.update(added.task_ids)
        return added

    def cancel(self, *task_ids: int, **given: Any) -> list[cancel.Cancelled]:
        answers: list[cancel.Cancelled] = self.do(cancel.cancel, task_ids, **given)
        return answers

    def rerun(self, task_id: int, **given: Any) -> rerun.Rerun:
        answer: rerun.Rerun = self.do(rerun.rerun, task_id, **given)
        return answer

    # -- looking

    def task(self, task_id: int) -> TaskResult:
        found: TaskResult = self.read(task_result.read, [task_id])[task_id]
        return found

    def state(self, task_id: int) -> str:
        return str(self.task(task_id).state)

    def states(self, job: Graph) -> dict[str, str]:
        found = self.read(task_result.read, sorted(job.ids.values()))
        return {label: str(found[task_id].state) for label, task_id in job.ids.items()}

    def exists(self, task_id: int) -> bool:
        return bool(self.read(task_result.read, [task_id]))

    def runs(self, task_id: int) -> list[TaskRun]:
        found: list[TaskRun] = self.read(task_run.read, [task_id])
        return found

    def last_run(self, task_id: int) -> TaskRun:
        return self.runs(task_id)[-1]

    def job_row(self, job: Graph | int) -> Job:
        job_id = job.id if isinstance(job, Graph) else job
        found: Job = self.read(jobs.read, [job_id])[job_id]
        return found

    def job_state(self, job: Graph | int) -> str:
        return str(self.job_row(job).state)

    def story(self, subject: int) -> list[str]:
        """The states that a task or job has told."""
        return [event.state for event in self.read(outbox.history, subject)]

    def why(self, task_id: int) -> explain.Explanation:
        found: explain.Explanation = self.read(explain.explain, task_id)
        return found

    def count(self, table: str) -> int:
        return int(self.db.read(lambda tx: tx.all(f"SELECT COUNT(*) FROM {table}"))[0][0])

    def column(self, sql: str, **params: Any) -> list[Any]:
        return [row[0] for row in self.db.read(lambda tx: tx.all(sql, **params))]


class Graph:
    """A submitted job: ``job["a"]`` is the id of the task with that label."""

    def __init__(self, answer: JobSubmitted) -> None:
        self.answer = answer
        self.id = answer.job_id
        self.ids = dict(answer.task_ids)

    def __getitem__(self, label: str) -> int:
        return self.ids[label]

    def label(self, task_id: int) -> str:
        return next(label for label, found in self.ids.items() if found == task_id)


def finished(run: Claimed, exit_code: int | None = 0, **given: Any) -> Finish:
    """The report that a run has ended."""
    duration = given.pop("duration", 1.5)
    return Finish(task_id=run.task_id, run=run.run, token=run.token, exit_code=exit_code, duration=duration, **given)


def seconds(amount: float) -> Micros:
    return round(amount * SECOND)


def in_doubt(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb as it is run again after a commit of which nobody knows whether it happened."""

    @wraps(verb)
    def again(tx: Any, *args: Any, **given: Any) -> Any:
        tx.attempt = 2
        return verb(tx, *args, **given)

    return again


def blind_once(monkeypatch: Any, module: Any, name: str, answer: Any) -> None:
    """The first look finds nothing, as when two servers look at the same time."""
    real = getattr(module, name)
    blind = [answer]
    monkeypatch.setattr(module, name, lambda *args, **given: blind.pop() if blind else real(*args, **given))
