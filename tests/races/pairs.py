"""The pairs of calls that may race, each with what must be true whichever wins.

``prepare`` builds the state that both sides start from, once; ``a`` and ``b`` are the two calls, each made by
a server of its own; ``check`` looks at the outcome. An exception that is not among ``loses`` is a failure: a
lost race is an answer, not an accident.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from myrmidon.model.errors import Conflict, NotFound, UnknownValue, WrongState
from myrmidon.model.ids import show_run
from myrmidon.model.task_request import Payload
from myrmidon.model.value import GroupOwner, JobOwner
from myrmidon.scheduler import (
    cancel,
    extend,
    hold,
    maintenance,
    report,
    rerun,
    resource_groups,
    retention,
    shared_values,
)
from myrmidon.store.tables import chunked_work, outbox
from tests.world import INT, SECOND, World, a_function, a_node, a_part, a_task, finish, gathered, output_of

Facts = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How one interleaving ended: each side's result, or the error that it lost with."""

    a: Any
    b: Any
    lost_a: BaseException | None
    lost_b: BaseException | None


@dataclass(frozen=True)
class Pair:
    name: str
    prepare: Callable[[World], Facts]
    a: Callable[[World, Facts], Any]
    b: Callable[[World, Facts], Any]
    check: Callable[[World, Facts, Outcome], None]
    loses: tuple[type[BaseException], ...] = ()
    symmetric: bool = False
    may_retry: bool = False
    """Whether Db.write may run a side again: a claim never, and others only where a name is taken."""


PAIRS: list[Pair] = []


def pair(name: str, **given: Any) -> Callable[[type], type]:
    """A class with the four functions becomes one of the pairs."""

    def register(cls: Any) -> Any:
        PAIRS.append(Pair(name, cls.prepare, cls.a, cls.b, cls.check, **given))
        return cls

    return register


def events(w: World, subject: int, state: str) -> int:
    return w.value("SELECT COUNT(*) FROM outbox WHERE subject = :s AND state = :state", s=subject, state=state)


def payload() -> Payload:
    return Payload(inline=b"\x05", size=1)


# --- The ends of runs ---


@pair("finish/finish of the last two tasks", symmetric=True)
class FinishFinishOfTheLastTwoTasks:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1"), w.bot("b2")
        job = w.job({"x": a_node(), "y": a_node()})
        return {"job": job.job_id, "x": w.running("b1")[0], "y": w.running("b2")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]), bot_id="b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.report(finish(f["y"]), bot_id="b2")

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.job_state(f["job"]) == "SUCCEEDED"
        assert events(w, f["job"], "SUCCEEDED") == 1


@pair("two parents finish and feed one child", symmetric=True)
class TwoParentsFinishAndFeedOneChild:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1"), w.bot("b2")
        job = w.job({"x": a_node(), "y": a_node(), "child": a_node("x", "y")})
        return {"child": job.task_ids["child"], "x": w.running("b1")[0], "y": w.running("b2")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]), bot_id="b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.report(finish(f["y"]), bot_id="b2")

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        fed = w.all("SELECT state, num_succeeded_parents FROM task_results WHERE id = :i", i=f["child"])
        assert fed == [("READY", 2)]
        assert w.value("SELECT COUNT(*) FROM task_to_run WHERE task_id = :i", i=f["child"]) == 1


