"""A task that becomes ready in a transaction which claims next is written once, and is lost in no case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from myrmidon.model.task_to_run import Accepts
from myrmidon.scheduler import claim, kept_task, report, submit, submit_job
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.job_draft import draft_job
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import task_to_run
from tests.world import KEY, World, a_function, a_node, a_task, constant, finish, output_of


@pytest.fixture
def w(db) -> World:
    world = World(db).found()
    world.bot()
    return world


def claiming(w: World, verb: Callable[[Any], Any], *, n: int = 1, bot_id: str = "b1") -> tuple[Any, list[Claimed]]:
    """Run a verb and a claim of a bot in one transaction, as a server does."""
    nonce = w.nonces[bot_id] = w.nonces.get(bot_id, 0) + 1
    poll = Poll(bot_id=bot_id, session=1, nonce=nonce, n=n, token_key=KEY)

    def write(tx: Any) -> tuple[Any, list[Claimed]]:
        tx.effects.claim_follows = True
        result = verb(tx)
        claimed = claim.claim(tx, poll, now=w.now, ids=w.ids)
        assert not tx.effects.enqueued_tasks.intersection(run.task_id for run in claimed)
        return result, claimed

    return w.db.write(write)


def submitted(w: World, *raws: dict[str, Any]) -> Callable[[Any], Any]:
    drafts = [w.draft(raw) for raw in raws]
    return lambda tx: submit.submit(tx, w.group, drafts, now=w.now, ids=w.ids)


def reported(w: World, *items: Any) -> Callable[[Any], Any]:
    return lambda tx: report.report(tx, "b1", list(items), session=1, now=w.now, ids=w.ids)


def states_told(w: World, task_id: int) -> list[tuple[int, str]]:
    return w.all("SELECT seq, state FROM outbox WHERE subject = :id ORDER BY seq", id=task_id)


def seq(w: World, task_id: int) -> int:
    return w.value("SELECT seq FROM task_results WHERE id = :id", id=task_id)


def num_queued(w: World) -> int:
    return w.value("SELECT COUNT(*) FROM task_to_run")


def test_a_submit_that_claims_its_task_tells_both_states_and_queues_nothing(w):
    [answer], [run] = claiming(w, submitted(w, a_task()))
    assert (run.task_id, w.state(run.task_id), num_queued(w)) == (answer.task_id, "RUNNING", 0)
    assert states_told(w, run.task_id) == [(1, "READY"), (2, "RUNNING")]
    assert seq(w, run.task_id) == 2
    assert w.report(finish(run))[0].outcome == "accepted"
    assert w.state(run.task_id) == "SUCCEEDED"


def test_a_call_of_a_function_reaches_the_bot_with_all_that_it_needs(w):
    raw = {"name": "job", "tasks": {"f": w.call_of(constant(b"\x05"))}}
    draft = draft_job(raw, now=w.now, ids=w.ids)
    [commit] = submit_job.submit_steps(w.group, draft, now=w.now, ids=w.ids)
    _, [run] = claiming(w, commit)
    again = w.claim(nonce=w.nonces["b1"])
    assert ([value.payload for value in run.inputs], run.output_types, run.label) == ([b"\x05"], ["int64"], "f")
    shown = [(one.work, one.output_types, one.label, one.code, one.token) for one in (run, again[0])]
    assert shown[0] == shown[1]


def test_a_task_that_is_submitted_with_one_that_needs_no_run_gets_its_own_contents(w):
    equal = a_function(properties={"idempotent": True})
    w.submit(equal)
    w.report(finish(w.claim()[0], b"\x01"))
    answers, [run] = claiming(w, submitted(w, a_task(stdin="aW4="), equal))
    assert (run.task_id, run.stdin, run.output_types) == (answers[0].task_id, b"in", [])
    assert answers[1].deduped_from is not None


def test_a_secret_and_stdin_reach_the_bot_too(w):
    raw = a_task(secret_bytes="aHVzaA==", stdin="aW4=")
    _, [run] = claiming(w, submitted(w, raw))
    assert (run.secret_bytes, run.stdin) == (b"hush", b"in")


def test_an_exchange_that_reports_a_parent_claims_the_child(w):
    job = w.job({"a": w.call_of(constant()), "b": w.call_of(output_of("a"))})
    [parent] = w.claim()
    _, [child] = claiming(w, reported(w, finish(parent, b"\x07")))
    assert (child.task_id, [value.payload for value in child.inputs]) == (job.task_ids["b"], [b"\x07"])
    assert states_told(w, child.task_id) == [(1, "WAITING"), (2, "READY"), (3, "RUNNING")]
    assert (seq(w, child.task_id), num_queued(w)) == (3, 0)
    w.report(finish(child, b"\x08"))
    assert w.job_state(job.job_id) == "SUCCEEDED"


def test_a_run_that_follows_another_at_once_knows_since_when_its_bot_was_idle(w):
    w.submit(a_task(), a_task(name="u"))
    [first] = w.claim()
    w.now += 5_000_000
    _, [second] = claiming(w, reported(w, finish(first)))
    assert w.all("SELECT idle_since FROM task_runs WHERE task_id = :id", id=second.task_id) == [(w.now,)]
    assert w.all("SELECT idle_at, heartbeat, nonce FROM bots") == [(w.now, w.now, 2)]


def test_a_bot_that_gets_no_further_run_is_idle_since_its_last_one(w):
    w.submit(a_task())
    [run] = w.claim()
    w.now += 5_000_000
    _, none = claiming(w, reported(w, finish(run)))
    assert (none, w.all("SELECT idle_at, heartbeat, nonce FROM bots")) == ([], [(w.now, w.now, 1)])


def test_a_retry_may_be_claimed_by_the_exchange_that_reports_the_failure(w):
    [task] = w.submit(a_task(reruns=1))
    [first] = w.claim()
    _, [second] = claiming(w, reported(w, finish(first, exit_code=1)))
    assert (second.task_id, second.run) == (task, 2)
    assert [state for _, state in states_told(w, task)] == ["READY", "RUNNING", "READY", "RUNNING"]


def test_a_task_that_the_bot_cannot_run_is_queued(w):
    [answer], none = claiming(w, submitted(w, a_task(dims={"os": ["Plan9"]})))
    assert (none, w.state(answer.task_id), num_queued(w)) == ([], "READY", 1)
    assert states_told(w, answer.task_id) == [(1, "READY")]


def test_a_task_that_waits_already_goes_first(w):
    [earlier] = w.submit(a_task())
    w.now += 1_000_000
    [answer], [run] = claiming(w, submitted(w, a_task()))
    assert (run.task_id, num_queued(w)) == (earlier, 1)
    assert w.claim()[0].task_id == answer.task_id


def test_of_several_new_tasks_none_is_kept(w):
    answers, runs = claiming(w, submitted(w, a_task(), a_task(name="u")), n=2)
    assert sorted(run.task_id for run in runs) == sorted(answer.task_id for answer in answers)
    assert num_queued(w) == 0


def test_a_child_that_a_failing_task_cancels_in_the_same_report_does_not_run(w):
    job = w.job({"a": a_node(), "b": a_node("a"), "x": a_node()}, failure_policy="fail-fast")
    runs = {run.task_id: run for run in w.claim(n=2)}
    done = finish(runs[job.task_ids["a"]]), finish(runs[job.task_ids["x"]], exit_code=1)
    _, none = claiming(w, reported(w, *done))
    assert (none, w.state(job.task_ids["b"]), num_queued(w)) == ([], "CANCELLED", 0)


def test_a_verb_that_fails_after_it_has_made_a_task_ready_leaves_nothing(w):
    def fail(tx: Any) -> None:
        submitted(w, a_task())(tx)
        raise RuntimeError("after the submit")

    with pytest.raises(RuntimeError, match="after the submit"):
        claiming(w, lambda tx: tx.savepoint(fail))
    assert (w.value("SELECT COUNT(*) FROM task_results"), num_queued(w)) == (0, 0)


def test_only_a_task_that_every_bot_of_its_queue_can_take_equally_well_is_kept(w):
    w.submit(a_task())

    def kept(tx: Any, **change: Any) -> bool:
        [row] = task_to_run.of_tasks(tx, [row[0] for row in tx.all("SELECT task_id FROM task_to_run")])
        return kept_task.may_be_kept(tx, structs.replace(row, **change))

    def look(tx: Any) -> list[bool]:
        tx.effects.claim_follows = True
        return [kept(tx), kept(tx, instance=1), kept(tx, shared=1), kept(tx, avoid_bot="b1")]

    assert w.db.write(look) == [True, False, False, False]


def test_where_nothing_is_kept_nothing_is_taken(w):
    def take(tx: Any) -> Any:
        bot = bots.lock(tx, "b1")
        assert bot is not None
        return kept_task.take(tx, bot, w.now, accepts=Accepts.ANY, leave=frozenset())

    assert w.db.write(take) is None


def test_without_a_claim_nothing_is_kept(w):
    def write(tx: Any) -> bool:
        submitted(w, a_task())(tx)
        return kept_task.write(tx)

    assert w.db.write(write) is False
    assert num_queued(w) == 1
