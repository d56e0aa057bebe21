"""Converts messages of bots to what the scheduler takes, and its replies to messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from myrmidon.model.ids import try_parse_id
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Fault, Finish, GiveBack, Report, Start
from myrmidon.model.validation import MAX_INT64
from myrmidon.model.value import OutputValue
from myrmidon.scheduler.report import LogBytes, Outcome, Reply
from myrmidon.server.botapi.messages import (
    MAX_MARKS,
    BotReport,
    FaultReport,
    FinishReport,
    GiveBackReport,
    LogPiece,
    ReportedValue,
    ReportResult,
    StartReport,
)
from myrmidon.server.usecases.run_errors import stored_error
from myrmidon.store.tables.log_times import Mark

_NO_RUN = (0, 0)
_MARKS = re.compile(r"[0-9]{1,18}\.[0-9]{1,16}(?:,[0-9]{1,18}\.[0-9]{1,16})*")


def parse_run(shown: str) -> tuple[int, int]:
    """Task id and run of a printed run id; (0, 0), which does not exist, if it cannot be parsed."""
    return try_parse_id(shown) or _NO_RUN


def to_report(report: BotReport) -> Report:
    """Convert a bot's report to that of the scheduler."""
    task_id, run = parse_run(report.run)
    match report:
        case StartReport():
            return Start(task_id, run, report.token)
        case GiveBackReport():
            return GiveBack(task_id, run, report.token)
        case FaultReport():
            return Fault(
                task_id=task_id,
                run=run,
                token=report.token,
                kind=report.kind,
                message=report.message,
                signal=report.signal,
                oom=report.oom,
                cost_usd=report.cost_usd,
            )
        case FinishReport():
            return Finish(
                task_id=task_id,
                run=run,
                token=report.token,
                exit_code=report.exit_code,
                duration=report.duration,
                hard_timeout=report.hard_timeout,
                io_timeout=report.io_timeout,
                killed=report.killed,
                start_failed=report.start_failed,
                outputs=[_output(value) for value in report.outputs] if report.outputs else (),
                outputs_ref=report.outputs_ref,
                stdout_size=report.stdout_size,
                stderr_size=report.stderr_size,
                cost_usd=report.cost_usd,
                stats=report.stats,
                message=report.message,
                delegated=report.delegated,
                error=stored_error(report.error) if report.error is not None else None,
            )


def _output(value: ReportedValue) -> OutputValue:
    """The output as the scheduler checks it; a size of -1 is refused there."""
    given = value.payload
    size = given.size if given.size is not None else len(given.inline) if given.inline is not None else -1
    return OutputValue(value.type, Payload(inline=given.inline, digest=given.digest, size=size))


def progress_of(shares: Mapping[str, float]) -> dict[tuple[int, int], float]:
    return {parse_run(shown): share for shown, share in shares.items()}


def held_runs(holds: Iterable[tuple[str, str]]) -> list[tuple[int, int, str]]:
    return [(*parse_run(shown), token) for shown, token in holds]


def to_log_bytes(piece: LogPiece) -> LogBytes:
    task_id, run = parse_run(piece.run)
    return LogBytes(
        task_id=task_id,
        run=run,
        token=piece.token,
        stream=piece.stream,
        offset=piece.offset,
        content=piece.data,
        marks=[Mark(at, offset) for at, offset in piece.marks],
    )


def parse_marks(text: str) -> list[Mark]:
    """The marks of the header ``X-Log-Marks``; none if it is malformed, for output is worth more than its times.

    ``at.offset,at.offset,...``; from the second on, each number is the difference to the one before.
    """
    if not _MARKS.fullmatch(text):
        return []
    marks: list[Mark] = []
    at = offset = 0
    for pair in text.split(",")[:MAX_MARKS]:
        later, further = pair.split(".")
        at, offset = at + int(later), offset + int(further)
        if at > MAX_INT64 or offset > MAX_INT64:
            return []
        marks.append(Mark(at, offset))
    return marks


def report_results(replies: Sequence[Reply]) -> list[ReportResult]:
    """The outcomes for the bot; a repeated report counts as accepted, so that a retry gets the same response."""
    return [
        ReportResult("accepted" if reply.outcome is Outcome.REPEATED else str(reply.outcome), reply.stop)
        for reply in replies
    ]
