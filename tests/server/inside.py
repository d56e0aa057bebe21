"""A server's application inside the test's own process, called as a web server would call it, without a socket.

with inside(tmp_path) as app:
    app.get("/api/v1/server")                       # Reply(status, headers, body) as the administrator
    app.post("/api/v1/tasks", {...}, token=app.token("user"))
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from myrmidon.server.asgi.app import App
from myrmidon.server.auth.authenticator import Authenticator, bot_credential, new_token
from myrmidon.server.background import loop
from myrmidon.server.calls import Role
from myrmidon.server.context import open_context
from myrmidon.server.facades import STYLES, every_route
from myrmidon.server.settings import Settings
from myrmidon.store.tables import api_token as tokens
from myrmidon.store.tables import bot as bots
from myrmidon.store.tables import webhook
from tests import databases
from tests.server.contexts import sweep

BOT = "b1"


class Reply(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["error"]["code"])


class Inside:
    """One application with a context of its own; calls are made one after the other unless a test says otherwise."""

    def __init__(self, settings: Settings) -> None:
        self.runner = asyncio.Runner()
        self.runner.get_loop()
        self.context = open_context(settings, address="127.0.0.1", port=1)
        self.guard = Authenticator(self.context)
        self.routes = every_route(metrics_open=settings.metrics_open)
        self.app = App(self.context, self.guard, self.routes, STYLES)
        self._tokens: dict[tuple[str, str | None], str] = {}
        self._nonce = 0
        self.runner.run(loop.BackgroundWork(self.context).start())

    def token(self, role: str, group: str | None = "default") -> str:
        """A token of this role; bound to a group unless it is an administrator's."""
        if role == Role.NOBODY:
            return ""
        if role == Role.BOT:
            return self.credential(BOT)
        if role == Role.RUN:
            return self.running(group)["api_token"]
        bound = None if role in (Role.ADMIN, Role.BOOTSTRAP) else group
        if (role, bound) not in self._tokens:
            self._tokens[role, bound] = self.new_token(role, bound)
        return self._tokens[role, bound]

    def credential(self, name: str) -> str:
        """The credential of a bot that has shaken hands."""
        epoch = self.context.db.engine.read(lambda tx: bots.epoch(tx, name))
        return bot_credential(self.context.keys.bot, name, epoch or 0)

    def new_token(self, role: str, group: str | None, *, expires_at: int | None = None) -> str:
        group_id = self.run(self.context.groups.id_of(group, self.context.now())) if group else None
        row, text = new_token(
            f"a {role}", Role(role), group_id, now=self.context.now(), ids=self.context.ids, expires_at=expires_at
        )
        self.context.db.engine.write(lambda tx: tokens.insert(tx, row))
        return text

    def run(self, story: Any) -> Any:
        return self.runner.run(story)

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        reply: Reply = self.run(self.ask(method, path, body, **options))
        return reply

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        again: Sequence[tuple[str, str]] = (),
        peer: str = "127.0.0.1",
        pieces: list[bytes] | None = None,
        waiting_for: Callable[[], Awaitable[bytes]] | None = None,
        begin_only: bool = False,
    ) -> Reply:
        """One request. `pieces` come one by one; after the last nothing more comes, unless it is the empty one.

        `waiting_for`: the body comes when that returns it. `again` are headers that come after the others, also under
        names that those have. `begin_only`: hang up when the answer has begun, for one that never ends.
        """
        shown = self.token("admin") if token is None else token
        sent = {"host": "127.0.0.1"} | ({"authorization": f"Bearer {shown}"} if shown else {}) | (headers or {})
        lines = (*sent.items(), *again)
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        messages = [
            {"type": "http.request", "body": piece, "more_body": bool(piece)}
            for piece in (pieces if pieces is not None else [data, b""])
        ]
        bare, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http", "method": method, "path": unquote(bare), "raw_path": bare.encode(), "root_path": "",
            "query_string": query.encode(), "client": (peer, 1), "server": ("127.0.0.1", 1), "scheme": "http",
            "http_version": "1.1", "asgi": {"version": "3.0"},
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines],
        }  # fmt: skip
        answer: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if waiting_for is not None:
                return {"type": "http.request", "body": await waiting_for()}
            return messages.pop(0) if messages else await asyncio.Future()

        async def send(message: Any) -> None:
            answer.append(message)
            if begin_only:
                scope["on_disconnect"]()  # as the listener does when the connection is lost

        await self.app(scope, receive, send)
        fields = {name.decode(): value.decode() for name, value in answer[0]["headers"]}
        return Reply(answer[0]["status"], fields, b"".join(part.get("body", b"") for part in answer[1:]))

    def get(self, path: str, **options: Any) -> Reply:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return self.call("POST", path, {} if body is None else body, **options)

    def delete(self, path: str, **options: Any) -> Reply:
        return self.call("DELETE", path, **options)

    def put(self, path: str, body: Any = None, **options: Any) -> Reply:
        return self.call("PUT", path, body, **options)

    def submit(self, *tasks: dict[str, Any], **options: Any) -> list[str]:
        answers = self.post("/api/v1/tasks", {"tasks": list(tasks)}, **options).json["tasks"]
        return [str(one["task_id"]) for one in answers]

    def meet_bot(self, name: str = BOT, session: int = 1, pools: Sequence[str] = ("default",)) -> None:
        """A bot shakes hands."""
        dimensions = {"id": [name], "pool": list(pools), "os": ["Linux"]}
        reply = self.post("/bot/v1/handshake", {"bot_id": name, "session": session, "dimensions": dimensions})
        assert reply.status == 200, reply

    def running(self, group: str | None = "default", tasks: dict[str, Any] | None = None) -> dict[str, Any]:
        """A run of a task that may call the server, as its bot gets it: the first one of a new job."""
        payload = {"command": ["true"], "api": "job", "dimensions": {"pool": "runs"}}
        job = {"name": "caller", "tasks": {"caller": {"task": {"payload": payload}}, **(tasks or {})}}
        reply = self.post("/api/v1/jobs", {"job": job, "group": group})
        assert reply.status == 200, reply
        return self.claim_run()

    def claim_run(self) -> dict[str, Any]:
        """The next run of a bot in the pool ``runs``."""
        self._nonce += 1
        self.meet_bot("runner", pools=("runs",))
        ask = {"session": 1, "nonce": self._nonce, "n": 1, "wait_s": 0}
        reply = self.post("/bot/v1/exchange", ask, token=self.credential("runner"))
        assert reply.status == 200, reply
        found: dict[str, Any] = reply.json["tasks"][0]
        return found

    def end_run(self, run: dict[str, Any]) -> None:
        """The bot reports that the run has ended."""
        end = {"type": "finish", "run": run["run"], "token": run["token"], "exit_code": 0, "duration": 1.0}
        self._nonce += 1
        ask = {"session": 1, "nonce": self._nonce, "n": 0, "reports": [end]}
        reply = self.post("/bot/v1/exchange", ask, token=self.credential("runner"))
        assert reply.json["replies"][0]["outcome"] == "accepted", reply

    def settle(self, job_id: str) -> None:
        """Carry out what changes mean for many tasks."""
        self.run(sweep(loop.BackgroundWork(self.context), timed=False))

    def add_delivery(self, hook: str, position: int = 7) -> None:
        """A message that waits for a webhook."""
        one = webhook.Delivery(int(hook, 16), position, "1.1", "task-pending", "{}", webhook.PENDING, 1)
        self.context.db.engine.write(lambda tx: webhook.enqueue(tx, one.webhook_id, [one], most=9, now=1))

    def close(self) -> None:
        self.context.hub.stop()
        self.runner.close()
        self.context.close()


@contextmanager
def inside(folder: Path, database: str | None = None, **settings: Any) -> Iterator[Inside]:
    url = database or f"sqlite:///{folder}/myrmidon.db"
    databases.prepare(url)
    opened = Inside(Settings(data_dir=str(folder), database=url, durable=url.startswith("sqlite:"), **settings))
    with contextlib.closing(opened):
        yield opened


def pages(app: Inside, path: str, what: str) -> list[dict[str, Any]]:
    """A whole list, page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = app.get(f"{path}&cursor={quote(cursor)}" if cursor else path).json
        found += page[what]
        cursor = page["cursor"]
        if cursor is None:
            return found
