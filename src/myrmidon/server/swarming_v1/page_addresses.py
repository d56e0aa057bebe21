"""Redirects the addresses of Swarming's own web page, which its clients print and people have in their notes.

The target is always a path of this server: nothing of the request but ids and filters gets into it, encoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from msgspec import Struct

from myrmidon.server.calls import ANYONE, PAGE, Answer, Call, Handler, Route
from myrmidon.server.context import ServerContext

_TAG: Final = "-tag"
"""How the keys of tags end in Swarming's filters of tasks."""
STATES: Final[Mapping[str, Sequence[str]]] = {
    "PENDING": ("WAITING", "READY"),
    "PENDING_RUNNING": ("WAITING", "READY", "RUNNING"),
    "COMPLETED": ("SUCCEEDED", "FAILED"),
    "COMPLETED_SUCCESS": ("SUCCEEDED",),
    "COMPLETED_FAILURE": ("FAILED",),
    "DEDUPED": ("SUCCEEDED",),
    "ALL": (),
}
"""Filters of tasks by state; names that are not here are states of ours too."""
_BOT_STATES: Final = ("status", "task")
"""Keys of filters of bots that are not dimensions."""


class IdQuery(Struct, frozen=True):
    id: str = ""


class ListQuery(Struct, frozen=True):
    """``f``: filters ``key:value``; ``st`` and ``et``: the range of times, in milliseconds."""

    f: list[str] = []
    st: str = ""
    et: str = ""


async def redirect_task(context: ServerContext, call: Call) -> Answer:
    """``/task?id=ID``"""
    return _redirect(f"/tasks/{quote(call.query.id, safe='')}")


async def redirect_user_task(context: ServerContext, call: Call) -> Answer:
    """``/user/task/ID``"""
    return _redirect(f"/tasks/{quote(call.params['id'], safe='')}")


async def redirect_bot(context: ServerContext, call: Call) -> Answer:
    """``/bot?id=ID``"""
    return _redirect(f"/bots/{quote(call.query.id, safe='')}")


async def redirect_tasks(context: ServerContext, call: Call) -> Answer:
    """``/tasklist?f=state:PENDING&f=pool-tag:linux``"""
    query: ListQuery = call.query
    fields: list[tuple[str, str]] = []
    for key, value in _filters(query):
        if key == "state":
            fields += [("state", state) for state in STATES.get(value, (value,))]
        elif key in ("name", "user", "bot"):
            fields.append((key, value))
        else:
            fields.append(("tag", f"{key.removesuffix(_TAG)}:{value}"))
    times = [("start", query.st), ("end", query.et)]
    fields += [(name, f"{text}000") for name, text in times if text.isdecimal() and len(text) <= 15]
    return _redirect("/tasks", fields)


async def redirect_bots(context: ServerContext, call: Call) -> Answer:
    """``/botlist?f=pool:linux&f=status:dead``"""
    fields = [
        ("state", value) if key in _BOT_STATES else ("dimension", f"{key}:{value}")
        for key, value in _filters(call.query)
    ]
    return _redirect("/bots", fields)


def _filters(query: ListQuery) -> list[tuple[str, str]]:
    pairs = [text.partition(":") for text in query.f]
    return [(key, value) for key, colon, value in pairs if colon]


def _redirect(path: str, fields: Sequence[tuple[str, str]] = ()) -> Answer:
    target = f"{path.removesuffix('/')}?{urlencode(fields)}" if fields else path.removesuffix("/")
    return Answer(status=302, headers={"location": target, "cache-control": "no-store"}, body=b"")


def _page(path: str, call: Handler, summary: str, query: Any = None) -> Route:
    return Route("GET", path, call, ANYONE, summary, query=query, media="text/html; charset=utf-8", style=PAGE)


ROUTES: Final = (
    _page("/task", redirect_task, "A task, at Swarming's address", IdQuery),
    _page("/user/task/{id}", redirect_user_task, "A task, at Swarming's older address"),
    _page("/bot", redirect_bot, "A bot, at Swarming's address", IdQuery),
    _page("/tasklist", redirect_tasks, "Tasks, at Swarming's address", ListQuery),
    _page("/botlist", redirect_bots, "Bots, at Swarming's address", ListQuery),
)
