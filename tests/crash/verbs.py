"""Every verb that writes, with the state it starts from: what the crash tests break off at every statement.

``call`` is made by a server that may die, and again by one that did not. ``tidy`` is what time does later to
what a dead server left behind; it runs before the outcomes of two runs are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import GiveBack, PerformanceStats
from myrmidon.model.value import GroupOwner, JobOwner
from myrmidon.scheduler import (
    bot_end,
    bot_identity,
    bots,
    cancel,
    extend,
    hold,
    job_codes,
    maintenance,
    outages,
    report,
    rerun,
    resource_groups,
    retention,
    shared_values,
    terminate,
)
from myrmidon.store.tables import job as jobs
from myrmidon.store.tables import outbox, sink, stored_file
from tests.world import (
    INT,
    SECOND,
    World,
    a_function,
    a_node,
    a_part,
    a_task,
    constant,
    fault,
    finish,
    gathered,
    output_of,
    start,
)

Facts = dict[str, Any]
DAY = 86_400 * SECOND


def nothing(w: World) -> Facts:
    return {}


def leave(w: World, facts: Facts) -> None:
    """Nothing to tidy up."""


@dataclass(frozen=True)
class Verb:
    name: str
    prepare: Callable[[World], Facts]
    call: Callable[[World, Facts], Any]
    tidy: Callable[[World, Facts], Any] = leave
    chunk: int = 1000
    repeatable: bool = True
    """Whether the same call again means the same thing; a new value is a new one each time."""
    told_again: str = ""
    """The table in which a client that calls twice may be seen twice."""


VERBS: list[Verb] = []


def verb(name: str, prepare: Callable[[World], Facts] = nothing, **given: Any) -> Callable[[Any], Any]:
    def register(call: Any) -> Any:
        VERBS.append(Verb(name, prepare, call, **given))
        return call

    return register


# --- States to start from ---


def a_bot(w: World) -> Facts:
    w.bot("b1")
    return {}


def a_ready_task(w: World) -> Facts:
    w.bot("b1"), w.bot("b2")
    return {"task": w.submit(a_task(secret_bytes="c2VjcmV0", tags=["k:v"]))[0]}


def a_running_task(w: World) -> Facts:
    facts = a_ready_task(w)
    return {**facts, "run": w.running("b1")[0]}


def a_claimed_task(w: World) -> Facts:
    facts = a_ready_task(w)
    return {**facts, "run": w.claim("b1")[0]}


GRAPH = {
    "x": a_node(task=a_function(constant())),
    "y": a_node(task=a_function(constant(b"\x02"))),
    "sum": a_node(task=a_function(output_of("x"), output_of("y"), shared=True)),
    "last": a_node("sum", task=a_task()),
}


def a_job(w: World) -> Facts:
    w.bot("b1")
    job = w.job(GRAPH)
    return {"job": job.job_id, "ids": job.task_ids}


def a_job_under_way(w: World) -> Facts:
    facts = a_job(w)
    x, y = w.running("b1", 2)
    w.report(finish(x, b"\x07"))
    return {**facts, "y": y}


def a_job_with_a_shared_value(w: World) -> Facts:
    facts = a_job_under_way(w)
    w.report(finish(facts["y"], b"\x08"))
    return {**facts, "sum": w.running("b1")[0]}


def a_finished_job(w: World) -> Facts:
    facts = a_job_with_a_shared_value(w)
    w.report(finish(facts["sum"], b"\x09"))
    w.run_all()
    assert w.job_state(facts["job"]) == "SUCCEEDED"
    return facts


def a_failed_job(w: World, **given: Any) -> Facts:
    w.bot("b1")
    job = w.job({"x": a_node(), "y": a_node("x"), "z": a_node("x")}, **given)
    w.report(finish(w.claim("b1")[0], exit_code=1))
    return {"job": job.job_id, "ids": job.task_ids}


def a_job_to_retry(w: World) -> Facts:
    facts = a_failed_job(w, max_num_retries=2)
    assert w.job_state(facts["job"]) == "PENDING_RETRY"
    return facts


def a_value(w: World) -> Facts:
    job = w.job({"x": a_node()})
    group, owner = GroupOwner(w.group), JobOwner(w.group, job.job_id)
    return {"group": group, "owner": owner, "value": w.do(shared_values.create_value, group, INT, _payload()).id}


def _payload() -> Payload:
    return Payload(inline=b"\x05", size=1)


# --- Submitting ---


@verb("submit of a task into a new queue", a_bot)
def _(w: World, f: Facts) -> Any:
    return w.submit(a_task(secret_bytes="c2VjcmV0", tags=["k:v"], external_id="name"), key="k")


@verb("submit of a lone function", a_bot)
def _(w: World, f: Facts) -> Any:
    return w.submit(a_function(constant()), key="k")


@verb("submit of a task that a running one triggers", a_running_task)
def _(w: World, f: Facts) -> Any:
    from myrmidon.model.ids import show_run

    return w.submit(a_task(parent=show_run(f["run"].task_id, f["run"].run)), key="k")


def _donor(w: World) -> Facts:
    w.bot("b1")
    w.submit(a_task(properties={"idempotent": True}))
    w.run_all()
    return {}


@verb("submit of a task that an equal one answers", _donor)
def _(w: World, f: Facts) -> Any:
    return w.submit(a_task(properties={"idempotent": True}), key="k")


@verb("submit of a job with values", a_bot)
def _(w: World, f: Facts) -> Any:
    return w.job(GRAPH, key="k")


def _drop_staged(w: World, f: Facts) -> None:
    w.now += 3601 * SECOND
    while w.do(maintenance.run_step, "jobs").n:
        pass
    w.carry_all()


def _first_revision(w: World) -> Facts:
    """A job under an external id, of which one call has succeeded and another one runs, and its next revision."""
    w.bot("b1")

    def graph(identity: str) -> dict[str, Any]:
        nodes = {"x": w.call_of(constant()), "y": w.call_of(constant(b"\x02"), identity=identity)}
        return {**nodes, "sum": w.call_of(output_of("x"), output_of("y"), identity="sum")}

    w.resumed(graph("y"))
    x, y = w.running("b1", 2)
    w.report(finish(x, b"\x07"))
    return {"y": y, "changed": graph("edited")}


@verb("resumed submit that supersedes a job", _first_revision)
def _resume(w: World, f: Facts) -> Any:
    return w.resumed(f["changed"])


@verb("resumed submit that is staged in parts", _first_revision, chunk=2, tidy=_drop_staged)
def _resume_in_parts(w: World, f: Facts) -> Any:
    return w.resumed(f["changed"])


def _a_queue_of_functions(w: World) -> Facts:
    """Queues stay when what was staged is dropped: those of the job exist before it."""
    w.job({"f": a_node(task=a_function())})
    return a_ready_task(w)


@verb("submit of a job that is staged in parts", _a_queue_of_functions, chunk=2, tidy=_drop_staged)
def _(w: World, f: Facts) -> Any:
    return w.job(GRAPH, key="k")


@verb("extend", a_job_under_way)
def _(w: World, f: Facts) -> Any:
    more = {"more": a_node("last"), "other": a_node(task=a_function(output_of("x")))}
    return w.do(extend.extend, f["job"], {"name": "more", "tasks": more}, group_id=w.group)


def a_function_that_maps(w: World) -> Facts:
    w.bot("b1")
    tasks = {
        "map": a_node(task=a_function()),
        "join": a_node("map", task=a_function(gathered())),
        "reader": a_node(task=a_function(output_of("map"))),
    }
    job = w.job(tasks)
    return {"job": job.job_id, "ids": job.task_ids, "run": w.running("b1")[0]}


@verb("extend with parts and a delegate", a_function_that_maps)
def _(w: World, f: Facts) -> Any:
    more = {"name": "more", "tasks": {"m0": a_node(task=a_function()), "d": a_node(task=a_function())}}
    growth = {"parts": {"join": {"0": [a_part("m0")]}}, "delegates": {"d": "map"}}
    return w.do(extend.extend, f["job"], {**more, **growth}, group_id=w.group, by=f["run"].task_id)


def a_failed_function_with_code(w: World) -> Facts:
    w.bot("b1")
    for code in ("ab" * 32, "cd" * 32):
        w.do(lambda tx, now, ids, code=code: stored_file.insert(tx, code, w.group, size=7, now=now))
    task = a_function(constant())
    task["function"]["code"] = "ab" * 32
    job = w.job({"x": a_node(task=task)})
    w.report(finish(w.claim("b1")[0], exit_code=1))
    return {"job": job.job_id, "ids": job.task_ids}


@verb("replacing code", a_failed_function_with_code)
def _(w: World, f: Facts) -> Any:
    def replace(tx: Any) -> None:
        job_codes.replace_code(tx, jobs.read(tx, [f["job"]])[f["job"]], {"ab" * 32: "cd" * 32}, now=w.now)

    return w.db.write(replace)


@verb("seal", a_job)
def _(w: World, f: Facts) -> Any:
    return w.do(extend.seal, f["job"], group_id=w.group)


# --- Running ---


@verb("claim", a_job)
def _(w: World, f: Facts) -> Any:
    return w.claim("b1", 2, nonce=9)


@verb("report of a start", a_claimed_task)
def _(w: World, f: Facts) -> Any:
    return w.report(start(f["run"]))


@verb("report of a success", a_running_task)
def _(w: World, f: Facts) -> Any:
    return w.report(finish(f["run"], stats=PerformanceStats(bot_overhead=0.5), stdout_size=7))


@verb("report of a failure", a_running_task)
def _(w: World, f: Facts) -> Any:
    return w.report(finish(f["run"], exit_code=1))


@verb("report of a fault", a_running_task)
def _(w: World, f: Facts) -> Any:
    return w.report(fault(f["run"]))


@verb("report of a run given back", a_claimed_task)
def _(w: World, f: Facts) -> Any:
    return w.report(GiveBack(f["run"].task_id, f["run"].run, f["run"].token))


@verb("finish that feeds a child", a_job_under_way)
def _(w: World, f: Facts) -> Any:
    return w.report(finish(f["y"], b"\x08"))


@verb("finish that makes a shared value", a_job_with_a_shared_value)
def _(w: World, f: Facts) -> Any:
    return w.report(finish(f["sum"], b"\x09"))


def _fails_fast(w: World) -> Facts:
    w.bot("b1")
    job = w.job({"x": a_node(), "y": a_node(), "z": a_node("y")}, failure_policy="fail-fast")
    return {"job": job.job_id, "run": w.running("b1")[0]}


@verb("finish that ends its job at the first failure", _fails_fast)
def _(w: World, f: Facts) -> Any:
    return w.report(finish(f["run"], exit_code=1))


def _wide(w: World) -> Facts:
    w.bot("b1")
    job = w.job({"x": a_node(), **{f"c{i}": a_node("x") for i in range(5)}})
    return {"job": job.job_id, "run": w.running("b1")[0]}


@verb("finish that feeds more children than fit, carried on", _wide, chunk=2)
def _(w: World, f: Facts) -> Any:
    w.report(finish(f["run"]))
    return w.carry_all()


@verb("heartbeat", a_running_task)
def _(w: World, f: Facts) -> Any:
    w.now += 20 * SECOND
    held = [(f["run"].task_id, f["run"].run, f["run"].token)]
    return w.db.write(lambda tx: report.heartbeat(tx, "b1", held, session=1, now=w.now))


@verb("log bytes", a_running_task)
def _(w: World, f: Facts) -> Any:
    run = f["run"]
    item = report.LogBytes(task_id=run.task_id, run=run.run, token=run.token, stream=0, offset=0, content=b"hello")
    return w.db.write(lambda tx: report.append_log(tx, item))


# --- Running again, holding, cancelling ---


@verb("rerun with cascade", a_finished_job)
def _(w: World, f: Facts) -> Any:
    return w.do(rerun.rerun, f["ids"]["x"], force=True, cascade=True)


@verb("rerun of what failed of a job", a_failed_job)
def _(w: World, f: Facts) -> Any:
    w.do(rerun.rerun_job, f["job"])
    return w.carry_all()


@verb("rerun of all of a job", a_finished_job, chunk=3)
def _(w: World, f: Facts) -> Any:
    if w.job_state(f["job"]) == "SUCCEEDED":
        w.do(rerun.rerun_job, f["job"], full=True)
    return w.carry_all()


@verb("hold", a_job)
def _(w: World, f: Facts) -> Any:
    return w.do(hold.hold, f["ids"]["x"])


def _held(w: World) -> Facts:
    facts = a_job(w)
    w.do(hold.hold, facts["ids"]["x"])
    return facts


@verb("release", _held)
def _(w: World, f: Facts) -> Any:
    return w.do(hold.release, f["ids"]["x"])


@verb("cancel of a ready task", a_ready_task)
def _(w: World, f: Facts) -> Any:
    return w.do(cancel.cancel, [f["task"]])


@verb("cancel of a running task", a_running_task)
def _(w: World, f: Facts) -> Any:
    return w.do(cancel.cancel, [f["task"]])


@verb("cancel_job", a_job_under_way)
def _(w: World, f: Facts) -> Any:
    return w.do(cancel.cancel_job, f["job"])


@verb("cancel_job in parts", a_job_under_way, chunk=2)
def _(w: World, f: Facts) -> Any:
    w.do(cancel.cancel_job, f["job"])
    return w.carry_all()


def _tagged(w: World) -> Facts:
    return {"tasks": w.submit(*[a_task(tags=["k:v"])] * 3)}


@verb("cancel of everything with a tag", _tagged, chunk=2, tidy=lambda w, f: w.carry_all())
def _(w: World, f: Facts) -> Any:
    w.do(cancel.cancel_tagged, ["k:v"], group_id=w.group)
    return w.carry_all()


# --- The fleet ---


@verb("handshake of a new bot", _tagged, told_again="bot_events")
def _(w: World, f: Facts) -> Any:
    return w.bot("b1")


@verb("handshake that ends a run", a_running_task, told_again="bot_events")
def _(w: World, f: Facts) -> Any:
    return w.bot("b1", session=2)


def _impatient(w: World) -> Facts:
    w.bot("b1")
    return {"tasks": w.submit(*[a_task(slice={"wait_for_capacity": False})] * 3)}


@verb("quarantine of the last bot, carried on", _impatient, chunk=2, told_again="bot_events")
def _(w: World, f: Facts) -> Any:
    w.do(bots.quarantine, "b1", "it smokes")
    return w.carry_all()


@verb("drain_bot", a_ready_task, told_again="bot_events")
def _(w: World, f: Facts) -> Any:
    return w.do(bots.drain_bot, "b1", True)


@verb("change_bot that leaves its queues", a_ready_task, told_again="bot_events")
def _(w: World, f: Facts) -> Any:
    has = {"id": ["b1"], "pool": ["elsewhere"]}
    return w.do(bots.change_bot, bots.BotChange(bot_id="b1", session=1, dimensions=has, maintenance="moving"))


@verb("order_end", a_ready_task)
def _(w: World, f: Facts) -> Any:
    """The id is made at the context, once for all tries of a call."""
    made = w.ids.next(w.now)
    return w.do(terminate.terminate_bot, "b1", w.group, task_id=made, reason="old", authenticated="ann")


@verb("delete_bot", a_ready_task)
def _(w: World, f: Facts) -> Any:
    return w.do(bot_end.delete_bot, "b1")


@verb("goodbye of a bot", a_running_task)
def _(w: World, f: Facts) -> Any:
    return w.do(bot_end.mark_bot_stopped, "b1", session=1)


@verb("reboot of a bot", a_running_task)
def _(w: World, f: Facts) -> Any:
    return w.do(bot_end.end_runs_before_reboot, "b1", session=1)


@verb("revoke_bot", a_ready_task)
def _(w: World, f: Facts) -> Any:
    return w.do(bot_identity.revoke_bot, "b1")


# --- Time ---


@verb("sweep of lost runs", a_running_task)
def _(w: World, f: Facts) -> Any:
    w.now += 301 * SECOND
    return w.do(maintenance.run_step, "runs")


@verb("sweep of runs that never started", a_claimed_task)
def _(w: World, f: Facts) -> Any:
    w.now += 31 * SECOND
    return w.do(maintenance.run_step, "runs")


@verb("sweep of dead bots", _impatient)
def _(w: World, f: Facts) -> Any:
    w.now += 601 * SECOND
    return w.do(maintenance.run_step, "bots")


def _two_slices(w: World) -> Facts:
    raw = a_task(slice={"expiration_s": 60})
    raw["slices"].append(a_task(dims={"os": ["Debian"]})["slices"][0])
    w.submit(raw, a_task(slice={"expiration_s": 60}))
    return {}


@verb("sweep of expired slices", _two_slices)
def _(w: World, f: Facts) -> Any:
    w.now += 61 * SECOND
    return w.do(maintenance.run_step, "slices")


@verb("sweep of tasks past their deadline", a_job_under_way)
def _(w: World, f: Facts) -> Any:
    w.now += 8 * DAY
    return w.do(maintenance.run_step, "tasks")


def _old_task(w: World) -> Facts:
    facts = a_running_task(w)
    w.report(finish(facts["run"]))
    return facts


@verb("sweep of tasks past their retention", _old_task)
def _(w: World, f: Facts) -> Any:
    w.now += 31 * DAY
    return w.do(maintenance.run_step, "tasks")


@verb("sweep of jobs that wait for their retry", a_job_to_retry)
def _(w: World, f: Facts) -> Any:
    w.do(maintenance.run_step, "jobs")
    return w.carry_all()


@verb("sweep of jobs past their retention", a_finished_job, chunk=3)
def _(w: World, f: Facts) -> Any:
    w.now += 31 * DAY
    w.do(maintenance.run_step, "jobs")
    return w.carry_all()


@verb("sweep of old events and idle queues", a_bot)
def _(w: World, f: Facts) -> Any:
    w.now += 61 * DAY
    return w.do(maintenance.run_step, "old_rows")


@verb("mark of life after an outage", lambda w: {"was": w.db.write(lambda tx: outages.record_alive(tx, w.now))})
def _(w: World, f: Facts) -> Any:
    w.now += 301 * SECOND
    return w.db.write(lambda tx: outages.record_alive(tx, w.now))


# --- Removing, values, events ---


@verb("delete_job, carried on", a_finished_job, chunk=3)
def _(w: World, f: Facts) -> Any:
    if w.job_state(f["job"]) is not None:
        w.do(retention.delete_job, f["job"], group_id=w.group)
    return w.carry_all()


@verb("delete_group, carried on", lambda w: {**a_finished_job(w), **_old_task(w)}, chunk=3)
def _(w: World, f: Facts) -> Any:
    if w.value("SELECT 1 FROM resource_groups WHERE id = :g", g=w.group):
        w.do(resource_groups.delete_group, w.group)
    return w.carry_all()


def a_busy_group(w: World) -> Facts:
    """A running and a waiting task that read a shared value, a lone ready task, and a job that has failed."""
    facts = a_value(w)
    reads = {"kind": "shared", "type": INT, "shared_value_id": facts["value"]}
    a_failed_job(w)
    w.job({"r": a_node(task=a_function(reads)), "s": a_node("r", task=a_function(reads))})
    w.submit(a_task(dims={"os": ["Debian"]}))
    return {**facts, "runs": w.running("b1", 2)}


@verb("delete_group with force, carried on", a_busy_group, chunk=3)
def _(w: World, f: Facts) -> Any:
    if w.value("SELECT 1 FROM resource_groups WHERE id = :g", g=w.group):
        w.do(resource_groups.delete_group, w.group, force=True)
    w.carry_all()
    w.report(*(finish(run, exit_code=1) for run in f["runs"]))
    return w.carry_all()


@verb("create_group")
def _(w: World, f: Facts) -> Any:
    return w.do(resource_groups.create_group, "another")


@verb("create_value", repeatable=False)
def _(w: World, f: Facts) -> Any:
    return w.do(shared_values.create_value, GroupOwner(w.group), INT, _payload(), value_id=w.ids.next(w.now))


@verb("ref_value", a_value)
def _(w: World, f: Facts) -> Any:
    return w.db.write(lambda tx: shared_values.ref_value(tx, f["owner"], f["value"]))


@verb("unref_value", a_value)
def _(w: World, f: Facts) -> Any:
    return w.db.write(lambda tx: shared_values.unref_value(tx, f["group"], f["value"]))


@verb("change_localities", a_value)
def _(w: World, f: Facts) -> Any:
    return w.db.write(lambda tx: shared_values.change_localities(tx, f["value"], add=["10.0.0.1"]))


@verb("sequencer", a_job)
def _(w: World, f: Facts) -> Any:
    return w.db.write(lambda tx: outbox.assign_positions(tx, 1000))


@verb("lease and cursor of a sink", a_job)
def _(w: World, f: Facts) -> Any:
    w.db.write(lambda tx: outbox.assign_positions(tx, 1000))
    cursor = w.db.write(lambda tx: sink.lease(tx, "amqp", 1, now=w.now, until=w.now + SECOND))
    return w.db.write(lambda tx: sink.advance(tx, "amqp", 1, cursor or 0))
