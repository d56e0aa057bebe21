"""Reads the answers of the processes that run functions, and makes records of them."""

from __future__ import annotations

import logging
import os
import select
from typing import TYPE_CHECKING, Any

from myrmidon.bot.slots import records
from myrmidon.bot.slots.executor_process import BrokenProtocol, ExecutorProcess
from myrmidon.bot.slots.function_run import FunctionRun
from myrmidon.bot.slots.run_files import inline_output
from myrmidon.bot.slots.slot_pool import Slot
from myrmidon.bot.system import clock, filesystem

if TYPE_CHECKING:
    from myrmidon.bot.slots.slot_loop import SlotLoop

_KEEP_OUTPUT_BYTES = 1 << 20

log = logging.getLogger("myrmidon.bot")


class AnswerReader:
    """Used by the loop's thread. ``readers``: the processes that may answer, by the file descriptor of their pipe.

    ``spent``: the durations of runs that have ended since they were last taken.
    """

    def __init__(self, loop: SlotLoop) -> None:
        self.loop = loop
        self.readers: dict[int, tuple[Slot, ExecutorProcess]] = {}
        self.spent: list[float] = []

    def register(self, slot: Slot, executor: ExecutorProcess) -> None:
        """Wait for answers of this process from now on."""
        self.readers[executor.channel.reader] = (slot, executor)
        self.loop.poll.register(executor.channel.reader, select.POLLIN)

    def unregister(self, executor: ExecutorProcess) -> None:
        if self.readers.pop(executor.channel.reader, None) is not None:
            self.loop.poll.unregister(executor.channel.reader)

    def receive(self, reader: int) -> None:
        """Apply the answers that a process has written so far; ``reader`` is the file descriptor of its pipe."""
        if reader not in self.readers:
            return
        slot, executor = self.readers[reader]
        try:
            messages, is_open = executor.receive()
            now = clock.boottime()
            for message in messages:
                self._apply(slot, executor, message, now)
        except (BrokenProtocol, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            log.warning("process %d has sent something else than an answer: %r", executor.pid, error)
            executor.kill("protocol", clock.boottime())
            self.unregister(executor)
            return
        if not is_open:
            self.unregister(executor)
            if not executor.ending:
                executor.ending, executor.ending_at = "closed", now

    def take_spent(self) -> list[float]:
        spent, self.spent = self.spent, []
        return spent

    def _apply(self, slot: Slot, executor: ExecutorProcess, message: dict[str, Any], now: float) -> None:
        operation = message["op"]
        if operation in ("done", "error"):
            run = executor.current
            if run is None or run.id != message["id"]:
                raise BrokenProtocol(f"an answer for {message['id']}")
            record = self._record_of(executor, run, message, now)
            executor.end_current(now)
            if not executor.pending and slot.active is executor:
                slot.active = None
                executor.cut_files(_KEEP_OUTPUT_BYTES)
            if run.end_reason:
                executor.kill("told to end", now)
            if run.run not in self.loop.storing:
                self.loop.end(run, record)
        elif operation == "begin":
            executor.begin(message["id"], now)
        elif operation == "progress" and executor.current is not None and executor.current.id == message["id"]:
            self.loop.lane.note_progress(executor.current.run, float(message["value"]))
        elif operation == "ready":
            executor.is_ready = True

    def _record_of(
        self, executor: ExecutorProcess, run: FunctionRun, answer: dict[str, Any], now: float
    ) -> dict[str, Any] | None:
        """The record of an answered run. Raises KeyError, TypeError or ValueError if the answer is invalid."""
        loop = self.loop
        end = (int(answer["out"]), int(answer["err"]))
        if end[0] != executor.ends[0] or end[1] != executor.ends[1]:
            loop.watch.store_output(executor, run, end)
        seconds = max(0.0, float(answer.get("seconds", now - run.begun)))
        self.spent.append(seconds)
        run.stats.add(seconds)
        if run.end_reason:
            return loop.watch.record_of_end(run, now, exit_code=int(answer["op"] == "error"))
        if answer["op"] == "error":
            message = records.error_message(answer)
            if filesystem.is_nearly_full(executor.folder):
                return records.fault(run, "disk_full", f"the function failed while the disk was full: {message}")
            return records.failure(run, seconds, message, dict(answer["error"]))
        record = records.finish(run, seconds, 0)
        report = record["report"]
        if answer.get("delegated"):
            report["delegated"] = True
        outputs = loop.files.open_outputs(answer, run, os.path.join(executor.folder, "out"))
        if all(data is not None for _, data, _ in outputs):
            report["outputs"] = [inline_output(kind, data) for kind, data, _ in outputs if data is not None]
        else:
            loop.storing[run.run] = run
            loop.files.store(run, record, outputs)
        loop.on_success()
        return record
