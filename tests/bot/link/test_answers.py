"""Answers applied, and requests taken apart: with the real queue, spool and journal, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.link.answers import Answers
from myrmidon.bot.link.directives import Directives
from myrmidon.bot.link.link_state import LinkState
from myrmidon.bot.protocol import Answer, FaultReport, Unreadable
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.storage.result_journal import ResultJournal
from tests.bot.runs import a_record, a_request, a_run, a_task

NOW = 1000.0


class Bot:
    """The parts that answers change; the command r1 has been taken from the queue."""

    def __init__(self, folder: Path) -> None:
        self.link = LinkState(NOW)
        self.queue = RunQueue([])
        self.spool = LogSpool(str(folder / "spool"))
        nothing: Any = None
        self.journal = ResultJournal(str(folder / "journal"))
        self.directives = Directives(nothing, self.queue, nothing, nothing, nothing, self.journal)
        self.answers = Answers(self.link, self.queue, self.directives, journal=self.journal, spool=self.spool)
        self.run = a_run(lease_s=5.0)
        self.queue.add([self.run])
        assert self.queue.next_command() is self.run

    def ask(self, answer: Answer, sent_at: float = NOW, **action: Any) -> None:
        """A request that waits for a stop is answered."""
        request = a_request(self.queue, self.spool, self.link, **{"wait_s": 10.0, **action})
        request.sent_at = sent_at
        self.answers.apply_exchange(request, answer, sent_at, sent_at)

    def end_request(self) -> tuple[str, float] | None:
        return self.run.end_request


@pytest.fixture
def bot(tmp_path: Path) -> Bot:
    return Bot(tmp_path)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (Answer(), Answer()),
        (Answer(stop=["r1"]), Answer(stop=["r1"])),
        (Answer(order="terminate"), Answer(order="terminate")),
        (Answer(stop=["unknown"]), Answer(stop=["unknown"])),
    ],
    ids=["nothing", "a stop", "an order", "a stop of another run"],
)
def test_an_answer_without_news_is_asked_for_again_only_when_its_time_is_over(bot: Bot, first: Answer, again: Answer):
    bot.ask(first)
    told_news = first.stop == ["r1"] or first.order is not None
    assert bot.link.poll_after == (0.0 if told_news else NOW + 10.0)
    bot.ask(again, sent_at=NOW + 1)
    assert bot.link.poll_after == NOW + 11.0
    assert bot.link.pending is None


def test_a_stop_that_is_repeated_after_the_lease_has_no_grace(bot: Bot):
    bot.ask(Answer(stop=["r1"]))
    assert bot.end_request() == ("killed", 30)
    bot.link.answered(bot.link.contact_at + 6)
    bot.ask(Answer(stop=["r1"]))
    assert bot.end_request() == ("killed", 0.0)


def test_the_server_is_told_which_runs_are_being_stopped(bot: Bot):
    bot.run.taken_at -= 5
    bot.ask(Answer(stop=["r1"]))
    assert a_request(bot.queue, bot.spool).message.stopping == ["r1"]


def test_tasks_that_cannot_be_run_end_at_once_with_the_reason(bot: Bot):
    tasks: list[Any] = [
        a_task("r2", problem="its input is gone"),
        Unreadable("r3", "t", "it makes no sense"),
        a_task("r4"),
    ]
    bot.ask(Answer(tasks=tasks), n=3)
    assert [record.report for record in bot.queue.finished] == [
        FaultReport("r2", "t", "client_error", "its input is gone"),
        FaultReport("r3", "t", "bot_error", "it makes no sense"),
    ]
    assert (list(bot.queue.runs), list(bot.journal.open_runs)) == (["r1", "r4"], ["r2", "r3"])


def test_a_terminate_task_returns_what_came_with_it(bot: Bot):
    bot.ask(Answer(tasks=[a_task("r2"), a_task("r3", terminate=True)]), n=2)
    assert (bot.directives.pending, list(bot.queue.runs)) == ("terminate", ["r1"])
    assert [run.id for run in bot.queue.returned] == ["r2"]


def test_a_task_that_the_bot_has_already_is_not_run_twice(bot: Bot):
    bot.journal.add(a_record("r2"))
    bot.ask(Answer(tasks=[a_task("r1"), a_task("r2"), a_task("r3")]), n=3)
    assert list(bot.queue.runs) == ["r1", "r3"]


def test_a_request_is_taken_apart_so_that_each_log_precedes_its_result(tmp_path: Path):
    spool = LogSpool(str(tmp_path / "spool"))
    queue = RunQueue([a_record("quiet"), a_record("loud", b"out", b"err"), a_record("quiet too")])
    queue.return_runs([a_run("unwanted")])
    request = a_request(queue, spool)
    request.move_logs_to(spool, queue)
    assert [report.run for report in request.message.reports] == ["quiet", "unwanted"]
    assert (request.message.logs, [record.report.run for record in request.records]) == ((), ["quiet"])
    assert [spool.read("loud", stream, 99) for stream in (0, 1)] == [(0, b"out"), (0, b"err")]
    queue.remove_reported(1)
    assert a_request(queue, spool).records == []
    spool.remove("loud")
    following = a_request(queue, spool)
    assert [record.report.run for record in following.records] == ["loud", "quiet too"]
    assert following.message.logs == []


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