@pair("finish/extend", loses=(WrongState,))
class FinishExtend:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node()})
        return {"job": job.job_id, "x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(extend.extend, f["job"], {"name": "more", "tasks": {"more": a_node("x")}}, group_id=w.group)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        if out.lost_b:
            assert w.job_state(f["job"]) == "SUCCEEDED"
        else:
            assert w.job_state(f["job"]) == "RUNNING"
            assert w.state(out.b.task_ids["more"]) == "READY"


@pair("finish/add parents to what waits for it", loses=(WrongState,))
class FinishAddParents:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node(), "join": a_node("x")})
        return {"job": job.job_id, "join": job.task_ids["join"], "x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        raw = {"tasks": {"more": a_node("x")}, "requires": {"join": ["more"]}}
        return w.do(extend.extend, f["job"], raw, group_id=w.group)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        if out.lost_b:
            assert w.state(f["join"]) == "READY"
        else:
            assert w.state(out.b.task_ids["more"]) == "READY"
            assert w.state(f["join"]) == "WAITING"


@pair("finish/add parts and a delegate", loses=(WrongState,))
class FinishGrow:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        join = a_node("x", task=a_function(output_of("x"), gathered()))
        job = w.job({"x": a_node(task=a_function()), "join": join})
        return {"job": job.job_id, "join": job.task_ids["join"], "x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"], b"\x01"))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        tasks = {"more": a_node(task=a_function()), "d": a_node(task=a_function())}
        raw = {"tasks": tasks, "parts": {"join": {"1": [a_part("more")]}}, "delegates": {"d": "x"}}
        return w.do(extend.extend, f["job"], raw, group_id=w.group, by=f["x"].task_id)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        if out.lost_b:
            assert w.state(f["join"]) == "READY"
            assert w.value("SELECT COUNT(*) FROM task_input_parts") == 0
        else:
            assert (w.state(out.b.task_ids["d"]), w.state(f["join"])) == ("READY", "WAITING")
            assert w.value("SELECT num_parts FROM task_inputs WHERE num_parts IS NOT NULL") == 1


@pair("finish/cancel")
class FinishCancel:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node()})
        return {"job": job.job_id, "x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(cancel.cancel, [f["x"].task_id])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        cancelled = out.b[0].ok
        assert w.state(f["x"].task_id) == ("KILLED" if cancelled else "SUCCEEDED")
        assert w.job_state(f["job"]) == ("FAILED" if cancelled else "SUCCEEDED")


@pair("finish/cancel_job")
class FinishCancelJob:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node(), "ready": a_node(), "child": a_node("x")})
        got = w.running("b1")[0]
        return {"job": job.job_id, "tasks": job.task_ids, "x": got}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(cancel.cancel_job, f["job"])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        w.carry_all()
        assert w.job_state(f["job"]) == "CANCELLED"
        others = [w.state(i) for i in f["tasks"].values() if i != f["x"].task_id]
        assert others == ["CANCELLED", "CANCELLED"]
        assert w.state(f["x"].task_id) in ("KILLED", "SUCCEEDED")


@pair("finish/rerun of its parent with cascade")
class FinishRerunOfItsParentWithCascade:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node(), "y": a_node("x"), "last": a_node("y"), "z": a_node()})
        w.report(*(finish(c) for c in w.claim("b1", 2)))
        return {"job": job.job_id, "x": job.task_ids["x"], "last": job.task_ids["last"], "y": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["y"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(rerun.rerun, f["x"], force=True, cascade=True)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.state(f["x"]) == "READY"
        assert w.job_state(f["job"]) == "RUNNING"
        assert (w.state(f["y"].task_id), w.state(f["last"])) == ("WAITING", "WAITING")
        w.run_all()
        assert w.job_state(f["job"]) == "SUCCEEDED"


@pair("finish/rerun of the same task")
class FinishRerunOfTheSameTask:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node()})
        return {"job": job.job_id, "x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(rerun.rerun, f["x"].task_id, force=True)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.state(f["x"].task_id) == ("READY" if out.b.changed else "SUCCEEDED")
        assert w.job_state(f["job"]) == ("RUNNING" if out.b.changed else "SUCCEEDED")


@pair("finish/submit of a task that it triggers")
class FinishSubmitOfATaskThatItTriggers:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.submit()
        got = w.running("b1")[0]
        return {"x": got, "draft": w.draft(a_task(parent=show_run(got.task_id, got.run)))}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["draft"]])[0]

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        w.carry_all()
        if isinstance(out.b, WrongState):
            assert w.state(f["draft"].task_id) is None
        else:
            assert w.state(f["draft"].task_id) == "CANCELLED"


