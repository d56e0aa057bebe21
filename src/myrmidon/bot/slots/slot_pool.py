"""The slots for functions and their processes: which process gets the next run, and which one must go.

A slot runs one function at a time. It keeps the processes of a few codes, so that functions of several jobs can
alternate without a start of Python each time. Runs of a short function are queued in the pipe of a process, so that it
never waits for the bot.
"""

from __future__ import annotations

import select
from collections.abc import Iterator

from myrmidon.bot.run.run import ProcessKey, Run
from myrmidon.bot.slots.executor_process import ExecutorProcess
from myrmidon.bot.slots.launcher import Launcher
from myrmidon.bot.slots.run_files import RunFiles
from myrmidon.bot.system import processes

PER_SLOT = 3
"""How many processes a slot keeps."""
IDLE_S = 600.0
"""A process that was not used for so long is ended."""
SHORT_S = 0.1  # a function that takes longer is never queued behind another one
PIPE_S = 0.01  # how much work is queued in the pipe of a process
MAX_DEPTH = 64
_LEAST_S = 1e-5
_MAX_STATS = 4096


class FunctionStats:
    """The mean duration of each function of this bot."""

    def __init__(self) -> None:
        self.mean_s: dict[tuple[str, str, str], float] = {}

    def depth(self, run: Run) -> int:
        """How many runs of this function may be in the pipe of a process."""
        mean_s = self.mean_s.get(_name_of(run), SHORT_S * 2)
        return 1 if mean_s > SHORT_S else min(MAX_DEPTH, max(2, int(PIPE_S / max(mean_s, _LEAST_S))))

    def add(self, run: Run, seconds: float) -> None:
        name = _name_of(run)
        mean_s = self.mean_s.get(name)
        if mean_s is None and len(self.mean_s) >= _MAX_STATS:
            self.mean_s.clear()
        self.mean_s[name] = max(seconds, _LEAST_S) if mean_s is None else 0.8 * mean_s + 0.2 * seconds


def _name_of(run: Run) -> tuple[str, str, str]:
    function = run.task.function
    return (run.key.code, function.package_name, function.func_name) if function is not None else ("", "", "")


class Slot:
    """``executors``: its processes, by code, the least recently used one first. ``active``: the one that has runs."""

    def __init__(self) -> None:
        self.executors: dict[ProcessKey, ExecutorProcess] = {}
        self.active: ExecutorProcess | None = None

    def use(self, key: ProcessKey) -> ExecutorProcess | None:
        """The process for this key; it becomes the most recently used one."""
        executor = self.executors.pop(key, None)
        if executor is not None:
            self.executors[key] = executor
        return executor

    def unused(self) -> list[ExecutorProcess]:
        """Processes that must go before another one is started here."""
        idle = [executor for executor in self.executors.values() if not executor.pending and not executor.ending]
        return idle[: max(0, len(self.executors) - PER_SLOT + 1)]


