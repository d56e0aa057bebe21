"""Commands for tasks with `api: "job"`: `python3 "$MYRMIDON_BOT_ZIP" job extend graph.json`.

A bot's machine has nothing installed but Python, so the zip brings them. They call the server with the token of the
run, which is good for its own job only. All calls may be repeated, so failures of the network are retried.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable
from urllib.parse import quote

from myrmidon.bot.link.http_client import HttpClient, HttpError

USAGE = """usage: job extend FILE | job annotate FILE
       job meta get [NAME] | job meta set NAME VALUE | job meta delete NAME
FILE may be - for standard input
"""
OK, FAILED, WRONG_USAGE = 0, 1, 2


class CommandError(Exception):
    """The command cannot be carried out; the message says why."""


def main(argv: list[str]) -> int:
    """Run a command; 0 if it is done, 1 if it failed, 2 if it was called wrongly."""
    call = _parse(argv)
    if call is None:
        sys.stderr.write(USAGE)
        return WRONG_USAGE
    try:
        return call(_Job())
    except (CommandError, HttpError, OSError) as error:
        sys.stderr.write(f"myrmidon: {error}\n")
        return FAILED


def _parse(argv: list[str]) -> Callable[[_Job], int] | None:
    if len(argv) == 2 and argv[0] == "extend":
        return lambda job: _extend(job, argv[1])
    if len(argv) == 2 and argv[0] == "annotate":
        return lambda job: _annotate(job, argv[1])
    if argv[:2] == ["meta", "get"] and len(argv) <= 3:
        return lambda job: _get_meta(job, argv[2] if len(argv) == 3 else None)
    if argv[:2] == ["meta", "set"] and len(argv) == 4:
        return lambda job: _set_meta(job, argv[2], argv[3])
    if argv[:2] == ["meta", "delete"] and len(argv) == 3:
        return lambda job: _set_meta(job, argv[2], None)
    return None


class _Job:
    """The job of the task that this process belongs to."""

    def __init__(self) -> None:
        self.id, self.task = _variable("MYRMIDON_JOB_ID"), _variable("MYRMIDON_TASK_ID")
        with open(_variable("MYRMIDON_TOKEN_FILE")) as file:
            token = file.read().strip()
        self.client = HttpClient(_variable("MYRMIDON_SERVER"), token)
        self.client.margin_s = 60.0

    def call(self, method: str, path: str, body: bytes = b"") -> Any:
        return self.client.call_until_answered(method, path, body)

    def path(self, verb: str) -> str:
        return f"/api/v1/jobs/{quote(self.id, safe='')}/{verb}"


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise CommandError(f"{name} is not set; only a task of a job with `api: job` can use this command")
    return value


def _extend(job: _Job, name: str) -> int:
    try:
        document = json.loads(_read(name))
    except ValueError as error:
        raise CommandError(f"{name} is not JSON: {error}") from error
    extended = job.call("POST", job.path("extend"), json.dumps({"job": document}).encode())
    sys.stdout.write(f"{extended['num_new']} new tasks\n")
    return OK


def _annotate(job: _Job, name: str) -> int:
    content = _read(name).decode(errors="replace")
    job.call("PUT", f"/api/v1/tasks/{quote(job.task, safe='')}/annotation", json.dumps({"content": content}).encode())
    return OK


def _get_meta(job: _Job, name: str | None) -> int:
    """Print one text, or all as JSON; exit code 1 if the job has no text of this name."""
    values = job.call("GET", job.path("meta"))["values"]
    if name is None:
        sys.stdout.write(json.dumps(values, indent=2, sort_keys=True) + "\n")
        return OK
    if name not in values:
        raise CommandError(f"the job has no text named {name}")
    sys.stdout.write(f"{values[name]}\n")
    return OK


def _set_meta(job: _Job, name: str, value: str | None) -> int:
    job.call("POST", job.path("meta"), json.dumps({"name": name, "value": value}).encode())
    return OK


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    with open(name, "rb") as file:
        return file.read()
