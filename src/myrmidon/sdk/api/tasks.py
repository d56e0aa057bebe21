"""Calls about tasks: submit, list, inspect, cancel, rerun, wait."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from myrmidon.functions.argument_checks import texts
from myrmidon.sdk.api.caller import Caller, segment
from myrmidon.sdk.transport import new_key
from myrmidon.wire import tasks as wire
from myrmidon.wire.fields import Done

Request: TypeAlias = Mapping[str, Any]
"""A task request as docs/requests.md describes it."""

MAX_WAIT_S: Final = 25
MAX_TASKS_PER_WAIT: Final = wire.MAX_WAIT
MAX_TASKS_PER_CALL: Final = 1_000
MAX_BYTES_PER_CALL: Final = 900_000
"""Below the server's default body_limit of 1 MiB, with room for the rest of the body."""


class TaskCalls(Caller):
    def submit_tasks(
        self, tasks: Sequence[Request], *, group: str | None = None, key: str | None = None
    ) -> list[wire.TaskAnswer]:
        """Submit tasks, one or thousands. Returns one answer per task, in order.

        ``tasks`` are requests as docs/requests.md describes them. An answer has the task's id and state; that of a
        request that the server refused has ``error``, and the other tasks are stored nevertheless. Many tasks are sent
        in several calls, one after the other (see batches). If one of these fails, its error is raised and the tasks of
        the calls before it are stored; repeating ``submit_tasks`` with the same tasks and the same key submits the rest
        and returns every answer.
        """
        key = key or new_key()
        answers: list[wire.TaskAnswer] = []
        for number, batch in enumerate(batches(tasks)):
            body: dict[str, Any] = {"tasks": batch}
            if group is not None:
                body["group"] = group
            answers += self._post("tasks", wire.SubmitAnswer, body, f"{key}.{number}" if number else key).tasks
        return answers

    def tasks(self, **filters: Any) -> wire.TaskList:
        """One page. Filters: state, tag, name, pool, bot, group, start, end, sort, limit, cursor."""
        return self.call("GET", "tasks", wire.TaskList, query=filters)

    def tags(self) -> wire.TagList:
        """The tags of the newest tasks, each key with its values."""
        return self.call("GET", "tasks/tags", wire.TagList)

    def task(self, task_id: str) -> wire.TaskInfo:
        """The task's request, result and runs."""
        return self.call("GET", f"tasks/{segment(task_id)}", wire.TaskInfo)

    def why(self, task_id: str) -> wire.TaskExplanation:
        """Why the task is not running."""
        return self.call("GET", f"tasks/{segment(task_id)}/why", wire.TaskExplanation)

    def cancel(self, task_id: str, *, kill_running: bool, key: str | None = None) -> wire.Cancelled:
        return self._post(f"tasks/{segment(task_id)}/cancel", wire.Cancelled, {"kill_running": kill_running}, key)

    def cancel_tagged(
        self, tags: Sequence[str], *, kill_running: bool, group: str | None = None, key: str | None = None
    ) -> wire.CancelStarted:
        """Cancel every task that has all these tags."""
        body = {"tags": list(tags), "kill_running": kill_running, "group": group}
        return self._post("tasks/cancel", wire.CancelStarted, body, key)

    def rerun(
        self, task_id: str, *, force: bool = False, cascade: bool = False, key: str | None = None
    ) -> wire.RerunAnswer:
        body = {"force": force, "cascade": cascade}
        return self._post(f"tasks/{segment(task_id)}/rerun", wire.RerunAnswer, body, key)

    def annotate(self, task_id: str, content: str, *, key: str | None = None) -> Done:
        """Show a summary in Markdown with a task; an empty text removes it."""
        body = {"content": content}
        return self.call("PUT", f"tasks/{segment(task_id)}/annotation", Done, body=body, key=key or new_key())

    def wait(
        self,
        task_ids: Sequence[str],
        *,
        all_of: bool = False,
        wait_s: int = MAX_WAIT_S,
        within_s: float | None = None,
    ) -> wire.Waited:
        """The states of these tasks, once any (or, with all_of, every one) has ended, or after wait_s.

        An unreachable server is retried, but not for longer than within_s.
        """
        ids = texts("task_ids", task_ids, "['7c07a39dc80000100']")
        body = {"task_ids": ids, "mode": "all" if all_of else "any", "wait_s": wait_s}
        return self.call("POST", "tasks/wait", wire.Waited, body=body, wait_s=wait_s, within_s=within_s)


def batches(tasks: Iterable[Request]) -> Iterator[list[Request]]:
    """The tasks in lists that fit into one call, by number and by size; a task that is too large is a list alone."""
    batch, size = list[Request](), 0
    for task in tasks:
        num_bytes = len(json.dumps(task, separators=(",", ":"))) + 1
        if batch and (len(batch) == MAX_TASKS_PER_CALL or size + num_bytes > MAX_BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += num_bytes
    if batch:
        yield batch
