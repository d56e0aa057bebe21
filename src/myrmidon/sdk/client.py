"""One method for each call of /api/v1.

Methods return the server's response decoded from JSON: dicts with the keys of its OpenAPI document. Ids are strings as
the server prints them; times are integers, microseconds UTC. Calls that change something send an idempotency key, given
or generated, and send the same one in every retry (transport.py).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from myrmidon.sdk.errors import CallFailed
from myrmidon.sdk.jobs import Job
from myrmidon.sdk.transport import Event, Reply, Transport, new_key
from myrmidon.wire import jobs as wire
from myrmidon.wire.fields import Done
from myrmidon.wire.webhooks import DeliveryList, WebhookInfo, WebhookList

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")

API: Final = "/api/v1"
SWARMING_API: Final = "/_ah/api/swarming/v1/"
MAX_WAIT_S: Final = 25
MAX_TASKS_PER_WAIT: Final = 1_000
MAX_TASKS_PER_CALL: Final = 1_000
MAX_BYTES_PER_CALL: Final = 900_000
"""Below the server's default body_limit of 1 MiB, with room for the rest of the body."""


@dataclass(frozen=True)
class LogChunk:
    """Bytes of a run's log. ``stream`` is 0 for stdout, 1 for stderr; ``offset`` is the position in that stream."""

    run: str
    stream: int
    offset: int
    data: bytes


