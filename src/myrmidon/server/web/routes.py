"""The routes of the web page. Those of logging in are calls of the API and described there; the others are not."""

from __future__ import annotations

from functools import partial
from typing import Any

from myrmidon.server.calls import ANYONE, Handler, Route, Style
from myrmidon.server.web import login, pages, swarming_addresses
from myrmidon.server.web.swarming_addresses import IdQuery, ListQuery

API_ROUTES = login.ROUTES


def _page(path: str, call: Handler, summary: str, query: Any = None) -> Route:
    return Route(
        method="GET",
        path=path,
        call=call,
        who=ANYONE,
        query=query,
        media="text/html; charset=utf-8",
        style=Style.PAGE,
        summary=summary,
    )


PAGE_ROUTES = (
    *(_page(path, pages.show_page, "The web page") for path in (*pages.ADDRESSES, *pages.SECTIONS)),
    *(_page(f"{path}/{{rest:path}}", pages.show_page, "The web page") for path in pages.SECTIONS),
    _page("/assets/{name}", pages.show_asset, "A file of the web page"),
    *(_page(path, partial(pages.show_root_file, path[1:]), "A file of the web page") for path in pages.ROOT_FILES),
    _page("/task", swarming_addresses.redirect_task, "A task, at Swarming's address", IdQuery),
    _page("/user/task/{id}", swarming_addresses.redirect_user_task, "A task, at Swarming's older address"),
    _page("/bot", swarming_addresses.redirect_bot, "A bot, at Swarming's address", IdQuery),
    _page("/tasklist", swarming_addresses.redirect_tasks, "Tasks, at Swarming's address", ListQuery),
    _page("/botlist", swarming_addresses.redirect_bots, "Bots, at Swarming's address", ListQuery),
)
