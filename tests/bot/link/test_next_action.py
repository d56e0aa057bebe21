"""What the session thread does next: tables of situations and decisions. No server, no bot, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from myrmidon.bot import protocol
from myrmidon.bot.link import next_action as actions
from myrmidon.bot.link.exchange import ExchangeRequest
from myrmidon.bot.link.link_state import CLAIMS, LinkState, Work
from myrmidon.bot.link.next_action import (
    Action,
    Exchange,
    ExecuteDirective,
    GiveBack,
    GiveUp,
    Handshake,
    Heartbeat,
    Pause,
    Resend,
    SendEvents,
    ShutDown,
    UploadLog,
    Wait,
    next_action,
)
from myrmidon.bot.run.run import MAX_INLINE_BYTES

NOW = 1000.0
LARGE = MAX_INLINE_BYTES + 1


def a_link(**changed: Any) -> LinkState:
    """A session in which the server has just answered."""
    link = LinkState(NOW)
    link.session_begun(NOW, poll_s=30.0, heartbeat_s=10.0)
    for name, value in changed.items():
        setattr(link, name, value)
    return link


def a_request(**fields: Any) -> ExchangeRequest:
    return ExchangeRequest(protocol.ExchangeMessage(1, **fields))


def long_run(ran_s: float = 5.0, **more: Any) -> Work:
    """A command whose start was reported, on a bot that has no room for functions."""
    return Work(run="r1", begun=NOW - ran_s, wanted=0, log_run="r1", **more)


def check(found: Action, expected: Action) -> None:
    """Types too: actions without fields are equal to each other."""
    assert type(found) is type(expected)
    assert found == pytest.approx(expected)


IDLE = Work(claim_size=8)
POLL = Exchange(n=8, wait_s=30.0)


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        ({}, IDLE, POLL),
        ({}, IDLE._replace(quarantined=True), Exchange(n=8, wait_s=5.0)),
        ({}, IDLE._replace(finished=1), POLL),
        ({"contact_at": NOW - 3}, IDLE._replace(finished=1), Exchange()),
        ({"contact_at": NOW - 3}, IDLE._replace(returned=1), Exchange()),
        ({"contact_at": NOW - 3}, IDLE, POLL),
        ({}, IDLE._replace(directive=True), ExecuteDirective()),
        ({}, IDLE._replace(directive=True, finished=1), Exchange()),
        ({}, IDLE._replace(signals=1), ShutDown()),
        ({}, IDLE._replace(signals=1, directive=True), ShutDown()),
        ({}, IDLE._replace(signals=1, returned=1), Exchange()),
        ({}, IDLE._replace(health_changed=True), Handshake()),
        ({"has_session": False}, IDLE, Handshake()),
        ({"has_session": False, "pending": a_request(n=1)}, IDLE, Handshake()),
        ({"pending": a_request(n=1)}, IDLE, Resend()),
        ({}, IDLE._replace(has_events=True), SendEvents()),
        ({"events_after": NOW + 1}, IDLE._replace(has_events=True), POLL),
        ({}, IDLE._replace(unsent_log="r0", finished=1), UploadLog("r0")),
        ({"contact_at": NOW - 10}, IDLE._replace(unsent_log="r0", finished=1), Heartbeat()),
        ({"contact_at": NOW - 10}, IDLE._replace(unsent_log="r0", finished=1, unreported=True), Exchange(start=True)),
        ({"pending": a_request(n=1)}, IDLE._replace(unsent_log="r0", finished=1, unreported=True), Resend()),
    ],
)
def test_an_idle_bot(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**link), work, NOW), expected)


SHORT = Work(run="r1", begun=NOW - 0.1, queued=4, claim_size=8, refill_threshold=4)


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        ({}, SHORT, Exchange(n=8, holds=False)),
        ({}, SHORT._replace(run="", begun=0.0), Exchange(n=8, holds=False)),
        ({}, SHORT._replace(queued=5), Wait(actions.LAST_REPORT_AFTER_S)),
        ({"drained": CLAIMS}, SHORT, Wait(actions.LAST_REPORT_AFTER_S)),
        ({}, SHORT._replace(directive=True), Wait(actions.LAST_REPORT_AFTER_S)),
        ({}, SHORT._replace(signals=1), Wait(actions.LAST_REPORT_AFTER_S)),
        ({}, SHORT._replace(queued=5, finished=3, finished_at=NOW - 0.1), Wait(actions.LAST_REPORT_AFTER_S)),
        ({}, SHORT._replace(queued=5, finished=3, finished_at=NOW - 0.2), Exchange(holds=False)),
        ({"drained": CLAIMS}, SHORT._replace(finished=3, finished_at=NOW - 0.1), Exchange(holds=False)),
        ({"contact_at": NOW - 60}, SHORT._replace(queued=5), Wait(actions.LAST_REPORT_AFTER_S)),
    ],
)
def test_short_tasks_are_claimed_and_reported_in_batches(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**link), work, NOW), expected)


QUIET: dict[str, Any] = {"log_sent_at": NOW - 5}
WAIT_FOR_STOP = Exchange(wait_s=10.0)


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        ({}, long_run(unreported=True), Exchange(start=True)),
        ({}, long_run(queued=2), GiveBack()),
        ({}, long_run(0.3, queued=2, unreported=True), Exchange(start=True)),
        (QUIET, long_run(returned=2), Exchange()),
        (QUIET, long_run(finished=1), Exchange()),
        (QUIET, long_run(log_bytes=LARGE), UploadLog("r1")),
        ({**QUIET, "contact_at": NOW - 10}, long_run(log_bytes=LARGE), Heartbeat()),
        ({**QUIET, "log_resume_at": NOW + 1}, long_run(log_bytes=LARGE), Exchange(log=True)),
        ({**QUIET, "log_resume_at": NOW + 0.1, "log_sent_at": NOW}, long_run(log_bytes=LARGE), Wait(0.1)),
        (QUIET, long_run(log_bytes=1), Exchange(log=True)),
        ({**QUIET, "contact_at": NOW - 10}, long_run(log_bytes=1), Exchange(log=True)),
        ({**QUIET, "inline_logs": False}, long_run(log_bytes=1), UploadLog("r1")),
        ({**QUIET, "log_sent_at": NOW - 0.4}, long_run(log_bytes=1), Wait(0.25)),
        ({**QUIET, "contact_at": NOW - 10}, long_run(), Heartbeat()),
        ({**QUIET, "contact_at": NOW - 9.9, "log_sent_at": NOW}, long_run(), Wait(0.1)),
        (QUIET, long_run(), WAIT_FOR_STOP),
        (QUIET, long_run(1.0), Wait(0.25)),
        ({**QUIET, "log_sent_at": NOW - 1}, long_run(), Wait(0.25)),
        (QUIET, long_run(directive=True), WAIT_FOR_STOP),
        (QUIET, long_run(signals=1), WAIT_FOR_STOP),
        (QUIET, long_run(unsent_log="r0", finished=1), UploadLog("r0")),
    ],
)
def test_a_command_that_runs_long(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**link), work, NOW), expected)


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        ({}, long_run(), WAIT_FOR_STOP),
        ({"poll_after": NOW + 9}, long_run(), Wait(0.25)),
        ({"poll_after": NOW + 9, "contact_at": NOW - 10}, long_run(), Heartbeat()),
        ({"poll_after": NOW + 9}, long_run(finished=1), Exchange()),
        ({"poll_after": NOW}, long_run(), WAIT_FOR_STOP),
    ],
)
def test_a_server_that_answers_early(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**QUIET, **link), work, NOW), expected)


def functions(held: int = 2, long: int = 1, **more: Any) -> Work:
    """Functions: ``long`` of them are known to take long."""
    return Work(functions=held, long_functions=long, claim_size=4, **more)


BESIDE = functions(run="r1", begun=NOW - 5, wanted=3)
BEGUN = BESIDE._replace(begun=NOW - 0.5)
FULL = functions(wanted=0, command_size=8)
DRAINED: dict[str, Any] = {"drained": CLAIMS, "log_sent_at": NOW - 5}
FOR_MORE = Exchange(n=4, wait_s=10.0)
FOR_FUNCTIONS = Exchange(n=3, wait_s=10.0, accepts="functions")
FOR_COMMANDS = Exchange(n=8, wait_s=10.0, accepts="commands")


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        ({}, functions(long=0), Exchange(n=4, holds=False)),
        ({}, functions(long=0, wanted=0), Wait(actions.LAST_REPORT_AFTER_S)),
        (DRAINED, functions(long=0, finished=1, finished_at=NOW - 0.1), Exchange(holds=False)),
        ({}, functions(unreported=True), Exchange(n=4, start=True)),
        ({}, functions(), Exchange(n=4)),
        ({}, functions(stuck_functions=True), GiveBack()),
        (DRAINED, functions(), FOR_MORE),
        (DRAINED, functions(directive=True), WAIT_FOR_STOP),
        (DRAINED, functions(finished=1, finished_at=NOW), FOR_MORE),
        (DRAINED, functions(held=1, finished=1, finished_at=NOW), FOR_MORE),
        (DRAINED, functions(held=1, finished=1, finished_at=NOW, signals=1), Exchange()),
        ({**DRAINED, "contact_at": NOW - 3}, functions(held=1, finished=1), Exchange()),
        (DRAINED, functions(returned=1), FOR_MORE),
        (DRAINED, functions(progress_due=True), Exchange()),
        (DRAINED, functions(log_bytes=1, log_run="f1"), Exchange(n=4, wait_s=0.5, log=True)),
        (DRAINED, functions(log_bytes=LARGE, log_run="f1"), UploadLog("f1")),
        ({**DRAINED, "log_sent_at": NOW - 0.2}, functions(log_bytes=1, log_run="f1"), Exchange(n=4, wait_s=0.3)),
        ({**DRAINED, "contact_at": NOW - 10}, functions(), Heartbeat()),
        ({**DRAINED, "log_sent_at": NOW - 1}, functions(), Exchange(n=4, wait_s=0.5)),
        ({**DRAINED, "poll_after": NOW + 9}, functions(), Wait(0.25)),
    ],
)
def test_functions_beside_each_other(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**link), work, NOW), expected)


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        (DRAINED, BESIDE, FOR_FUNCTIONS),
        ({}, BESIDE, Exchange(n=3, accepts="functions")),
        (DRAINED, BESIDE._replace(unreported=True), Exchange(n=3, accepts="functions", start=True)),
        (DRAINED, BEGUN, Wait(0.25)),
        (DRAINED, BESIDE._replace(finished=1), FOR_FUNCTIONS),
        (DRAINED, BESIDE._replace(log_bytes=1), Exchange(n=3, wait_s=0.5, accepts="functions", log=True)),
        ({**DRAINED, "log_sent_at": NOW}, BESIDE._replace(log_bytes=1), FOR_FUNCTIONS._replace(wait_s=0.5)),
        ({**DRAINED, "contact_at": NOW - 10}, BESIDE, Heartbeat()),
        (DRAINED, BESIDE._replace(directive=True), WAIT_FOR_STOP),
        (DRAINED, BESIDE._replace(wanted=0), WAIT_FOR_STOP),
        (DRAINED, FULL, FOR_COMMANDS),
        ({}, FULL, Exchange(n=8, accepts="commands")),
        (DRAINED, FULL._replace(queued=1), WAIT_FOR_STOP),
        (DRAINED, FULL._replace(run="r2", begun=NOW - 0.1), Wait(0.25)),
        (DRAINED, FULL._replace(directive=True), WAIT_FOR_STOP),
        ({"drained": {"functions"}}, FULL, Exchange(n=8, accepts="commands")),
    ],
)
def test_a_bot_that_is_busy_with_one_kind_of_task_claims_the_other(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**link), work, NOW), expected)


WITHOUT_SLOTS = Work(claim_size=8, command_size=8, has_slots=False, wanted=0)


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        ({}, WITHOUT_SLOTS, Exchange(n=8, wait_s=30.0, accepts="commands")),
        ({}, WITHOUT_SLOTS._replace(run="r1", begun=NOW), Exchange(n=8, accepts="commands", holds=False)),
        (DRAINED, WITHOUT_SLOTS._replace(run="r1", begun=NOW - 5), WAIT_FOR_STOP),
    ],
)
def test_a_bot_without_slots_claims_commands_only(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**link), work, NOW), expected)


def test_a_claim_that_finds_no_more_says_so_for_the_kinds_that_it_accepts():
    link = a_link()
    link.claim_answered("functions", has_more=False)
    assert link.drained == {"functions"}
    link.claim_answered("any", has_more=False)
    assert link.drained == CLAIMS
    link.claim_answered("any", has_more=True)
    assert link.drained == {"functions", "commands"}


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"n": 2, "wait_s": 9.0}, None),
        ({"wait_s": 9.0}, None),
        ({"n": 2, "wait_s": 9.0, "reports": [protocol.StartReport("r0", "t")]}, 0.0),
    ],
)
def test_an_interrupted_request_is_repeated_only_if_something_would_be_lost(body: dict[str, Any], left: float | None):
    link = a_link(pending=a_request(**body))
    link.interrupted()
    assert (link.pending.message.wait_s if link.pending is not None else None) == left


FAILED: dict[str, Any] = {"failures": 1, "failed_at": NOW - 1, "retry_s": 4.0}


@pytest.mark.parametrize(
    ("link", "work", "expected"),
    [
        (FAILED, IDLE, Pause(3.0)),
        (FAILED, long_run(log_bytes=LARGE), Pause(3.0)),
        ({**FAILED, "has_session": False}, IDLE, Pause(3.0)),
        ({**FAILED, "retry_s": 1.0}, IDLE, POLL),
        ({**FAILED, "failures": 0}, IDLE, POLL),
        (FAILED, IDLE._replace(signals=1, signal_at=NOW - 1), ShutDown()),
        ({**FAILED, "failed_at": NOW}, IDLE._replace(signals=1, signal_at=NOW), Pause(0.5)),
        ({**FAILED, "failures": 2}, IDLE._replace(signals=1, signal_at=NOW), GiveUp()),
        ({**FAILED, "failures": 9}, IDLE._replace(signals=1, signal_at=NOW - 9, finished=1), Exchange()),
        (FAILED, IDLE._replace(signals=1, signal_at=NOW - 11, finished=1), GiveUp()),
        ({**FAILED, "failed_at": NOW}, long_run(signals=1, signal_at=NOW - 99), Pause(0.5)),
    ],
)
def test_after_a_failed_call(link: dict[str, Any], work: Work, expected: Action):
    check(next_action(a_link(**link), work, NOW), expected)


def test_a_request_that_changes_nothing_is_forgotten_when_it_fails():
    bodies: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"n": 1}, True),
        ({"reports": [protocol.StartReport("r0", "t")]}, True),
        ({"logs": [protocol.LogPiece("r0", "t", 0, 0, b"")]}, False),
    ]
    for body, kept in bodies:
        link = a_link(pending=a_request(**body))
        assert link.failed(NOW) == 1
        assert (link.pending is not None) == kept


def test_only_an_exchange_or_a_heartbeat_ends_a_series_of_failures():
    link = a_link()
    assert [link.failed(NOW), link.failed(NOW)] == [1, 2]
    link.session_begun(NOW + 5, poll_s=30.0, heartbeat_s=10.0)
    assert (link.failures, link.contact_at, link.silent_s) == (2, NOW + 5, 5.0)
    link.answered(NOW + 7)
    assert (link.failures, link.contact_at, link.silent_s) == (0, NOW + 7, 2.0)


def test_the_streams_of_a_log_take_turns():
    link = a_link()
    link.piece_sent(NOW, 0, 0.0)
    assert (link.log_stream, link.log_resume_at) == (1, 0.0)
    link.piece_sent(NOW, 1, 2.0)
    assert (link.log_stream, link.log_resume_at) == (0, NOW + 2.0)