class Client:
    """Calls one server with one token."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # -- tasks ----------------------------------------------------------------------------------------------

    def submit(self, tasks: Sequence[Json], *, group: str | None = None, key: str | None = None) -> list[Json]:
        """Submit tasks, one or thousands. Returns one entry per task, in order.

        ``tasks`` are requests as docs/requests.md describes them. An entry is ``{task_id, state, ...}``; for a request
        that the server refused it is ``{error}``, and the other tasks are stored nevertheless. Many tasks are sent in
        several calls, one after the other (see batches). If one of these fails, its error is raised and the tasks of
        the calls before it are stored; repeating ``submit`` with the same tasks and the same key submits the rest and
        returns every entry.
        """
        key = key or new_key()
        answers: list[Json] = []
        for number, batch in enumerate(batches(tasks)):
            body: Json = {"tasks": batch}
            if group is not None:
                body["group"] = group
            answers += self._post("tasks", body, f"{key}.{number}" if number else key)["tasks"]
        return answers

    def tasks(self, **filters: Any) -> Json:
        """One page: ``{tasks, cursor}``. Filters: state, tag, name, pool, bot, start, end, sort, limit, cursor."""
        return self._get("tasks", filters)

    def tags(self) -> Json:
        """``{tags}``: the tags of the newest tasks, each key with its values."""
        return self._get("tasks/tags")

    def task(self, task_id: str) -> Json:
        """The task's request, result and runs."""
        return self._get(f"tasks/{_segment(task_id)}")

    def why(self, task_id: str) -> Json:
        """Why the task is not running."""
        return self._get(f"tasks/{_segment(task_id)}/why")

    def cancel(self, task_id: str, *, kill_running: bool, key: str | None = None) -> Json:
        return self._post(f"tasks/{_segment(task_id)}/cancel", {"kill_running": kill_running}, key)

    def cancel_tagged(
        self, tags: Sequence[str], *, kill_running: bool, group: str | None = None, key: str | None = None
    ) -> Json:
        """Cancel every task that has all these tags."""
        body = {"tags": list(tags), "kill_running": kill_running, "group": group}
        return self._post("tasks/cancel", body, key)

    def rerun(self, task_id: str, *, force: bool = False, cascade: bool = False, key: str | None = None) -> Json:
        return self._post(f"tasks/{_segment(task_id)}/rerun", {"force": force, "cascade": cascade}, key)

    def annotate(self, task_id: str, content: str, *, key: str | None = None) -> Done:
        """Show a summary in Markdown with a task; an empty text removes it."""
        body = {"content": content}
        return self.call("PUT", f"tasks/{_segment(task_id)}/annotation", Done, body=body, key=key or new_key())

    def wait(
        self,
        task_ids: Sequence[str],
        *,
        all_of: bool = False,
        wait_s: int = MAX_WAIT_S,
        within_s: float | None = None,
    ) -> Json:
        """The states of these tasks, once any (or, with all_of, every one) has ended, or after wait_s.

        An unreachable server is retried, but not for longer than within_s.
        """
        body = {"task_ids": list(task_ids), "mode": "all" if all_of else "any", "wait_s": wait_s}
        response: Json = self.transport.call(
            "POST", f"{API}/tasks/wait", body=body, wait_s=wait_s, within_s=within_s
        ).json()
        return response

    # -- jobs -----------------------------------------------------------------------------------------------

    def submit_job(
        self,
        document: Mapping[str, Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        group: str | None = None,
        key: str | None = None,
    ) -> Job:
        """Submit a graph document (docs/jobs.md). One with an ``external_id`` may be submitted again: it is the same
        job, unless the document has changed."""
        body = {"job": document, "parameters": dict(parameters or {}), "group": group}
        external_id = document.get("external_id")
        method, path = ("PUT", f"jobs/{_segment(external_id)}") if external_id else ("POST", "jobs")
        submitted = self.call(method, path, wire.JobSubmitted, body=body, key=key or new_key())
        return Job(self, submitted.job_id)

    def check_job(
        self, document: Mapping[str, Any], *, parameters: Mapping[str, Any] | None = None, group: str | None = None
    ) -> wire.JobCheck:
        """Validate a graph document and match it with the fleet; nothing is stored."""
        body = {"job": document, "parameters": dict(parameters or {}), "group": group}
        return self.call("POST", "jobs/check", wire.JobCheck, body=body)

    def job(self, job_id: str) -> Job:
        """The job with this id or external id. Asks the server only when a method is called."""
        return Job(self, job_id)

    def jobs(self, **filters: Any) -> wire.JobList:
        """One page of jobs. Filters: state, name, tag, group, start, end, mine, limit, cursor."""
        return self.call("GET", "jobs", wire.JobList, query=filters)

    # -- logs -----------------------------------------------------------------------------------------------

    def log(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[bytes]:
        """The log so far, in chunks. ``stream`` is stdout, stderr, or both: stdout, then stderr."""
        offset, length = 0, 1
        while offset < length:
            query = {"run": run, "stream": stream, "offset": offset}
            page = self.transport.call("GET", f"{API}/tasks/{_segment(task_id)}/log", query=query)
            if not page.data:
                return
            yield page.data
            offset, length = int(page.headers["X-Log-Next"]), int(page.headers["X-Log-Length"])

    def log_tail(self, task_id: str, *, num_bytes: int = 8_192) -> bytes:
        """The last bytes of the log so far, stdout before stderr."""
        path = f"{API}/tasks/{_segment(task_id)}/log"
        head = self.transport.call("GET", path, query={"stream": "both", "limit": 1})
        offset = max(0, int(head.headers["X-Log-Length"]) - num_bytes)
        return self.transport.call("GET", path, query={"stream": "both", "offset": offset, "limit": num_bytes}).data

    def follow(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[LogChunk | Json]:
        """The log as it is written: chunks, then the task's end as a dict. Resumes after a server restart."""
        path, query = f"{API}/tasks/{_segment(task_id)}/log/follow", {"run": run, "stream": stream}
        for event in self.transport.stream(path, query=query):
            body = event.json()
            if event.name == "log":
                yield LogChunk(body["run"], body["stream"], body["offset"], base64.b64decode(body["data"]))
            elif event.name == "cut":
                missing = "1 byte is" if body["missing"] == 1 else f"{body['missing']} bytes are"
                gap = f"\n[myrmidon: {missing} missing here]\n".encode()
                yield LogChunk(body["run"], body["stream"], body["offset"], gap)
            elif event.name == "end":
                yield body
                return

    def events(self, *, after: str | None = None, **filters: Any) -> Iterator[Event]:
        """Events, from now on or after the event with id ``after``. The iterator does not end by itself.

        Filters: job (a job and its tasks), task (a list of tasks), kind (a list of kinds, docs/messages.md).
        """
        return self.transport.stream(f"{API}/events", after=after, query=filters)

    # -- bots -----------------------------------------------------------------------------------------------

    def bots(self, **filters: Any) -> Json:
        """One page: ``{bots, cursor}``. Filters: dimension, state, limit, cursor."""
        return self._get("bots", filters)

    def bot(self, bot_id: str) -> Json:
        return self._get(f"bots/{_segment(bot_id)}")

    def bot_events(self, bot_id: str, **page: Any) -> Json:
        return self._get(f"bots/{_segment(bot_id)}/events", page)

    def bot_tasks(self, bot_id: str, **page: Any) -> Json:
        return self._get(f"bots/{_segment(bot_id)}/tasks", page)

    def quarantine(self, bot_id: str, reason: str | None, *, key: str | None = None) -> Json:
        """Quarantine the bot for this reason: it gets no work. None ends the quarantine."""
        return self._post(f"bots/{_segment(bot_id)}/quarantine", {"reason": reason}, key)

    def drain(self, bot_id: str, *, draining: bool, key: str | None = None) -> Json:
        return self._post(f"bots/{_segment(bot_id)}/drain", {"draining": draining}, key)

    def terminate(self, bot_id: str, *, reason: str = "", key: str | None = None) -> Json:
        """Make the bot exit after its current work. Returns the id of the terminate task."""
        return self._post(f"bots/{_segment(bot_id)}/terminate", {"reason": reason} if reason else {}, key)

    def bot_zip(self) -> bytes:
        """The zip file that the server's bots run."""
        return self.transport.call("GET", "/bot/v1/zip").data

    def delete_bot(self, bot_id: str, *, force: bool = False, key: str | None = None) -> Json:
        """Delete a bot and end its credentials. Conflict if it is alive, unless forced."""
        return self._delete(f"bots/{_segment(bot_id)}", key, {"force": "true"} if force else None)

    def revoke_bot(self, bot_id: str, *, key: str | None = None) -> Json:
        """End the bot's credentials: it must be introduced again with a bootstrap token."""
        return self._post(f"bots/{_segment(bot_id)}/revoke", {}, key)

    # -- any path --------------------------------------------------------------------------------------------

    def query(self, path: str, **params: Any) -> Reply:
        """GET a path with these query parameters. A path without a leading slash belongs to Swarming's API v1."""
        return self.transport.call("GET", full_path(path), query=params)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Reply:
        """POST to a path, resolved as in query. The key makes the call idempotent where the path supports keys."""
        return self.transport.call("POST", full_path(path), body=body, key=key or new_key())

    # -- the installation -----------------------------------------------------------------------------------

    def server(self) -> Json:
        """The server's version and time, the version of its bots, and the caller's identity and role."""
        return self._get("server")

    def servers(self) -> Json:
        return self._get("servers")

    def releases(self) -> Json:
        """Releases of the bot, current and earlier."""
        return self._get("releases")

    def revert_release(self, digest: str, *, reason: str = "", key: str | None = None) -> Json:
        """Revert a release of the bot: no bot is directed to run it any more."""
        return self._post(f"releases/{_segment(digest)}/revert", {"reason": reason}, key)

    def allow_release(self, digest: str, *, reason: str = "", key: str | None = None) -> Json:
        """Lift the ban of a reverted release of the bot."""
        return self._post(f"releases/{_segment(digest)}/allow", {"reason": reason}, key)

    def config(self) -> Json:
        """The active version of the configuration folder."""
        return self._get("config")

    def config_history(self, file: str | None = None, **page: Any) -> Json:
        """Versions of the configuration folder, or of one of its files, newest first."""
        return self._get("config/history", {**page, **({"file": file} if file is not None else {})})

    def bot_dimensions(self, pool: str | None = None) -> Json:
        """The dimensions of bots, with the number of bots that have each."""
        return self._get("bots/dimensions", {"pool": pool} if pool is not None else {})

    def queues(self, **page: Any) -> Json:
        return self._get("queues", page)

    def pools(self, **page: Any) -> Json:
        return self._get("pools", page)

    def set_pool(self, name: str, *, task_order: str, ageing: int | None = None, key: str | None = None) -> Json:
        body = {"task_order": task_order, "ageing": ageing}
        return self._change("PUT", f"pools/{_segment(name)}", body, key)

    def groups(self) -> Json:
        return self._get("groups")

    def create_group(self, name: str, *, key: str | None = None) -> Json:
        return self._post("groups", {"name": name}, key)

    def delete_group(self, name: str, *, key: str | None = None) -> Json:
        return self._delete(f"groups/{_segment(name)}", key)

    def tokens(self, **page: Any) -> Json:
        return self._get("tokens", page)

    def create_token(
        self,
        name: str,
        *,
        role: str,
        group: str | None = None,
        expires_in_s: int | None = None,
        hawk: bool = False,
        key: str | None = None,
        **binding: str | int | None,
    ) -> Json:
        """Create a token. Only this response contains the token itself, and its Hawk credentials if asked for.

        ``binding``: which bots a bot-bootstrap token introduces: bot_pool, bot_group, bot_ids, uses.
        """
        bound = {name: value for name, value in binding.items() if value is not None}
        body: dict[str, Any] = {"name": name, "role": role, "group": group, "expires_in_s": expires_in_s, **bound}
        if hawk:
            body["hawk"] = True
        return self._post("tokens", body, key)

    def revoke_token(self, token_id: str, *, key: str | None = None) -> Json:
        return self._delete(f"tokens/{_segment(token_id)}", key)

    def login_link(self, to: str = "/", *, lifetime_s: int = 60) -> Json:
        """Create a link that logs in a browser once, with the rights of this client's token: ``path``, ``expires_at``.

        ``path`` is to be appended to the URL of the server.
        """
        body = {"to": to, "lifetime_s": lifetime_s}
        response: Json = self.transport.call("POST", "/auth/links", body=body, key=new_key()).json()
        return response

    def webhooks(self) -> WebhookList:
        return self.call("GET", "webhooks", WebhookList)

    def create_webhook(
        self, url: str, *, kinds: Sequence[str] = (), group: str | None = None, key: str | None = None
    ) -> WebhookInfo:
        """Send the messages of a resource group to a URL. Only this answer has the secret of the signatures."""
        body = {"url": url, "kinds": list(kinds), "group": group}
        return self.call("POST", "webhooks", WebhookInfo, body=body, key=key or new_key())

    def delete_webhook(self, webhook_id: str, *, key: str | None = None) -> Json:
        return self._delete(f"webhooks/{_segment(webhook_id)}", key)

    def webhook_deliveries(self, webhook_id: str, **page: Any) -> DeliveryList:
        """One page, newest first. Filters: limit, cursor."""
        return self.call("GET", f"webhooks/{_segment(webhook_id)}/deliveries", DeliveryList, query=page)

    def replay_delivery(self, webhook_id: str, delivery_id: str, *, key: str | None = None) -> Json:
        """Send a message to a webhook again."""
        return self._post(f"webhooks/{_segment(webhook_id)}/deliveries/{_segment(delivery_id)}/replay", {}, key)

    def ready(self) -> bool:
        """True when the server and its database work. Raises Overloaded when the server answers that they do not."""
        return self.transport.call("GET", "/readyz").status == 200

    def readiness_notes(self) -> list[str]:
        """What users may miss although the server is ready, such as a receiver of messages that is behind."""
        notes: list[str] = self.transport.call("GET", "/readyz").json().get("notes", [])
        return notes

    # -- requests -------------------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
        wait_s: float = 0.0,
    ) -> T:
        """Call a path below /api/v1 and decode the answer as this type."""
        reply = self.transport.call(method, f"{API}/{path}", body=body, query=query, key=key, wait_s=wait_s)
        try:
            return msgspec.json.decode(reply.data, type=answer)
        except msgspec.MsgspecError as error:
            raise CallFailed(f"The response is not the expected one: {error}. Check the server's version.") from None

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> Json:
        response: Json = self.transport.call("GET", f"{API}/{path}", query=query).json()
        return response

    def _post(self, path: str, body: Json, key: str | None) -> Json:
        return self._change("POST", path, body, key)

    def _delete(self, path: str, key: str | None, query: Mapping[str, Any] | None = None) -> Json:
        return self._change("DELETE", path, None, key, query)

    def _change(
        self, method: str, path: str, body: Json | None, key: str | None, query: Mapping[str, Any] | None = None
    ) -> Json:
        response = self.transport.call(method, f"{API}/{path}", body=body, key=key or new_key(), query=query).json()
        return response if isinstance(response, dict) else {}


def batches(tasks: Iterable[Json]) -> Iterator[list[Json]]:
    """The tasks in lists that fit into one call, by number and by size; a task that is too large is a list alone."""
    batch, size = list[Json](), 0
    for task in tasks:
        num_bytes = len(json.dumps(task, separators=(",", ":"))) + 1
        if batch and (len(batch) == MAX_TASKS_PER_CALL or size + num_bytes > MAX_BYTES_PER_CALL):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += num_bytes
    if batch:
        yield batch


def full_path(path: str) -> str:
    """``tasks/list`` is a path of Swarming's API v1; a path with a leading slash is returned unchanged."""
    return path if path.startswith("/") else SWARMING_API + path


def _segment(text: str) -> str:
    """Quote an id as one path segment: a slash in it must not change the route."""
    return quote(text, safe="")
