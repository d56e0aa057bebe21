"""Every call of /api/v1 as a small method.

Answers are what the server sent, decoded from JSON: dicts with the keys of its OpenAPI document. Ids are texts as the
server shows them; times are integers, microseconds UTC. Calls that change something make a request key of their own, or
take one, and keep it through all retries (transport.py).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from myrmidon.sdk.transport import Event, Reply, Transport

Json: TypeAlias = dict[str, Any]

API: Final = "/api/v1"
SWARMING_API: Final = "/_ah/api/swarming/v1/"
LONGEST_WAIT_S: Final = 25
MOST_AT_ONCE: Final = 1_000


@dataclass(frozen=True)
class LogPiece:
    """Bytes of a run's log. ``stream`` is 0 for stdout and 1 for stderr; ``offset`` counts within that stream."""

    run: str
    stream: int
    offset: int
    data: bytes


class Client:
    """One server, as one identity."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # -- tasks ----------------------------------------------------------------------------------------------

    def submit(self, tasks: Sequence[Json], *, group: str | None = None, key: str | None = None) -> list[Json]:
        """One answer per task, in order: ``{task_id, state, ...}`` or ``{error}``."""
        body: Json = {"tasks": list(tasks)}
        if group is not None:
            body["group"] = group
        return list(self._post("tasks", body, key)["tasks"])

    def tasks(self, **filters: Any) -> Json:
        """One page: ``{tasks, cursor}``. Filters: state, tag, name, pool, bot, start, end, sort, limit, cursor."""
        return self._get("tasks", filters)

    def tags(self) -> Json:
        """``{tags}``: those of the newest tasks, each key with its values."""
        return self._get("tasks/tags")

    def task(self, task_id: str) -> Json:
        """Its request, its result and its runs."""
        return self._get(f"tasks/{_part(task_id)}")

    def why(self, task_id: str) -> Json:
        """Why the task is not running."""
        return self._get(f"tasks/{_part(task_id)}/why")

    def cancel(self, task_id: str, *, kill_running: bool, key: str | None = None) -> Json:
        return self._post(f"tasks/{_part(task_id)}/cancel", {"kill_running": kill_running}, key)

    def cancel_tagged(
        self, tags: Sequence[str], *, kill_running: bool, group: str | None = None, key: str | None = None
    ) -> Json:
        """Everything that has all these tags."""
        body = {"tags": list(tags), "kill_running": kill_running, "group": group}
        return self._post("tasks/cancel", body, key)

    def rerun(self, task_id: str, *, force: bool = False, cascade: bool = False, key: str | None = None) -> Json:
        return self._post(f"tasks/{_part(task_id)}/rerun", {"force": force, "cascade": cascade}, key)

    def wait(
        self,
        task_ids: Sequence[str],
        *,
        all_of: bool = False,
        wait_s: int = LONGEST_WAIT_S,
        within_s: float | None = None,
    ) -> Json:
        """The states of these tasks, as soon as one (or all) of them has ended, or after wait_s.

        A server that is away is waited for too, but not beyond within_s.
        """
        body = {"task_ids": list(task_ids), "mode": "all" if all_of else "any", "wait_s": wait_s}
        found: Json = self.transport.call(
            "POST", f"{API}/tasks/wait", body=body, wait_s=wait_s, within_s=within_s
        ).json()
        return found

    # -- logs -----------------------------------------------------------------------------------------------

    def log(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[bytes]:
        """What there is of the log, in pieces; ``stream`` is stdout, stderr, or both, one behind the other."""
        offset, length = 0, 1
        while offset < length:
            query = {"run": run, "stream": stream, "offset": offset}
            found = self.transport.call("GET", f"{API}/tasks/{_part(task_id)}/log", query=query)
            if not found.data:
                return
            yield found.data
            offset, length = int(found.headers["X-Log-Next"]), int(found.headers["X-Log-Length"])

    def follow(self, task_id: str, *, run: int | None = None, stream: str = "both") -> Iterator[LogPiece | Json]:
        """The log as it is written: pieces, and at last the task's end as a dict. Survives a server's restart."""
        path, query = f"{API}/tasks/{_part(task_id)}/log/follow", {"run": run, "stream": stream}
        for event in self.transport.stream(path, query=query):
            found = event.json()
            if event.name == "log":
                yield LogPiece(found["run"], found["stream"], found["offset"], base64.b64decode(found["data"]))
            elif event.name == "cut":
                told = f"\n[myrmidon: {found['missing']} bytes are missing here]\n".encode()
                yield LogPiece(found["run"], found["stream"], found["offset"], told)
            elif event.name == "end":
                yield found
                return

    def events(self, *, after: str | None = None) -> Iterator[Event]:
        """Everything that happens, from now on or after an earlier event; never ends by itself."""
        return self.transport.stream(f"{API}/events", after=after)

    # -- bots -----------------------------------------------------------------------------------------------

    def bots(self, **filters: Any) -> Json:
        """One page: ``{bots, cursor}``. Filters: dimension, state, limit, cursor."""
        return self._get("bots", filters)

    def bot(self, bot_id: str) -> Json:
        return self._get(f"bots/{_part(bot_id)}")

    def bot_events(self, bot_id: str, **page: Any) -> Json:
        return self._get(f"bots/{_part(bot_id)}/events", page)

    def bot_tasks(self, bot_id: str, **page: Any) -> Json:
        return self._get(f"bots/{_part(bot_id)}/tasks", page)

    def quarantine(self, bot_id: str, reason: str | None, *, key: str | None = None) -> Json:
        """Give the bot no work, for this reason; None lets it work again."""
        return self._post(f"bots/{_part(bot_id)}/quarantine", {"reason": reason}, key)

    def drain(self, bot_id: str, *, draining: bool, key: str | None = None) -> Json:
        return self._post(f"bots/{_part(bot_id)}/drain", {"draining": draining}, key)

    def terminate(self, bot_id: str, *, reason: str = "", key: str | None = None) -> Json:
        """Tell the bot to finish what it does and exit; the answer names the task that does so."""
        return self._post(f"bots/{_part(bot_id)}/terminate", {"reason": reason} if reason else {}, key)

    def bot_zip(self) -> bytes:
        """The program that every bot of this server runs."""
        return self.transport.call("GET", "/bot/v1/zip").data

    def delete_bot(self, bot_id: str, *, key: str | None = None) -> Json:
        return self._delete(f"bots/{_part(bot_id)}", key)

    # -- whatever path ---------------------------------------------------------------------------------------

    def query(self, path: str, **params: Any) -> Reply:
        """GET a path, with what it asks; one that does not begin with a slash is of Swarming's API v1."""
        return self.transport.call("GET", whole_path(path), query=params)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Reply:
        """POST to a path, likewise; the key makes a repeated call harmless where the path honours it."""
        return self.transport.call("POST", whole_path(path), body=body, key=key or str(uuid.uuid4()))

    # -- the installation -----------------------------------------------------------------------------------

    def server(self) -> Json:
        """Its version, its time and the version of its bots."""
        return self._get("server")

    def servers(self) -> Json:
        return self._get("servers")

    def releases(self) -> Json:
        """What bots run, and ran."""
        return self._get("releases")

    def revert_release(self, digest: str, *, reason: str = "", key: str | None = None) -> Json:
        """Take a release of the bot back."""
        return self._post(f"releases/{_part(digest)}/revert", {"reason": reason}, key)

    def config(self) -> Json:
        """The settings folder that is in force."""
        return self._get("config")

    def config_history(self, file: str | None = None, **page: Any) -> Json:
        """Versions of the settings folder, or of one of its files, newest first."""
        return self._get("config/history", {**page, **({"file": file} if file is not None else {})})

    def bot_dimensions(self, pool: str | None = None) -> Json:
        """Which dimensions bots have, and how many have each."""
        return self._get("bots/dimensions", {"pool": pool} if pool is not None else {})

    def queues(self, **page: Any) -> Json:
        return self._get("queues", page)

    def pools(self, **page: Any) -> Json:
        return self._get("pools", page)

    def set_pool(self, name: str, *, task_order: str, ageing: int | None = None, key: str | None = None) -> Json:
        body = {"task_order": task_order, "ageing": ageing}
        return self._json("PUT", f"pools/{_part(name)}", body, key)

    def groups(self) -> Json:
        return self._get("groups")

    def create_group(self, name: str, *, key: str | None = None) -> Json:
        return self._post("groups", {"name": name}, key)

    def delete_group(self, name: str, *, key: str | None = None) -> Json:
        return self._delete(f"groups/{_part(name)}", key)

    def tokens(self, **page: Any) -> Json:
        return self._get("tokens", page)

    def create_token(
        self, name: str, *, role: str, group: str | None = None, expires_in_s: int | None = None, key: str | None = None
    ) -> Json:
        """The only answer that ever holds the token itself."""
        body = {"name": name, "role": role, "group": group, "expires_in_s": expires_in_s}
        return self._post("tokens", body, key)

    def revoke_token(self, token_id: str, *, key: str | None = None) -> Json:
        return self._delete(f"tokens/{_part(token_id)}", key)

    def ready(self) -> bool:
        """Whether the server and its database work. Raises only when nobody answers."""
        return self.transport.call("GET", "/readyz").status == 200

    # -- how ------------------------------------------------------------------------------------------------

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> Json:
        found: Json = self.transport.call("GET", f"{API}/{path}", query=query).json()
        return found

    def _post(self, path: str, body: Json, key: str | None) -> Json:
        return self._json("POST", path, body, key)

    def _delete(self, path: str, key: str | None) -> Json:
        return self._json("DELETE", path, None, key)

    def _json(self, method: str, path: str, body: Json | None, key: str | None) -> Json:
        found = self.transport.call(method, f"{API}/{path}", body=body, key=key or new_key()).json()
        return found if isinstance(found, dict) else {}


def new_key() -> str:
    """A request key that nobody has used before."""
    return uuid.uuid4().hex


def whole_path(path: str) -> str:
    """``tasks/list`` as a path of Swarming's API v1; one with a slash in front is left as it is."""
    return path if path.startswith("/") else SWARMING_API + path


def _part(text: str) -> str:
    """One part of a path: an id with a slash in it must not lead elsewhere."""
    return quote(text, safe="")
