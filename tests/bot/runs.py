"""Tasks, runs and records for tests of the bot's parts."""

from __future__ import annotations

from typing import Any

from myrmidon.bot.link.exchange import ExchangeRequest, RequestBuilder
from myrmidon.bot.link.link_state import LinkState
from myrmidon.bot.link.next_action import Exchange
from myrmidon.bot.protocol import Chunk, ExchangeMessage, FinishReport, Function, Record, Task
from myrmidon.bot.run.run import Run
from myrmidon.bot.run.run_queue import RunQueue
from myrmidon.bot.storage.log_spool import LogSpool
from myrmidon.bot.system import clock


def a_task(run: str = "r1", **fields: Any) -> Task:
    return Task(run, "t", **{"execution_timeout_s": 60, "grace_period_s": 30, **fields})


def a_run(run: str = "r1", *, claimed_at: float | None = None, **fields: Any) -> Run:
    return Run(a_task(run, **fields), clock.boottime() if claimed_at is None else claimed_at)


def a_function(run: str = "f1", **fields: Any) -> Run:
    return a_run(run, function=Function("p", "f"), **fields)


def a_record(run: str, *output: bytes) -> Record:
    logs = [Chunk(stream, 0, data) for stream, data in enumerate(output) if data]
    return Record(FinishReport(run, "t", exit_code=0), logs)


def a_request(queue: RunQueue, spool: LogSpool, link: LinkState | None = None, **action: Any) -> ExchangeRequest:
    """The request that a bot would send now."""
    return RequestBuilder(link or LinkState(0.0), queue, spool).build(Exchange(**action), ExchangeMessage(1))
