"""What a storm knows without Myrmidon: what was asked and acknowledged, what ran, and what receivers got.

Commands and functions append a line to one file when they begin and when they end, clients append marks to it. A write
of one line to a file that is opened for appending is not divided, so the order of the lines is the order in which the
things have happened, whatever the clocks say.

    RUN start              a run has begun; RUN is the id that the bot has given to it
    RUN end                its command has come to its last line
    mark WORD SUBJECT      a client has done or seen something
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUCCEEDED = frozenset({"SUCCEEDED"})


@dataclass(frozen=True)
class Command:
    """A command as it was requested, and what must come of it: one of ``ends``, and these bytes on stdout."""

    name: str
    kind: str
    body: str
    stdout: bytes = b""
    stdin: bytes | None = None
    exit_code: int = 0
    retries: int = 50
    reruns: int = 0
    ends: frozenset[str] = SUCCEEDED
    timeout_s: float = 600.0

    def shell(self, ledger: Path) -> list[str]:
        note = f'echo "$MYRMIDON_TASK_ID %s" >> {ledger}'
        return ["/bin/sh", "-c", f"{note % 'start'}; {self.body}; {note % 'end'}; exit {self.exit_code}"]


@dataclass
class Graph:
    """A job that was acknowledged: its commands and edges as requested, and the states in which it may end."""

    id: str
    story: str
    commands: dict[str, Command]
    edges: dict[str, Sequence[str]]
    task_ids: dict[str, str]
    ends: frozenset[str] = SUCCEEDED
    full_reruns: int = 0
    cancelled: bool = False


@dataclass(frozen=True)
class Violation:
    """A promise that was broken, with the evidence."""

    promise: str
    text: str
    evidence: Sequence[str] = ()


@dataclass
class Executions:
    """The lines of the file, by run: their numbers in the file."""

    starts: Mapping[str, list[int]]
    ends: Mapping[str, list[int]]
    marks: Mapping[tuple[str, str], list[int]]
    lines: list[str]

    def of_task(self, task_id: str) -> list[str]:
        return [
            f"line {n}: {line}" for n, line in enumerate(self.lines) if task_of(line.split()[0]) == task_of(task_id)
        ]


def task_of(run_or_task: str) -> str:
    """What the ids of a task and of its runs have in common."""
    return run_or_task[:-2]


@dataclass
class Ledger:
    """Shared by all clients of a storm."""

    folder: Path
    commands: dict[str, Command] = field(default_factory=dict)
    """By the id of the task."""
    graphs: dict[str, Graph] = field(default_factory=dict)
    cancelled: dict[str, str] = field(default_factory=dict)
    """Tasks whose cancellation was acknowledged, with the state that the answer named."""
    first_ends: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """(state, run, exit code) of tasks when a client first saw them ended."""
    names: set[str] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    received: dict[str, list[tuple[str, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    """What each receiver of messages got: message ids and bodies."""

    def __post_init__(self) -> None:
        self.path = self.folder / "executions"
        self.path.touch()
        self.path.chmod(0o666)
        self._lock = threading.Lock()

    def count(self, what: str, n: int = 1) -> None:
        with self._lock:
            self.counts[what] += n

    def mark(self, word: str, subject: str) -> None:
        """Append a mark: all lines below it were written later."""
        line = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(line, f"mark {word} {subject}\n".encode())
        finally:
            os.close(line)

    def violation(self, promise: str, text: str, *evidence: str) -> None:
        with self._lock:
            self.violations.append(Violation(promise, text, evidence))

    def acknowledged(self, task_ids: Sequence[str], commands: Sequence[Command]) -> None:
        with self._lock:
            self.commands.update(zip(task_ids, commands, strict=True))
            self.names.update(command.name for command in commands)
        self.count("tasks acknowledged", len(commands))

    def graph(self, graph: Graph) -> None:
        with self._lock:
            self.graphs[graph.id] = graph
        self.count(f"jobs: {graph.story}")
        self.count("tasks acknowledged", len(graph.task_ids))

    def seen_ended(self, task_id: str, end: tuple[Any, ...]) -> None:
        """Whoever sees a task ended for the second time must see the same."""
        with self._lock:
            first = self.first_ends.setdefault(task_id, end)
        if first != end:
            self.violation("one result counts", f"task {task_id} had ended as {first} and is now {end}")

    def runs_again(self, task_id: str) -> None:
        """A client has let an ended task run again."""
        with self._lock:
            del self.first_ends[task_id]
        self.count("tasks rerun")

    def executions(self) -> Executions:
        starts, ends, marks = defaultdict(list), defaultdict(list), defaultdict(list)
        lines = self.path.read_text().splitlines()
        for number, line in enumerate(lines):
            match line.split():
                case [run, "start"]:
                    starts[run].append(number)
                case [run, "end"]:
                    ends[run].append(number)
                case ["mark", word, subject]:
                    marks[word, subject].append(number)
                case _:
                    self.violation("the ledger", f"line {number} is none of ours: {line!r}")
        return Executions(starts, ends, marks, lines)
