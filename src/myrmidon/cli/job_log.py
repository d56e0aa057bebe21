"""`job log`: the output of a job's tasks, one below the other, or of all running ones at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Queue
from typing import TYPE_CHECKING, Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected
from myrmidon.cli.function_errors import deciding_run, error_lines
from myrmidon.cli.job_changes import JobChanges
from myrmidon.cli.job_lines import describe_end_on_bot
from myrmidon.cli.jobs import JOB_ARGUMENT, handle
from myrmidon.cli.logs import exit_on_broken_pipe, print_log
from myrmidon.cli.safe_text import escape
from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.exit_code import exit_code_text
from myrmidon.sdk.job_graph import FAILED

if TYPE_CHECKING:
    from myrmidon.sdk.jobs import Job
    from myrmidon.wire import jobs as wire
    from myrmidon.wire.logs import Ended

STARTED: Final = ("RUNNING", "SUCCEEDED", *FAILED)
MAX_FOLLOWED: Final = 16
"""The number of tasks that are followed at the same time; each needs a connection. The others follow as these end."""
_MAX_LINE: Final = 16_384
"""Bytes of a line without an end that are held back for it."""


@click.command()
@JOB_ARGUMENT
@click.option("--failed", is_flag=True, help="Only tasks that did not succeed.")
@click.option("--label", "pattern", metavar="GLOB", help="Only tasks whose label matches, such as 'test-*'.")
@click.option(
    "--follow", "-f", is_flag=True, help="Follow all running tasks until the job ends, each line after its label."
)
@connected
@exit_on_broken_pipe()
def log(cli: CliContext, name: str, pattern: str | None, *, failed: bool, follow: bool) -> int:
    """Print the output of the tasks of a job. A line with its label is above each.

    With -f, the tasks that run are followed at the same time, up to 16, and every line begins with the label of its
    task. Exits with the job's result then.
    """
    the_job, states = handle(cli, name), FAILED if failed else STARTED
    if follow:
        return _follow_job(cli, the_job, pattern, states)
    print_job_log(cli, the_job, pattern, states)
    return exit_codes.OK


def print_job_log(cli: CliContext, job: Job, pattern: str | None, states: Sequence[str]) -> None:
    """Print the output so far of the tasks of a job, in the order of their start."""
    tasks = [task for task in job.tasks(state=states, label=pattern) if task.started_at or task.deduped_from]
    for task in sorted(tasks, key=lambda task: task.started_at or 0):
        output.note(f"--- {task.label}{_failure(task)}")
        if task.run is not None or task.deduped_from is not None:
            print_log(cli, task.deduped_from or task.task_id)
        for line in error_lines(task.error):
            output.echo(line, err=True)


def _failure(task: wire.JobTask) -> str:
    return f": {describe_end_on_bot(task)}" if task.resolution is not None and task.resolution.failed else ""


# -- following -------------------------------------------------------------------------------------------------


def _follow_job(cli: CliContext, job: Job, pattern: str | None, states: Sequence[str]) -> int:
    """Follow every run that is seen; one that another run has replaced before the next look is not."""
    from myrmidon.sdk.wait_reasons import WaitReasons  # late, for startup time

    changes, seen, followers, reasons = JobChanges(job), set[str](), Followers(cli), WaitReasons(cli.client)
    while True:
        waited = job.poll(wait_s=1.0, reasons=reasons)
        for task in changes.read(state=states, label=pattern):
            if (key := task.run or task.task_id) not in seen:
                seen.add(key)
                followers.add(task)
        if waited.done:
            followers.finish()
            return exit_codes.of_job(waited.job)
        followers.check()


class Followers:
    """Threads that print the logs of runs until they end. They end with the process, so Ctrl-C ends them too."""

    def __init__(self, cli: CliContext) -> None:
        self._cli = cli
        self._lines = LabelledLines(cli)
        self._tasks: Queue[wire.JobTask] = Queue()
        self._num_threads = 0
        self._error: BaseException | None = None

    def add(self, task: wire.JobTask) -> None:
        self._tasks.put(task)
        if self._num_threads < MAX_FOLLOWED:
            self._num_threads += 1
            threading.Thread(target=self._work, daemon=True).start()

    def check(self) -> None:
        """Raise the error of a thread, such as a closed stdout."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until all logs are printed."""
        self._tasks.join()
        self.check()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                if self._error is None:
                    self._follow(task)
            except CallFailed as error:
                self._lines.note(task.label, error.message)
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                self._error = error
            finally:
                self._tasks.task_done()

    def _follow(self, task: wire.JobTask) -> None:
        """Print the log of one run. A later run of the task is added by itself."""
        from myrmidon.wire.logs import Ended  # late, for startup time

        source = task.deduped_from or task.run
        if source is None:
            self._lines.note(task.label, describe_end_on_bot(task))
            return
        parts = (WholeLines(), WholeLines())
        for chunk in self._cli.client.follow(source):
            if isinstance(chunk, Ended):
                self._lines.write(task.label, 0, parts[0].rest())
                self._lines.write(task.label, 1, parts[1].rest())
                self._lines.note(task.label, _end_of(chunk))
                if chunk.state in FAILED:
                    self._lines.write(task.label, 1, self._error_lines(task.task_id))
            else:
                self._lines.write(task.label, chunk.stream, parts[chunk.stream].feed(chunk.data))

    def _error_lines(self, task_id: str) -> list[bytes]:
        run = deciding_run(self._cli.client.task(task_id))
        return [output.render(line, colour=False).encode() for line in error_lines(run.error if run else None)]


def _end_of(ended: Ended) -> str:
    return ended.state + (f" with {exit_code_text(ended.exit_code)}" if ended.exit_code else "")


class WholeLines:
    """Cuts bytes into lines. A carriage return ends one too: what follows must not overwrite the label."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        lines = (self._held + data).splitlines(keepends=True)
        complete = not lines or lines[-1].endswith(b"\n") or len(lines[-1]) > _MAX_LINE
        self._held = b"" if complete else lines.pop()
        return [line.rstrip(b"\r\n") for line in lines]

    def rest(self) -> list[bytes]:
        held, self._held = self._held, b""
        return [held.rstrip(b"\r")] if held else []


class LabelledLines:
    """Prints lines of several tasks, each whole and after the label of its task: stdout to stdout, stderr to stderr."""

    def __init__(self, cli: CliContext) -> None:
        self._writers = (output.LogWriter(err=cli.as_json), output.LogWriter(err=True))
        self._lock = threading.Lock()

    def write(self, label: str, stream: int, lines: Sequence[bytes]) -> None:
        start, writer = f"{escape(label)} | ".encode(), self._writers[stream]
        with self._lock:
            for line in lines:
                writer.write(start + line)
                writer.finish()  # the end of a colour, which the next label must not have
                writer.write(b"\n")

    def note(self, label: str, text: str) -> None:
        with self._lock:
            output.note(f"--- {label}: {text}")
