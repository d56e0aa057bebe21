"""A server's context without HTTP, with bots and clients that call its handlers.

    with a_server_context(url) as context:  # the server's parts on a real database, with its own background service
        asyncio.run(story(context))

`BotClient` calls the handlers of the bot API directly; `submit` and `state_of` are a client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from myrmidon.model.ids import parse_id, show_task
from myrmidon.scheduler import submit as submitting
from myrmidon.server.auth.authenticator import bot_of_credential
from myrmidon.server.background import loop
from myrmidon.server.botapi import exchange, handshake, heartbeat, logs
from myrmidon.server.botapi.messages import BotEvent, ExchangeRequest, HandshakeRequest, HeartbeatRequest, LogQuery
from myrmidon.server.calls import Call, Identity, Role
from myrmidon.server.context import ServerContext, open_context
from myrmidon.server.dispatch import claims
from myrmidon.server.settings import Settings
from myrmidon.store.tables import task_result
from tests import databases
from tests.deadline import HANG_S

_ports = itertools.count(1)
ADMIN = Identity("admin", Role.ADMIN)
BOOTSTRAP = Identity("bootstrap", Role.BOOTSTRAP)


@contextmanager
def a_server_context(url: str, folder: Path, **settings: Any) -> Iterator[ServerContext]:
    databases.prepare(url)
    given = Settings(database=url, data_dir=str(folder), durable=url.startswith("sqlite:"), **settings)
    context = open_context(given, address="127.0.0.1", port=next(_ports))
    try:
        yield context
    finally:
        context.close()


@asynccontextmanager
async def serving(context: ServerContext):
    """The context with its background service."""
    background = asyncio.ensure_future(loop.run(context))
    try:
        await until(lambda: bool(context.hub.active_release) or background.done())
        yield background
    finally:
        context.state.stopping = True
        context.hub.stop()
        background.cancel()
        with suppress(asyncio.CancelledError):
            await background


@asynccontextmanager
async def begun(context: ServerContext):
    """The context without its background service: nothing happens in it that the test does not do."""
    await loop.BackgroundWork(context).start()
    try:
        yield
    finally:
        context.hub.stop()


async def sweep(work: loop.BackgroundWork, *, timed: bool = True) -> None:
    """A heartbeat of the service, then maintenance until nothing is due; without ``timed`` chunked work only."""
    if timed:
        await work.maintenance.record_alive()
    while await work.maintenance.run(timed=timed):
        pass


class BotClient:
    """A bot that calls the handlers of the bot API."""

    def __init__(
        self, context: ServerContext, name: str = "b1", *, session: int = 1, pool: str = "default", **dimensions: Any
    ):
        self.context = context
        self.name = name
        self.session = session
        self.nonce = 0
        self.dimensions = {"id": [name], "pool": [pool], "os": ["Linux"], **dimensions}
        self.credential = ""
        self.who = Identity(name, Role.BOT, None, name)

    async def shake(self, who: Identity | None = None, **fields: Any) -> Any:
        """As itself, once it has been introduced."""
        who = who or (self.who if self.credential else BOOTSTRAP)
        body = HandshakeRequest(bot_id=self.name, session=self.session, dimensions=self.dimensions, **fields)
        welcome = await handshake.handshake(
            self.context, Call(now=self.context.now(), who=who, body=body, address="127.0.0.1")
        )
        self.credential = welcome.credential
        self.who = of_credential(self.context, welcome.credential)
        return welcome

    async def exchange(self, *, n: int = 1, nonce: int | None = None, **fields: Any) -> Any:
        """One exchange with the next nonce, or with the one given; the decoded answer."""
        if nonce is None:
            self.nonce += 1
        ask = {"session": self.session, "nonce": self.nonce if nonce is None else nonce, "n": n, **fields}
        body = msgspec.json.decode(msgspec.json.encode(ask), type=ExchangeRequest)
        return msgspec.json.decode(await exchange.exchange(self.context, self._call(body)))

    async def heartbeat(self, *holds: Any) -> Any:
        held = [(task["run"], task["token"]) for task in holds]
        return await heartbeat.heartbeat(self.context, self._call(HeartbeatRequest(session=self.session, holds=held)))

    async def event(self, kind: str, message: str = "", bad_release: str | None = None) -> Any:
        said = BotEvent(session=self.session, kind=kind, message=message, bad_release=bad_release)
        return await heartbeat.event(self.context, self._call(said))

    async def log(self, task: Any, stream: int, offset: int, data: bytes) -> Any:
        call = Call(
            now=self.context.now(),
            who=self.who,
            body=data,
            query=LogQuery(offset=offset),
            params={"run": task["run"], "stream": str(stream)},
            headers={"x-run-token": task["token"]},
        )
        return await logs.upload_log(self.context, call)

    def _call(self, body: Any) -> Call:
        return Call(now=self.context.now(), who=self.who, body=body, bearer=self.credential)


def of_credential(context: ServerContext, credential: str) -> Identity:
    """The bot that has this credential, as the authenticator finds it."""
    verified = bot_of_credential(context.keys.bot, credential)
    assert verified is not None
    return Identity(verified[0], Role.BOT, None, verified[0], epoch=verified[1])


def a_task(command: str = "true", **more: Any) -> dict[str, Any]:
    dimensions = more.pop("dimensions", {"pool": ["default"], "os": ["Linux"]})
    properties = {"dimensions": dimensions, "command": [command], **more.pop("properties", {})}
    return {"name": command, "slices": [{"properties": properties}], **more}


async def submit(context: ServerContext, *tasks: dict[str, Any], group_name: str = "default") -> list[str]:
    """As the API's submit does; the ids."""
    now = context.now()
    group = await context.groups.id_of(group_name, context.now())
    drafts = [submitting.draft_task(task, now=now, ids=context.ids, rules=context.rules) for task in tasks]
    answers = await claims.write_and_assign(
        context, lambda tx: submitting.submit(tx, group, drafts, now=now, ids=context.ids, rules=context.rules)
    )
    return [show_task(answer.task_id) for answer in answers]  # type: ignore[union-attr]


async def state_of(context: ServerContext, shown: str) -> str:
    task_id = parse_id(shown)[0]
    found = await context.db.read(lambda tx: task_result.read(tx, [task_id]))
    return str(found[task_id].state)


def finish(task: Any, exit_code: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "finish", "run": task["run"], "token": task["token"], "exit_code": exit_code, **more}


def start(task: Any) -> dict[str, Any]:
    return {"type": "start", "run": task["run"], "token": task["token"]}


async def until(true: Any) -> None:
    """Wait for something that only shows in memory."""
    async with asyncio.timeout(HANG_S):
        while not true():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