class SlotPool:
    """All slots and processes. Used by one thread. ``leaving``: processes that get no more runs and have not ended yet.

    ``readers``: the processes that may answer, by the file descriptor of their pipe. ``orphans``: processes that others
    have left behind, killed and to be reaped.
    """

    def __init__(self, count: int, launcher: Launcher, files: RunFiles) -> None:
        self.slots = [Slot() for _ in range(count)]
        self.launcher = launcher
        self.files = files
        self.stats = FunctionStats()
        self.leaving: list[tuple[Slot, ExecutorProcess]] = []
        self.readers: dict[int, tuple[Slot, ExecutorProcess]] = {}
        self.orphans: set[int] = set()
        self.poll = select.poll()

    # ---------------------------------------------------------------- processes

    def executor_for(self, run: Run, slot: Slot, now: float) -> ExecutorProcess:
        """The process of a slot for this run, started if need be. Raises OSError or ValueError."""
        executor = slot.use(run.key)
        if executor is not None and executor.pending:
            return executor
        if executor is not None:
            if not (executor.ending or self.launcher.is_outdated(executor) or executor.is_bloated(run)):
                return executor
            self._retire(slot, executor, now)
        for unused in slot.unused():
            self._retire(slot, unused, now)
        files = self.files
        runtime = files.environments.runtime(run.key)
        code, values = files.codes.path(run.key.code), files.values.make_folder(run.key.group)
        executor = self.launcher.start(run.key, code, values, runtime)
        slot.executors[run.key] = executor
        self.readers[executor.channel.reader] = (slot, executor)
        self.poll.register(executor.channel.reader, select.POLLIN)
        return executor

    def _retire(self, slot: Slot, executor: ExecutorProcess, now: float) -> None:
        """End an idle process, and make room for another one at once."""
        if not executor.ending:
            executor.kill("retired", now)
        del slot.executors[executor.key]
        self.leaving.append((slot, executor))

    def stop_reading(self, executor: ExecutorProcess) -> None:
        if self.readers.pop(executor.channel.reader, None) is not None:
            self.poll.unregister(executor.channel.reader)

    def remove(self, slot: Slot, executor: ExecutorProcess) -> list[Run]:
        """Forget a process that has ended; the runs that it has not answered."""
        if slot.executors.get(executor.key) is executor:
            del slot.executors[executor.key]
        if slot.active is executor:
            slot.active = None
        self.leaving = [pair for pair in self.leaving if pair[1] is not executor]
        self.stop_reading(executor)
        runs = list(executor.pending)
        executor.pending.clear()
        return runs

    def reap(self) -> None:
        self.orphans = {pid for pid in self.orphans if not processes.has_ended(pid)}

    def end_unused(self, now: float) -> None:
        """End processes that were not used for long."""
        for _, executor in self.executors():
            if not executor.pending and not executor.ending and now - executor.used_at > IDLE_S and executor.used_at:
                executor.kill("unused", now)

    # ---------------------------------------------------------------- runs

    def choose(self, run: Run) -> Slot | None:
        """The slot for a run; None if all are busy.

        An idle one that has a process for it, else an idle one, else the one with the fewest runs in its pipe if the
        function is short.
        """
        idle: Slot | None = None
        shortest: Slot | None = None
        depth = self.stats.depth(run)
        for slot in self.slots:
            active = slot.active
            if active is None:
                if run.key in slot.executors:
                    return slot
                idle = idle or slot
            elif active.key == run.key and len(active.pending) < depth and not active.ending:
                depth, shortest = len(active.pending), slot
        return idle or shortest

    def busy(self) -> int:
        return sum(1 for slot in self.slots if slot.active is not None)

    def heads(self) -> Iterator[tuple[Slot, ExecutorProcess, Run]]:
        """The first run of each process that has some: it works on that one, or is about to."""
        for slot in self.slots:
            if slot.active is not None and slot.active.pending:
                yield slot, slot.active, slot.active.pending[0]

    def executors(self) -> Iterator[tuple[Slot, ExecutorProcess]]:
        for slot in self.slots:
            for executor in list(slot.executors.values()):
                yield slot, executor
        yield from list(self.leaving)

    def take_back(self, slot: Slot, now: float) -> list[Run]:
        """Take back the runs of a slot that have not begun; perhaps all, if its process has only been started."""
        executor = slot.active
        if executor is None:
            return []
        taken = executor.take_back(now)
        if not executor.pending:
            slot.active = None
        return taken

    def overfull(self) -> Slot | None:
        """A slot with several runs, of which another one could begin some now."""
        if all(slot.active is not None for slot in self.slots):
            return None
        found = [slot for slot in self.slots if slot.active is not None and len(slot.active.pending) > 1]
        return max(found, key=_num_pending, default=None)


def _num_pending(slot: Slot) -> int:
    return len(slot.active.pending) if slot.active is not None else 0
