"""The route table of the server's own API: what the modules of ``server/api`` declare, of ``botapi`` and of ``web``."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from msgspec import structs

from myrmidon.server import api
from myrmidon.server.asgi import openapi
from myrmidon.server.botapi import routes as botapi
from myrmidon.server.calls import ANYONE, Route
from myrmidon.server.web import login, pages


def own_routes(*, metrics_open: bool = False) -> tuple[Route, ...]:
    """Every call but those of the facades. ``metrics_open``: the metrics need no token."""
    modules = [import_module(f"{api.__name__}.{found.name}") for found in iter_modules(api.__path__)]
    table: list[Route] = [*botapi.ROUTES, *login.ROUTES]
    for module in modules:
        table += getattr(module, "ROUTES", ())
    if metrics_open:
        table = [structs.replace(line, who=ANYONE) if line.path == "/metrics" else line for line in table]
    return (*table, *openapi.routes(table), *pages.ROUTES)
