"""A client of Swarming's API v1, of our own: it builds itself from the discovery document, and checks every answer.

    swarm = Swarm(server)                            # reads the document, as generic clients do
    swarm.call("tasks.new", body={...})              # the decoded answer, checked against its schema
    swarm.call("task.result", task_id=..., limit=3)  # what the document does not know goes into the query too
    swarm.refused("tasks.list", limit=0)             # (status, error) in the shape that v1's clients expect

`prefix` chooses between the two prefixes; `raw` sends whatever bytes with whatever headers. Nothing here imports the
package: what a client sees is all it knows.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from tests.deadline import HANG_S
from tests.live import LiveServer

NEW, OLD = "/_ah/api/", "/api/"
PREFIXES = (NEW, OLD)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?")
URL_SAFE = re.compile(r"[A-Za-z0-9_.~-]+")
_NUMBERS = {"double": float, "float": float, "int32": int}


class Wrong(AssertionError):
    """An answer is not what the document says."""


class Checker:
    """Holds values against the schemas of a discovery document."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas

    def check(self, value: Any, schema: dict[str, Any], path: str = "reply") -> None:
        if "$ref" in schema:
            self._check_object(value, self._schemas[schema["$ref"]], path)
        elif schema["type"] == "object":
            self._check_object(value, schema, path)
        elif schema["type"] == "array":
            if not isinstance(value, list):
                raise Wrong(f"{path}: a list was promised, not {value!r}")
            for number, one in enumerate(value):
                self.check(one, schema["items"], f"{path}[{number}]")
        else:
            self._check_simple(value, schema, path)

    def _check_object(self, value: Any, schema: dict[str, Any], path: str) -> None:
        if not isinstance(value, dict):
            raise Wrong(f"{path}: an object was promised, not {value!r}")
        for name, one in value.items():
            if name not in schema["properties"]:
                raise Wrong(f"{path}.{name} is not in the document")
            if one is None:
                raise Wrong(f"{path}.{name} is null: it should have been left out")
            self.check(one, schema["properties"][name], f"{path}.{name}")

    def _check_simple(self, value: Any, schema: dict[str, Any], path: str) -> None:
        kind, form = schema["type"], schema.get("format")
        if kind == "boolean":
            good = isinstance(value, bool)
        elif kind == "number":
            good = isinstance(value, int | float) and not isinstance(value, bool)
        else:
            good = isinstance(value, str) and _fits(value, form) and value in schema.get("enum", [value])
        if not good:
            raise Wrong(f"{path}: {value!r} is not {schema}")


def _fits(value: str, form: str | None) -> bool:
    if form == "int64":
        return re.fullmatch(r"-?\d+", value) is not None
    if form == "date-time":
        return TIME.fullmatch(value) is not None
    if form == "byte":
        return base64.b64encode(base64.b64decode(value, validate=True)).decode() == value
    return True


