"""Answers applied, and requests taken apart: with the real queue, spool, journal and command, without a server."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any, cast

import pytest

from myrmidon.bot.link import exchange_request
from myrmidon.bot.link.answers import Answers
from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.link_state import LinkState
from myrmidon.bot.run.command import Command
from myrmidon.bot.run.command_watcher import CommandWatcher
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from myrmidon.bot.system import clock

NOW = 1000.0
WAIT = {"session": 1, "nonce": 1, "n": 0, "wait_s": 10.0}


def a_task(run: str = "r1") -> dict[str, Any]:
    return {"run": run, "token": "t", "claimed_at": clock.boottime(), "execution_timeout_s": 60, "grace_period_s": 30}


class Bot:
    """The parts that answers change; the task r1 has been taken from the queue."""

    def __init__(self, folder: Path) -> None:
        self.link = LinkState(NOW)
        self.queue = RunQueue([])
        self.spool = LogSpool(str(folder / "spool"))
        self.watcher = CommandWatcher(self.spool, lambda _: None)
        nothing: Any = None
        self.directives = Directives(nothing, self.queue, nothing, nothing, nothing, nothing)
        journal = ResultJournal(str(folder / "journal"))
        self.answers = Answers(
            self.link, self.queue, self.directives, journal=journal, spool=self.spool, watcher=self.watcher
        )
        self.queue.add([a_task()])
        self.task = cast("dict[str, Any]", self.queue.next_task())

    def ask(self, answer: dict[str, Any], sent_at: float = NOW) -> None:
        """A request that waits for a stop is answered."""
        request = self.link.pending = exchange_request.build(self.queue, self.spool, dict(WAIT))
        request.sent_at = sent_at
        self.answers.apply_exchange(request, answer, sent_at, sent_at)


@pytest.fixture
def bot(tmp_path: Path) -> Bot:
    return Bot(tmp_path)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({}, {}),
        ({"stop": ["r1"]}, {"stop": ["r1"]}),
        ({"order": "terminate"}, {"order": "terminate"}),
        ({"stop": ["unknown"]}, {"stop": ["unknown"]}),
    ],
    ids=["nothing", "a stop", "an order", "a stop of another run"],
)
def test_an_answer_without_news_is_asked_for_again_only_when_its_time_is_over(
    bot: Bot, first: dict[str, Any], again: dict[str, Any]
):
    bot.ask(first)
    told_news = first.get("stop") == ["r1"] or "order" in first
    assert bot.link.poll_after == (0.0 if told_news else NOW + 10.0)
    bot.ask(again, sent_at=NOW + 1)
    assert bot.link.poll_after == NOW + 11.0
    assert bot.link.pending is None


def test_a_stop_waits_for_the_process_and_is_forgotten_with_the_run(bot: Bot):
    bot.ask({"stop": ["r1"]})
    assert bot.link.stopping("r1")
    assert not bot.answers.carry_out_stop()
    command = bot.watcher.current = Command(bot.task, NOW)
    assert bot.answers.carry_out_stop()
    assert _end_request(command) == ("killed", 30)
    bot.watcher.current = None
    bot.queue.finish_task(bot.task, None)
    assert bot.answers.carry_out_stop()
    assert bot.link.stop is None


def test_a_stop_that_is_repeated_after_the_lease_has_no_grace(bot: Bot):
    command = bot.watcher.current = Command({**bot.task, "lease_s": 5}, NOW)
    bot.task["lease_s"] = 5
    bot.ask({"stop": ["r1"]})
    assert _end_request(command) == ("killed", 30)
    bot.link.answered(bot.link.contact_at + 6)
    bot.ask({"stop": ["r1"]})
    assert _end_request(command) == ("killed", 0.0)


def _end_request(command: Command) -> tuple[str, float] | None:
    return command.end_request


def _record(run: str, *output: bytes) -> dict[str, Any]:
    logs = [[stream, 0, b64encode(data).decode()] for stream, data in enumerate(output) if data]
    return {"report": {"type": "finish", "run": run, "token": "t"}, "logs": logs}


def test_a_request_is_taken_apart_so_that_each_log_precedes_its_result(tmp_path: Path):
    spool = LogSpool(str(tmp_path / "spool"))
    queue = RunQueue([_record("quiet"), _record("loud", b"out", b"err"), _record("quiet too")])
    queue.return_tasks([a_task("unwanted")])
    request = exchange_request.build(queue, spool, dict(WAIT))
    request.move_logs_to(spool)
    assert [report["run"] for report in request.body["reports"]] == ["quiet", "unwanted"]
    assert (request.body["logs"], [record["report"]["run"] for record in request.records]) == ([], ["quiet"])
    assert [spool.read("loud", stream, 99) for stream in (0, 1)] == [(0, b"out"), (0, b"err")]
    queue.remove_reported(1)
    assert exchange_request.build(queue, spool, dict(WAIT)).records == []
    spool.remove("loud")
    following = exchange_request.build(queue, spool, dict(WAIT))
    assert [record["report"]["run"] for record in following.records] == ["loud", "quiet too"]
    assert following.body["logs"] == []


@pytest.mark.parametrize(
    ("line", "left"), [(b"<gone>", (4, b"<gone>rest")), (b"<longer than that>", (10, b"rest"))], ids=["line", "gap"]
)
def test_bytes_that_are_refused_are_replaced_by_a_line_if_it_fits(tmp_path: Path, line: bytes, left: tuple[int, bytes]):
    spool = LogSpool(str(tmp_path / "spool"))
    spool.append("r1", "t", 0, b"0123456789rest", 0)
    assert spool.drop_refused("r1", 0, 0, 10, line) == (left[1] != b"rest")
    assert spool.read("r1", 0, 99) == left
    assert spool.pending_bytes("r1") == len(left[1])
    assert LogSpool(str(tmp_path / "spool")).read("r1", 0, 99)[1].endswith(left[1])
