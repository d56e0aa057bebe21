"""A client of the scheduler API, of our own: plain HTTP, and Hawk as its specification has it.

    graph = Scheduler(app)                                  # as the administrator, by token
    graph.create("G1", a_graph(a_node("build")))            # (status, decoded answer)
    Scheduler(app, credentials=(client_id, access_key))     # signed calls

`a_node` and `a_graph` make documents of the list form; `slug` an id as clients choose them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.server.inside import Inside, Reply

METADATA = {"name": "nightly", "description": "All of it", "owner": "ada@example.com", "source": "http://example.com/x"}
TASK_FIELDS = {
    "taskId", "name", "requires", "requiresLeft", "reruns", "rerunsLeft", "state", "satisfied", "dependents",
}  # fmt: skip
_numbers = itertools.count(1)


def slug() -> str:
    """22 characters, as clients choose them."""
    return f"-slug_{next(_numbers):016d}"


def a_node(name: str, *requires: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A node of the list form that requires others."""
    task = {
        "provisionerId": "default",
        "workerType": "small",
        "created": "2026-01-01T00:00:00.000Z",
        "deadline": soon(),
        "payload": {"command": [name], "image": "ubuntu"},
        "metadata": {**METADATA, "name": name},
        **fields.pop("task", {}),
    }
    return {"taskId": slug(), "requires": [parent["taskId"] for parent in requires], "task": task, **fields}


def soon() -> str:
    """A deadline within the limit, whenever the test runs."""
    return (datetime.now(UTC) + timedelta(days=1)).isoformat()


def a_graph(*nodes: Any, **fields: Any) -> dict[str, Any]:
    return {"metadata": METADATA, "tasks": list(nodes), **fields}


class Scheduler:
    """Calls the API; every error must have its shape."""

    def __init__(self, app: Inside, **options: Any) -> None:
        self.app = app
        self.options = options

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        reply = self.app.call(method, f"/v1{path}", body, **self.options)
        check_shape(reply)
        return reply.status, reply.json

    def create(self, graph_id: str, document: Any) -> tuple[int, Any]:
        return self.call("PUT", f"/task-graph/{graph_id}", document)

    def extend(self, graph_id: str, *nodes: dict[str, Any]) -> tuple[int, Any]:
        return self.call("POST", f"/task-graph/{graph_id}/extend", {"tasks": list(nodes)})

    def get(self, graph_id: str, what: str) -> Any:
        status, answer = self.call("GET", f"/task-graph/{graph_id}/{what}")
        assert status == 200, answer
        return answer

    def states(self, graph_id: str) -> dict[str, str]:
        return {task["name"]: task["state"] for task in self.get(graph_id, "inspect")["tasks"]}


def check_shape(reply: Reply) -> None:
    assert reply.headers["content-type"] == "application/json"
    if reply.status >= 400:
        assert set(reply.json) == {"message", "error"}, reply
        assert reply.json["message"]


def meet_worker(app: Inside, worker_type: str = "small") -> None:
    """A bot of the pool default with this worker type."""
    dimensions = {"id": ["b1"], "pool": ["default"], "os": ["Linux"], "worker_type": [worker_type]}
    reply = app.post("/bot/v1/handshake", {"bot_id": "b1", "session": 1, "dimensions": dimensions})
    assert reply.status == 200, reply


# ---------------------------------------------------------------- Hawk


def sign(
    method: str,
    resource: str,
    credentials: tuple[str, str],
    *,
    ts: int,
    nonce: str = "",
    host: str = "127.0.0.1",
    port: int = 80,
    body: bytes | None = None,
    media: str = "application/json",
    ext: str = "",
) -> str:
    """An Authorization header; with the hash of the body if one is given."""
    client_id, key = credentials
    nonce = nonce or f"n{next(_numbers)}"
    digest = "" if body is None else payload_hash(body, media)
    lines = ("hawk.1.header", str(ts), nonce, method, resource, host, str(port), digest, ext, "")
    mac = base64.b64encode(hmac.digest(key.encode(), "\n".join(lines).encode(), "sha256")).decode()
    more = (f', hash="{digest}"' if digest else "") + (f', ext="{ext}"' if ext else "")
    return f'Hawk id="{client_id}", ts="{ts}", nonce="{nonce}"{more}, mac="{mac}"'


def payload_hash(body: bytes, media: str) -> str:
    content = b"hawk.1.payload\n" + media.encode() + b"\n" + body + b"\n"
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def hawk_token(app: Inside, role: str = "user", **fields: Any) -> tuple[dict[str, Any], tuple[str, str]]:
    """A new token, and its client id and key."""
    made = app.post("/api/v1/tokens", {"name": "hawk", "role": role, "hawk": True, **fields}).json
    return made, (made["hawk"]["client_id"], made["hawk"]["access_key"])


def as_body(document: Any) -> bytes:
    return json.dumps(document).encode()