@pair("dedupe by a shared output/deletion of its job")
class DedupeByASharedOutputDeletionOfItsJob:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        made = a_function(shared=True, properties={"idempotent": True})
        job = w.job({"x": a_node(task=made)})
        w.report(finish(w.running("b1")[0], b"\x05"))
        w.db.write(lambda tx: retention.delete_job(tx, job.job_id, group_id=w.group, now=w.now, ids=w.ids))
        return {"draft": w.draft(made)}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["draft"]])[0]

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.carry_all()

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.state(f["draft"].task_id) in ("READY", "SUCCEEDED")
        deduped = w.state(f["draft"].task_id) == "SUCCEEDED"
        assert w.value("SELECT COUNT(*) FROM shared_values") == int(deduped)


# --- Claims ---


@pair("claim/claim with work for both", symmetric=True)
class ClaimClaimWithWorkForBoth:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1"), w.bot("b2")
        w.submit(a_task(), a_task())
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.claim("b2")

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert len(out.a) == len(out.b) == 1
        assert out.a[0].task_id != out.b[0].task_id


@pair("claim/claim of several from two queues", symmetric=True)
class ClaimClaimOfSeveralFromTwoQueues:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1"), w.bot("b2")
        w.submit(a_task(), a_task(), a_task(dims={"os": ["Debian"]}), a_task(dims={"os": ["Debian"]}))
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1", 3)

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.claim("b2", 3)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        mine, yours = {c.task_id for c in out.a}, {c.task_id for c in out.b}
        assert not mine & yours
        assert len(mine) == 3 or len(yours) == 3 or len(mine | yours) == 4
        w.claim("b1", 4)
        assert w.value("SELECT COUNT(*) FROM task_runs") == 4


@pair("claim/claim of one bot with one nonce", symmetric=True)
class ClaimClaimOfOneBotWithOneNonce:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.submit(a_task(), a_task())
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1", nonce=7)

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.claim("b1", nonce=7)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert [(c.task_id, c.run, c.token) for c in out.a] == [(c.task_id, c.run, c.token) for c in out.b]
        assert len(out.a) == w.value("SELECT COUNT(*) FROM task_runs") == 1


