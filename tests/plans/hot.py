"""HOT: what happens for every task or all the time. Whatever statement any of these runs must have a good plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from myrmidon.model.task_request import Payload
from myrmidon.model.value import GroupOwner, JobOwner
from myrmidon.scheduler import (
    cancel,
    claim,
    extend,
    maintenance,
    report,
    rerun,
    resource_groups,
    shared_values,
    submit,
    submit_job,
)
from myrmidon.scheduler.claim import Poll
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.store.tables import (
    activity,
    bot_event,
    chunked_work,
    dedupe,
    delegate,
    edge,
    job_code,
    log_times,
    outbox,
    request_key,
    session,
    stored_file,
    task_queues,
    task_request,
    task_result,
    task_run,
    task_to_run,
)
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import log as logs
from myrmidon.store.tables import value as values
from myrmidon.store.views import job_values, listings, next_due, run_details, run_files, task_search
from myrmidon.store.views.listings import BotSearch
from myrmidon.store.views.task_search import TaskSearch
from tests.world import (
    INT,
    KEY,
    SECOND,
    World,
    a_function,
    a_node,
    a_task,
    constant,
    fault,
    finish,
    gathered,
    output_of,
    start,
)

Facts = dict[str, Any]
Call = Callable[[Any, World, Facts], Any]


def prepare(w: World) -> Facts:
    """Two hundred tasks in every state, in a handful of queues of two groups."""
    other = w.do(resource_groups.create_group, "other").id
    w.bot("b1"), w.bot("b2")
    mine = w.group
    idem = {"idempotent": True}
    w.submit(*[a_task(tags=["k:v"], properties=idem) for _ in range(2)])
    w.submit(*[a_task() for _ in range(40)])
    w.run_all()
    job = w.job(
        {
            "x": a_node(task=a_function(constant())),
            "y": a_node(task=a_function(output_of("x"), shared=True)),
            **{f"p{i}": a_node("c79", task=a_function(output_of("x"))) for i in range(3)},
            "z": a_node(task=a_function(gathered("x", "p0", "p1", "p2"))),
            **{f"c{i}": a_node("x") for i in range(80)},
            **{f"d{i}": a_node("y") for i in range(20)},
        },
        key="job key",
    )
    x = w.running("b1")[0]
    w.report(finish(x, b"\x07"))
    done = w.claim("b1", 60)
    w.report(*(finish(c) if c.task_id != job.task_ids["y"] else finish(c, b"\x08") for c in done))
    running = w.running("b1", 4)
    w.submit(*[a_task(tags=["k:v"]) for _ in range(80)])
    w.submit(a_task(), key="task key")
    w.submit(*[a_task(dims={"os": ["Debian"]}, slice={"expiration_s": 60}) for _ in range(5)])
    w.group = other
    w.submit(*[a_task() for _ in range(5)])
    w.group = mine
    for stream in (0, 1):
        for offset in range(0, 500, 100):
            item = log_bytes(running[0], stream, offset)
            w.db.write(lambda tx, item=item: report.append_log(tx, item))
    w.db.write(lambda tx: outbox.assign_positions(tx, 150))
    value = w.do(shared_values.create_value, GroupOwner(w.group), INT, Payload(inline=b"\x05", size=1)).id
    return {"job": job.job_id, "ids": job.task_ids, "x": x, "running": running, "value": value}


def _results(tx: Any, w: World, f: Facts) -> Any:
    """The results of tasks, one value, and the files of a run."""
    ids = sorted(f["ids"].values())[:50]
    return (
        job_values.ends(tx, ids),
        job_values.outputs(tx, ids),
        job_values.read(tx, f["value"]),
        run_files.needs(tx, ids[0], "0" * 64),
    )


def _files(tx: Any, w: World, f: Facts) -> Any:
    """What uploads, references and the collection of unused files ask."""
    digests = [f"{n:064x}" for n in range(3)]
    stored_file.insert(tx, digests[0], w.group, size=1, now=w.now)
    stored_file.renew(tx, digests, w.group, now=w.now)
    stored_file.renew_for_all(tx, digests, now=w.now)
    stored_file.bytes_of_group(tx, w.group)
    stored_file.unused(tx, "00", before=w.now, n=10)
    return stored_file.delete_unused(tx, digests, before=w.now)


def _newest(w: World, n: int) -> int:
    return int(w.value("SELECT id FROM task_results ORDER BY id DESC LIMIT 1 OFFSET :n", n=n))


def _search(**more: Any) -> TaskSearch:
    return TaskSearch(terms=[["k:v"], ["pool:default"]], states=("READY", "RUNNING"), **more)


def _counts(tx: Any, w: World, f: Facts) -> Any:
    return [
        task_search.count_by_state(tx, search, limit=500)
        for search in (_search(), TaskSearch(states=("READY",)), TaskSearch(group_id=w.group))
    ]


def _sorted(tx: Any, w: World, f: Facts) -> Any:
    search = _search(low=_newest(w, 2000))
    return task_search.can_sort(tx, search), task_search.sorted_page(tx, search, "completed_at", n=50)


def _of_bot(tx: Any, w: World, f: Facts) -> Any:
    ids = sorted(f["ids"].values())[:50]
    return (
        run_details.children(tx, ids),
        run_details.runs_of_bot(tx, "b1", low=0, high=task_search.MAX_ID, n=50),
        run_details.bots_of_runs(tx, ids),
        run_details.stats(tx, ids),
        run_details.ends(tx, ids),
        bot_event.read_full(tx, "b1", low=0, high=task_search.MAX_ID, n=50),
        listings.search_bots(tx, BotSearch(terms=[["os:Linux"]], busy=True, dead=False), after="", n=50),
    )


def log_bytes(run: Any, stream: int, offset: int) -> report.LogBytes:
    content = b"x" * 100
    return report.LogBytes(
        task_id=run.task_id, run=run.run, token=run.token, stream=stream, offset=offset, content=content
    )


def _claim(n: int) -> Call:
    def call(tx: Any, w: World, f: Facts) -> Any:
        got = claim.claim(tx, Poll(bot_id="b2", session=1, nonce=99, n=n, token_key=KEY), now=w.now, ids=w.ids)
        assert len(got) == n
        return got

    return call


def _later(seconds: float, kind: str) -> Call:
    return lambda tx, w, f: maintenance.run_step(tx, kind, now=w.now + round(seconds * SECOND), ids=w.ids)


def _submit(raw: Any, key: str) -> Call:
    return lambda tx, w, f: submit.submit(tx, w.group, [w.draft(raw, key=key)], now=w.now, ids=w.ids)


def _submit_job(tx: Any, w: World, f: Facts) -> Any:
    raw = {"name": "j", "tasks": {"x": a_node(), "y": a_node("x"), "z": a_node(task=a_function(constant()))}}
    draft = draft_job(raw, now=w.now, ids=w.ids, request_key="new key")
    return submit_job.submit_job(lambda fn: fn(tx), w.group, draft, now=w.now, ids=w.ids)


def _report(*make: Callable[..., Any]) -> Call:
    def call(tx: Any, w: World, f: Facts) -> Any:
        items = [one(run) for one, run in zip(make, f["running"], strict=False)]
        replies = report.report(tx, "b1", items, session=1, now=w.now, ids=w.ids)
        assert all(reply.outcome in ("accepted", "repeated") for reply in replies)

    return call


def _extend(tx: Any, w: World, f: Facts) -> Any:
    raw = {"name": "more", "tasks": {"new": a_node("x"), "newer": a_node("c1", "new")}}
    return extend.extend(tx, f["job"], raw, group_id=w.group, now=w.now, ids=w.ids)


def _values(tx: Any, w: World, f: Facts) -> None:
    """What claims, reports, reruns and extensions ask about values."""
    ids = sorted(f["ids"].values())[:50]
    value_id = min(values.outputs(tx, ids).values())[0][1]
    values.inputs(tx, ids)
    values.sizes_of_inputs(tx, ids)
    values.gathered_inputs(tx, ids)
    values.part_values(tx, ids)
    values.lacks_input(tx, f["ids"]["z"])
    values.write(tx, {value_id: Payload(inline=b"1", size=1), value_id + 1: Payload(inline=b"1", size=1)})
    edge.waiting_children(tx, f["ids"]["x"])
    delegate.of_tasks(tx, ids)
    delegate.delegated_by(tx, f["ids"]["x"])
    job_code.replaced(tx, [f["job"]])
    job_code.of_job(tx, f["job"])
    task_run.set_progress(tx, [(run.task_id, run.run, 0.5) for run in f["running"]], now=w.now)


def _link(tx: Any, w: World, f: Facts) -> None:
    """What a report of a shared output changes in its readers."""
    producer = f["ids"]["x"]
    ((_, value_id, _, _),) = values.outputs(tx, [producer])[producer]
    values.link_output(tx, producer, 0, f["value"])
    values.link_consumers(tx, producer, value_id, f["value"])


def _heartbeat(tx: Any, w: World, f: Facts) -> Any:
    held = [(run.task_id, run.run, run.token) for run in f["running"]]
    return report.heartbeat(tx, "b1", held, session=1, now=w.now + SECOND)


def _feed(tx: Any, w: World, f: Facts) -> Any:
    return task_result.add_satisfied_parents(tx, sorted(f["ids"].values())[:50], 0)


def _references(tx: Any, w: World, f: Facts) -> Any:
    shared_values.ref_value(tx, JobOwner(w.group, f["job"]), f["value"])
    return shared_values.unref_value(tx, GroupOwner(w.group), f["value"])


def _queue(w: World) -> int:
    return int(w.value("SELECT queue FROM task_to_run LIMIT 1"))


def _read_log(tx: Any, w: World, f: Facts) -> Any:
    run = f["running"][0]
    return logs.read(tx, run.task_id, run.run, stream=0, start=150, length=200)


HOT: dict[str, Call] = {
    "claim one": _claim(1),
    "claim sixteen": _claim(16),
    "claim many": _claim(256),
    "take of one queue": lambda tx, w, f: task_to_run.take(tx, _queue(w), 16, bot_id="b2", now=w.now),
    "look into one queue": lambda tx, w, f: task_to_run.first(tx, _queue(w), 16, bot_id="b2", now=w.now),
    "claim again": lambda tx, w, f: claim.claim(
        tx, Poll(bot_id="b1", session=1, nonce=w.nonces["b1"], n=1, token_key=KEY), now=w.now, ids=w.ids
    ),
    "submit a task": _submit(a_task(), "a new key"),
    "submit a known task": _submit(a_task(), "task key"),
    "submit an idempotent task": _submit(a_task(properties={"idempotent": True}), "another key"),
    "submit a function": _submit(a_function(constant()), "function key"),
    "submit a job": _submit_job,
    "report starts": _report(start, start),
    "report ends": _report(finish, lambda c: finish(c, exit_code=1), fault),
    "heartbeat": _heartbeat,
    "signs of life of idle bots": lambda tx, w, f: bots.heartbeat_many(
        tx, [("b1", 1, w.now + 1), ("b2", 1, w.now + 1)]
    ),
    "which queues have work": lambda tx, w, f: task_to_run.not_empty(tx, [_queue(w), 7]),
    "where tasks wait": lambda tx, w, f: task_to_run.queues_of(tx, sorted(f["ids"].values())[:50]),
    "how deep a queue is": lambda tx, w, f: task_to_run.depth(tx, _queue(w), 100),
    "link the readers of a shared output": _link,
    "which queues a bot serves": lambda tx, w, f: task_queues.kinds_of_queues(tx, "b1"),
    "who serves a queue": lambda tx, w, f: task_queues.bots_of_queue(tx, _queue(w)),
    "what a poll asks of its bot": lambda tx, w, f: (bots.read(tx, "b1"), bots.terminating_session(tx, "b1")),
    "whether all events have numbers": lambda tx, w, f: outbox.all_have_positions(tx),
    "how many tasks stand": lambda tx, w, f: task_result.groups_and_states(tx, sorted(f["ids"].values())[:50]),
    "whose tasks they are": lambda tx, w, f: task_result.groups_of(tx, sorted(f["ids"].values())[:50]),
    "check log": lambda tx, w, f: report.check_log(tx, "b1", log_bytes(f["running"][0], 0, 500)),
    "append log": lambda tx, w, f: report.append_log(tx, log_bytes(f["running"][0], 0, 500)),
    "read log": _read_log,
    "feed children": lambda tx, w, f: edge.unsatisfied(tx, f["ids"]["y"], after=0, n=100),
    "feed children of several": lambda tx, w, f: edge.unsatisfied_of(tx, sorted(f["ids"].values())[:10], 100),
    "feed": _feed,
    "extend": _extend,
    "values": _values,
    "cancel": lambda tx, w, f: cancel.cancel(tx, sorted(f["ids"].values())[-5:], now=w.now, ids=w.ids),
    "cancel a job": lambda tx, w, f: cancel.cancel_job(tx, f["job"], now=w.now, ids=w.ids),
    "cancel by tag": lambda tx, w, f: task_request.tagged(tx, ["k:v"], after=0, until=1 << 62, n=1000),
    "cancel by a pool": lambda tx, w, f: task_request.tagged(tx, ["pool:none"], after=0, until=1 << 62, n=1000),
    "rerun": lambda tx, w, f: rerun.rerun(tx, f["ids"]["c1"], now=w.now, ids=w.ids, force=True),
    "what is due": lambda tx, w, f: next_due.first(tx),
    "sweep runs": _later(301, "runs"),
    "sweep slices": _later(61, "slices"),
    "sweep tasks": _later(8 * 86_400, "tasks"),
    "sweep jobs": _later(40 * 86_400, "jobs"),
    "sweep bots": _later(601, "bots"),
    "sweep nothing": lambda tx, w, f: [
        maintenance.run_step(tx, kind, now=w.now - SECOND, ids=w.ids) for kind in maintenance.TIMED
    ],
    "forget": lambda tx, w, f: maintenance.run_step(tx, "old_rows", now=w.now, ids=w.ids),
    "who has chunked work": lambda tx, w, f: chunked_work.turns(tx),
    "number events": lambda tx, w, f: outbox.assign_positions(tx, 1000),
    "read events": lambda tx, w, f: outbox.after(tx, 5000, 100),
    "which events to count": lambda tx, w, f: activity.uncounted(tx, 1000),
    "count events": lambda tx, w, f: activity.count(tx, 5000, 5100),
    "add to the counts": lambda tx, w, f: activity.add(tx, [(0, w.group, "SUCCEEDED", 1)], 0, 100),
    "read a chart": lambda tx, w, f: activity.series(tx, group_id=None, start=10**15, step=60_000_000),
    "events of bots": lambda tx, w, f: bot_event.since(tx, w.now, 100),
    "times of output": lambda tx, w, f: log_times.page(tx, f["ids"]["x"], 1, after=0, n=100),
    "a session": lambda tx, w, f: session.read(tx, "none"),
    "tell a story": lambda tx, w, f: outbox.history(tx, f["ids"]["x"]),
    "capacity": lambda tx, w, f: task_queues.served(
        tx, [row[0] for row in w.all("SELECT queue FROM task_requests LIMIT 3")]
    ),
    "which bots are left": lambda tx, w, f: task_queues.count_serving(tx, [_queue(w), 7]),
    "new queues": lambda tx, w, f: task_queues.created_after(tx, queue=0, n=1000),
    "a queue without bots": lambda tx, w, f: task_to_run.unserved(tx, _queue(w), after=0, n=1000),
    "request keys": lambda tx, w, f: request_key.read(tx, w.group, ["task key", "job key", "no key"]),
    "triggered tasks": lambda tx, w, f: task_request.children(tx, f["ids"]["x"]),
    "references": _references,
    "a page of tasks with tags and states": lambda tx, w, f: task_search.page(tx, _search(), n=100),
    "a page of tasks by state": lambda tx, w, f: task_search.page(tx, TaskSearch(states=("READY",)), n=100),
    "a page of tasks with one of several tags": lambda tx, w, f: task_search.page(
        tx, TaskSearch(terms=[["k:v", "a:b"]]), n=9
    ),
    "count tasks": _counts,
    "what a bot ran and went through": _of_bot,
    "results": _results,
    "files": _files,
}


NAMED = {
    " ".join(text.split())
    for text in (
        task_to_run.HEADS,
        task_to_run.FIRST,
        task_to_run.TAKE,
        task_to_run.TAKE_THESE,
        task_to_run.EXPIRED,
        task_result.LOCK,
        task_result.ADD_SATISFIED_PARENTS,
        task_result.DUE,
        task_run.DUE,
        task_run.READ,
        task_run.LIVE_OF_BOT,
        task_run.LIVE_TOKENS,
        dedupe.FIND,
        jobs.LOCK,
        edge.UNSATISFIED,
        edge.UNSATISFIED_OF,
        jobs.DUE,
        bots.HEARTBEAT,
        bots.HEARTBEAT_AND_IDLE,
        bots.HEARTBEAT_IF_ALIVE,
        bots.DUE,
        bots.POSTPONE_CHECKS,
        next_due.FIRST,
        logs.BEFORE,
        logs.OVERLAPPING,
        logs.SIZE_BEFORE,
        logs.SIZES_FROM,
        outbox.WITHOUT_POSITION,
        outbox.AFTER,
        task_queues.CREATED_AFTER,
        task_queues.SERVED,
        task_queues.COUNT_SERVING,
        run_details.ENDS,
        job_values.ENDS,
        job_values.OUTPUTS,
        stored_file.DELETE_UNUSED,
        request_key.READ,
    )
}
"""Statements that HOT must have reached: a verb that no longer runs one of them has to be looked at again."""