class Swarm:
    """One caller of one server."""

    def __init__(self, server: LiveServer, *, token: str | None = None, prefix: str = NEW) -> None:
        self.server = server
        self.token = server.token if token is None else token
        self.prefix = prefix
        status, self.document = server.get(f"{NEW}discovery/v1/apis/swarming/v1/rest", token="")
        assert status == 200, self.document
        self.checker = Checker(self.document["schemas"])
        self.methods = {
            f"{resource}.{name}": method
            for resource, held in self.document["resources"].items()
            for name, method in held["methods"].items()
        }

    def url(self, method: str, **params: Any) -> str:
        """The path of a call, with parameters where the document says they belong; unknown ones go into the query."""
        told = self.methods[method]
        path = told["path"]
        for name in [one for one in told["parameterOrder"] if told["parameters"][one]["location"] == "path"]:
            path = path.replace(f"{{{name}}}", quote(str(params.pop(name)), safe=""))
        pairs = [
            (name, _as_text(one))
            for name, value in params.items()
            if value is not None
            for one in (value if isinstance(value, list) else [value])
        ]
        asked = urlencode([pair for pair in pairs if pair[0] != "cursor"])
        cursor = "".join(f"&cursor={value}" for name, value in pairs if name == "cursor")  # as it is, unescaped
        return f"{self.prefix}{self.document['servicePath']}{path}?{asked}{cursor}".rstrip("?")

    def raw(
        self, http: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """A call as it is; the answer must be JSON, whatever it says."""
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        answer = self.server.http.request(http, self.server.url + path, body=body, headers={**sent, **(headers or {})})
        assert answer.headers["content-type"].startswith("application/json"), (path, answer.headers, answer.data[:200])
        return answer.status, json.loads(answer.data)

    def ask(self, method: str, *, body: Any = None, **params: Any) -> tuple[int, Any]:
        told = self.methods[method]
        headers = {"Content-Type": "application/json"} if body is not None else {}
        data = None if body is None else json.dumps(body).encode()
        return self.raw(told["httpMethod"], self.url(method, **params), data, headers)

    def call(self, method: str, *, body: Any = None, **params: Any) -> Any:
        """A call that must succeed, and whose answer must be what the document says."""
        status, answer = self.ask(method, body=body, **params)
        assert status == 200, (method, status, answer)
        return self.checked(method, answer)

    def checked(self, method: str, answer: Any) -> Any:
        self.checker.check(answer, self.methods[method]["response"], method)
        if "cursor" in answer:
            assert URL_SAFE.fullmatch(answer["cursor"]), answer["cursor"]
        return answer

    def refused(self, method: str, *, body: Any = None, **params: Any) -> tuple[int, dict[str, Any]]:
        """A call that must be refused, in the right shape."""
        status, answer = self.ask(method, body=body, **params)
        return status, self.checked_error(status, answer)

    def checked_error(self, status: int, answer: Any) -> dict[str, Any]:
        error: dict[str, Any] = answer["error"]
        assert status >= 400
        assert error["code"] == status
        assert isinstance(error["message"], str)
        if self.prefix == NEW:
            assert [set(one) for one in error["errors"]] == [{"domain", "reason", "message"}]
        return error

    def pages(self, method: str, *, limit: int = 2, **params: Any) -> Iterator[Any]:
        """All items of a list, page by page."""
        cursor = None
        while True:
            page = self.call(method, limit=limit, cursor=cursor, **params)
            yield from page["items"]
            cursor = page.get("cursor")
            if cursor is None:
                return

    # -- tasks

    def new(self, *command: str, **fields: Any) -> str:
        """A task in a pool; the id."""
        answer = self.call("tasks.new", body=a_task(*command, **fields))
        return str(answer["task_id"])

    def ended(self, task_id: str) -> Any:
        """The result, once only PENDING and RUNNING are behind it, as v1's clients wait for it."""
        end = time.monotonic() + HANG_S
        while True:
            found = self.call("task.result", task_id=task_id, include_performance_stats=True)
            if found["state"] not in ("PENDING", "RUNNING"):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.02)  # v1 has nothing but polling

    def until(self, task_id: str, state: str) -> Any:
        end = time.monotonic() + HANG_S
        while (found := self.call("task.result", task_id=task_id))["state"] != state:
            assert time.monotonic() < end, found
            time.sleep(0.02)
        return found

    def run(self, *command: str, **fields: Any) -> Any:
        return self.ended(self.new(*command, **fields))

    def output(self, task_id: str, **params: Any) -> str:
        return str(self.call("task.stdout", task_id=task_id, **params)["output"])


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def pairs(**values: str | list[str]) -> list[dict[str, str]]:
    return [
        {"key": key, "value": one}
        for key, value in values.items()
        for one in (value if isinstance(value, list) else [value])
    ]


def properties(*command: str, **fields: Any) -> dict[str, Any]:
    dimensions = fields.pop("dimensions", pairs(pool="default"))
    return {
        "command": list(command) or ["true"],
        "dimensions": dimensions,
        "execution_timeout_secs": "60",
        "grace_period_secs": "1",
        **fields,
    }


OF_THE_REQUEST = (
    "name", "priority", "tags", "user", "request_uuid", "evaluate_only", "parent_task_id", "task_slices",
    "service_account", "realm", "pool_task_template", "bot_ping_tolerance_secs", "pubsub_topic",
)  # fmt: skip


def a_task(*command: str, **fields: Any) -> dict[str, Any]:
    """A new task; what belongs to its properties goes there."""
    request: dict[str, Any] = {"name": "a test", "priority": "100", "user": "joe", "tags": []}
    request |= {name: fields.pop(name) for name in OF_THE_REQUEST if name in fields}
    if "task_slices" not in request:
        wait = fields.pop("wait_for_capacity", None)
        piece = {"expiration_secs": fields.pop("expiration_secs", "600"), "properties": properties(*command, **fields)}
        request["task_slices"] = [piece if wait is None else {**piece, "wait_for_capacity": wait}]
    return request