@pair("claim/cancel")
class ClaimCancel:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        return {"task": w.submit()[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(cancel.cancel, [f["task"]])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.b[0].ok
        assert out.b[0].was_running == bool(out.a)
        row = w.all("SELECT state, killing FROM task_results WHERE id = :i", i=f["task"])
        assert row == [("RUNNING", 1) if out.a else ("CANCELLED", 0)]


@pair("claim/cancel_job")
class ClaimCancelJob:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node(), "y": a_node("x")})
        return {"job": job.job_id, "x": job.task_ids["x"]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(cancel.cancel_job, f["job"])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        w.carry_all()
        row = w.all("SELECT state, killing FROM task_results WHERE id = :i", i=f["x"])
        assert row == [("RUNNING", 1) if out.a else ("CANCELLED", 0)]


@pair("claim/hold", loses=(WrongState,))
class ClaimHold:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node()})
        return {"x": job.task_ids["x"]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(hold.hold, f["x"])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert bool(out.a) == bool(out.lost_b)
        row = w.all("SELECT state, held FROM task_results WHERE id = :i", i=f["x"])
        assert row == [("RUNNING", 0) if out.a else ("WAITING", 1)]


@pair("claim/sweep of expired slices")
class ClaimSweepOfExpiredSlices:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        return {"task": w.submit(a_task(slice={"expiration_s": 60}))[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        w.now += 61 * SECOND
        return w.do(maintenance.run_step, "slices")

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.state(f["task"]) == ("RUNNING" if out.a else "EXPIRED")


# --- Time against bots ---


@pair("report/sweep of a lost lease")
class ReportSweepOfALostLease:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node()})
        return {"job": job.job_id, "x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        w.now += 301 * SECOND
        return w.report(finish(f["x"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        w.now += 301 * SECOND
        return w.do(maintenance.run_step, "runs")

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        taken = out.a[0].outcome == report.Outcome.ACCEPTED
        assert w.state(f["x"].task_id) == ("SUCCEEDED" if taken else "READY")
        assert w.job_state(f["job"]) == ("SUCCEEDED" if taken else "RUNNING")
        assert w.value("SELECT num_retries FROM task_results") == (0 if taken else 1)


@pair("heartbeat/sweep of a lost lease")
class HeartbeatSweepOfALostLease:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.submit()
        return {"x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        w.now += 301 * SECOND
        held = [(f["x"].task_id, f["x"].run, f["x"].token)]
        return w.db.write(lambda tx: report.heartbeat(tx, "b1", held, session=1, now=w.now))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        w.now += 301 * SECOND
        return w.do(maintenance.run_step, "runs")

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        alive = w.value("SELECT COUNT(*) FROM task_runs WHERE ended_at IS NULL")
        assert alive == (0 if out.a else 1)
        assert w.state(f["x"].task_id) == ("READY" if out.a else "RUNNING")


@pair("sweep/sweep of a lost lease", symmetric=True)
class SweepSweepOfALostLease:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.submit()
        return {"x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        w.now += 301 * SECOND
        return w.do(maintenance.run_step, "runs")

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.all("SELECT state, num_retries FROM task_results") == [("READY", 1)]


# --- Queues and bots ---


@pair("submit/handshake with a new queue and a new pool")
class SubmitHandshakeWithANewQueueAndANewPool:
    @staticmethod
    def prepare(w: World) -> Facts:
        return {"draft": w.draft()}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["draft"]])[0].state

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.bot("b1")

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.value("SELECT COUNT(*) FROM bot_task_dimensions") == 1
        assert [c.task_id for c in w.claim("b1")] == [f["draft"].task_id]


@pair("submit/submit into the same new queue", symmetric=True)
class SubmitSubmitIntoTheSameNewQueue:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        return {"one": w.draft(), "two": w.draft()}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["one"]])[0].state

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["two"]])[0].state

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.value("SELECT COUNT(*) FROM task_dimensions") == 1
        assert len(w.claim("b1", 5)) == 2


@pair("handshake/handshake of a new bot", loses=(WrongState,))
class HandshakeHandshakeOfANewBot:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.bot("b1", session=1)

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.bot("b1", session=2)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.lost_b is None
        assert w.all("SELECT session, serving FROM bots") == [(2, 1)]
        assert w.value("SELECT COUNT(*) FROM bot_task_dimensions") == 1


@pair("handshake/handshake of a new bot in two pools", loses=(WrongState,))
class HandshakeHandshakeOfANewBotInTwoPools:
    """No pool's lock lets one wait for the other: only the bot's own does."""

    @staticmethod
    def prepare(w: World) -> Facts:
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.bot("b1", session=1, pool=["one"])

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.bot("b1", session=2, pool=["two"])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.lost_b is None
        assert w.all("SELECT session, serving FROM bots") == [(2, 1)]
        assert w.all("SELECT dimension FROM bot_dimensions WHERE dimension LIKE 'pool:%'") == [("pool:two",)]


@pair("handshake/handshake of a bot with a run", loses=(WrongState,))
class HandshakeHandshakeOfABotWithARun:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.submit()
        return {"x": w.running("b1")[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.bot("b1", session=2, holds=[(f["x"].task_id, f["x"].run)])

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.bot("b1", session=3)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.lost_b is None
        assert w.all("SELECT session FROM bots") == [(3,)]
        assert w.all("SELECT state, num_retries FROM task_results") == [("READY", 1)]


@pair("claim/handshake of the same bot", loses=(WrongState,))
class ClaimHandshakeOfTheSameBot:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.submit()
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.claim("b1")

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.bot("b1", session=2)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.lost_b is None
        assert w.all("SELECT session FROM bots") == [(2,)]
        w.now += 31 * SECOND
        w.do(maintenance.run_step, "runs")
        assert w.all("SELECT state FROM task_results") == [("READY",)]


# --- The same thing twice ---


@pair("submit/submit with one request key")
class SubmitSubmitWithOneRequestKey:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.submit()
        return {"one": w.draft(key="k"), "two": w.draft(key="k")}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["one"]])[0]

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["two"]])[0]

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.a.task_id == out.b.task_id
        assert out.a.repeated != out.b.repeated
        assert w.value("SELECT COUNT(*) FROM task_results") == 2


@pair("submit/submit with one request key and two bodies", symmetric=True)
class SubmitSubmitWithOneRequestKeyAndTwoBodies:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        return {"one": w.draft(key="k"), "two": w.draft(a_task(priority=7), key="k")}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["one"]])[0]

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["two"]])[0]

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert isinstance(out.a, Conflict) != isinstance(out.b, Conflict)
        assert w.value("SELECT COUNT(*) FROM task_results") == 2


@pair("submit/submit with one external id", symmetric=True, may_retry=True)
class SubmitSubmitWithOneExternalId:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        return {"one": w.draft(a_task(external_id="name")), "two": w.draft(a_task(external_id="name"))}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["one"]])[0]

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["two"]])[0]

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert isinstance(out.a, Conflict) != isinstance(out.b, Conflict)
        assert w.value("SELECT COUNT(*) FROM task_results") == 2


@pair("submit/submit with one request key and one external id", symmetric=True, may_retry=True)
class SubmitSubmitWithOneRequestKeyAndOneExternalId:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        return {name: w.draft(a_task(external_id="name"), key="k") for name in ("one", "two")}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["one"]])[0]

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["two"]])[0]

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.a.task_id == out.b.task_id
        assert out.a.repeated != out.b.repeated
        assert w.value("SELECT COUNT(*) FROM task_results") == 2


@pair("submit_job/submit_job with one external id", loses=(Conflict,), symmetric=True, may_retry=True)
class SubmitJobSubmitJobWithOneExternalId:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.job({"x": a_node()}, external_id="name")

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert bool(out.lost_a) != bool(out.lost_b)
        assert w.value("SELECT COUNT(*) FROM jobs") == 1


@pair("resume/resume of the same document", symmetric=True, may_retry=True)
class ResumeSame:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.resumed({"x": w.call_of()})
        w.report(finish(w.running("b1")[0], b"\x07"))
        return {"changed": {"x": w.call_of(), "y": w.call_of(identity="y")}}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.resumed(f["changed"])

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.resumed(f["changed"])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.a.job_id == out.b.job_id
        assert sorted([out.a.repeated, out.b.repeated]) == [False, True]
        assert w.value("SELECT COUNT(*) FROM jobs") == 2
        assert w.value("SELECT deduped_from FROM task_results WHERE id = :i", i=out.a.task_ids["x"]) is not None


@pair("resume/resume of different documents", may_retry=True)
class ResumeDifferent:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        w.resumed({"x": w.call_of()})
        w.report(finish(w.running("b1")[0], b"\x07"))
        return {name: {"x": w.call_of(), "y": w.call_of(identity=name)} for name in ("one", "two")}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.resumed(f["one"])

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.resumed(f["two"])

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        names = dict(w.all("SELECT external_id, state FROM jobs ORDER BY id"))
        assert names == {"name~1": "SUCCEEDED", "name~2": "CANCELLED", "name": "RUNNING"}
        for job in (out.a, out.b):
            assert w.value("SELECT deduped_from FROM task_results WHERE id = :i", i=job.task_ids["x"]) is not None


@pair("resume/finish in the earlier revision", may_retry=True)
class ResumeFinish:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        first = w.resumed({"x": w.call_of(), "z": w.call_of(identity="z")})
        runs = {run.task_id: run for run in w.running("b1", 2)}
        return {"first": first, "x": runs[first.task_ids["x"]], "changed": {"x": w.call_of()}}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.resumed(f["changed"])

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.report(finish(f["x"], b"\x07"))

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        """The result answers the new revision only if it came first; either way there is one result or one run."""
        answered = w.value("SELECT deduped_from FROM task_results WHERE id = :i", i=out.a.task_ids["x"])
        assert w.state(out.a.task_ids["x"]) == ("SUCCEEDED" if answered is not None else "READY")
        if answered is not None:
            assert w.state(f["x"].task_id) == "SUCCEEDED"


@pair("submit_job/submit_job with one request key and one external id", symmetric=True, may_retry=True)
class SubmitJobSubmitJobWithOneRequestKeyAndOneExternalId:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.job({"x": a_node()}, key="k", external_id="name")

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.a.job_id == out.b.job_id
        assert w.value("SELECT COUNT(*) FROM jobs") == 1


@pair("submit_job/submit_job with one request key", symmetric=True)
class SubmitJobSubmitJobWithOneRequestKey:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.job({"x": a_node()}, key="k")

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.a.job_id == out.b.job_id
        assert out.a.task_ids == out.b.task_ids
        assert w.value("SELECT COUNT(*) FROM jobs") == 1


@pair("create_group/create_group of one name", loses=(Conflict,), symmetric=True)
class CreateGroupCreateGroupOfOneName:
    @staticmethod
    def prepare(w: World) -> Facts:
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.do(resource_groups.create_group, "same")

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert bool(out.lost_a) != bool(out.lost_b)


# --- Values ---


@pair("unref/unref of the last two references")
class UnrefUnrefOfTheLastTwoReferences:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node()})
        group, owner = GroupOwner(w.group), JobOwner(w.group, job.job_id)
        value = w.do(shared_values.create_value, group, INT, payload()).id
        w.db.write(lambda tx: shared_values.ref_value(tx, owner, value))
        return {"group": group, "owner": owner, "value": value}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.db.write(lambda tx: shared_values.unref_value(tx, f["group"], f["value"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.db.write(lambda tx: shared_values.unref_value(tx, f["owner"], f["value"]))

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert sorted([out.a, out.b]) == [False, True]
        assert w.value("SELECT COUNT(*) FROM shared_values") == 0


@pair("ref/unref of the last reference", loses=(NotFound,))
class RefUnrefOfTheLastReference:
    @staticmethod
    def prepare(w: World) -> Facts:
        job = w.job({"x": a_node()})
        group, owner = GroupOwner(w.group), JobOwner(w.group, job.job_id)
        return {"group": group, "owner": owner, "value": w.do(shared_values.create_value, group, INT, payload()).id}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.db.write(lambda tx: shared_values.ref_value(tx, f["owner"], f["value"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.db.write(lambda tx: shared_values.unref_value(tx, f["group"], f["value"]))

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.b == bool(out.lost_a)
        assert w.value("SELECT COUNT(*) FROM shared_values") == (0 if out.lost_a else 1)
        assert w.value("SELECT COUNT(*) FROM job_to_shared_value_ref") == (0 if out.lost_a else 1)


def a_reader(value: int) -> dict[str, Any]:
    """A job with one function that reads a shared value."""
    return {"r": a_node(task=a_function({"kind": "shared", "type": INT, "shared_value_id": value}))}


@pair("submit_job that reads a value/unref of its last reference", loses=(UnknownValue,))
class SubmitJobThatReadsAValueUnrefOfItsLastReference:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        group = GroupOwner(w.group)
        return {"group": group, "value": w.do(shared_values.create_value, group, INT, payload()).id}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.job(a_reader(f["value"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.db.write(lambda tx: shared_values.unref_value(tx, f["group"], f["value"]))

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.b == bool(out.lost_a)
        assert w.value("SELECT COUNT(*) FROM shared_values") == (0 if out.lost_a else 1)
        assert w.value("SELECT COUNT(*) FROM jobs") == (0 if out.lost_a else 1)


@pair("submit_job that reads a value/delete_job of the last job that has it", loses=(UnknownValue,))
class SubmitJobThatReadsAValueDeleteJobOfTheLastJobThatHasIt:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        group = GroupOwner(w.group)
        value = w.do(shared_values.create_value, group, INT, payload()).id
        job = w.job(a_reader(value)).job_id
        w.db.write(lambda tx: shared_values.unref_value(tx, group, value))
        w.report(finish(w.running()[0], b"\x05"))
        w.do(retention.delete_job, job, group_id=w.group)
        return {"value": value, "drain": w.db.read(chunked_work.pending)[0]}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.job(a_reader(f["value"]))

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(maintenance.run_step, f["drain"].turn)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        w.carry_all()
        assert w.value("SELECT COUNT(*) FROM shared_values") == (0 if out.lost_a else 1)
        assert w.value("SELECT COUNT(*) FROM jobs") == (0 if out.lost_a else 1)


@pair("create_value/delete_group", loses=(NotFound,))
class CreateValueDeleteGroup:
    @staticmethod
    def prepare(w: World) -> Facts:
        return {"group": w.do(resource_groups.create_group, "other").id}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.do(shared_values.create_value, GroupOwner(f["group"]), INT, payload())

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        w.do(resource_groups.delete_group, f["group"], force=True)
        return w.carry_all()

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        w.carry_all()
        for table in ("shared_values", "resource_group_to_shared_value_ref"):
            assert w.value(f"SELECT COUNT(*) FROM {table}") == 0


# --- What is carried on ---


@pair("carry_on/carry_on of one drain", symmetric=True)
class CarryOnCarryOnOfOneDrain:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        job = w.job({"x": a_node(), "y": a_node(), "z": a_node("x", "y")})
        w.report(*(finish(c, exit_code=1) for c in w.claim("b1", 2)))
        w.do(rerun.rerun_job, job.job_id)
        return {"job": job.job_id, "drain": w.db.read(chunked_work.pending)[0], "tasks": job.task_ids}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.do(maintenance.run_step, f["drain"].turn)

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert w.value("SELECT COUNT(*) FROM chunked_work") == 0
        assert w.value("SELECT num_chunked_work FROM jobs") == 0
        assert [w.state(f["tasks"][label]) for label in "xyz"] == ["READY", "READY", "WAITING"]
        w.run_all()
        assert w.job_state(f["job"]) == "SUCCEEDED"


@pair("carry_on/carry_on of a mass cancel", symmetric=True)
class CarryOnCarryOnOfAMassCancel:
    @staticmethod
    def prepare(w: World) -> Facts:
        tasks = w.submit(a_task(tags=["k:v"]), a_task(tags=["k:v"]))
        drain = w.do(cancel.cancel_tagged, ["k:v"], group_id=w.group).work
        return {"tasks": tasks, "drain": drain}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.do(maintenance.run_step, f["drain"].turn)

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert [w.state(i) for i in f["tasks"]] == ["CANCELLED", "CANCELLED"]
        assert w.value("SELECT COUNT(*) FROM chunked_work") == 0
        assert [events(w, i, "CANCELLED") for i in f["tasks"]] == [1, 1]


@pair("sequencer/sequencer", symmetric=True)
class SequencerSequencer:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit()
        w.db.write(lambda tx: outbox.assign_positions(tx, 2))
        w.submit(a_task(), a_task(), a_task())
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.db.write(lambda tx: outbox.assign_positions(tx, 2))

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.a + out.b == 3
        assert w.all("SELECT position FROM outbox ORDER BY position") == [(1,), (2,), (3,), (4,)]


@pair("sequencer/sequencer for the first time", symmetric=True)
class SequencerSequencerForTheFirstTime:
    @staticmethod
    def prepare(w: World) -> Facts:
        w.submit(a_task(), a_task(), a_task())
        return {}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.db.write(lambda tx: outbox.assign_positions(tx, 2))

    b = a

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert out.a + out.b == 3
        assert w.all("SELECT position FROM outbox ORDER BY position") == [(1,), (2,), (3,)]


@pair("submit/delete_group", loses=(WrongState, NotFound))
class SubmitDeleteGroup:
    """A task that was acknowledged keeps its group; a group that is going takes nothing in."""

    @staticmethod
    def prepare(w: World) -> Facts:
        w.bot("b1")
        return {"draft": w.draft()}

    @staticmethod
    def a(w: World, f: Facts) -> Any:
        return w.submit_drafts([f["draft"]])

    @staticmethod
    def b(w: World, f: Facts) -> Any:
        return w.do(resource_groups.delete_group, w.group)

    @staticmethod
    def check(w: World, f: Facts, out: Outcome) -> None:
        assert (out.lost_a is None) != (out.lost_b is None)
        deleting = w.value("SELECT deleting FROM resource_groups WHERE id = :id", id=w.group)
        assert deleting == int(out.lost_b is None)
