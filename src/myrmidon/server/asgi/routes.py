"""The route table of the server's own API: the ``ROUTES`` of the modules in ``api``, ``botapi`` and ``web``."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from msgspec import structs

from myrmidon.server import api, botapi, web
from myrmidon.server.asgi import openapi
from myrmidon.server.calls import ANYONE, OURS, Route


def own_routes(*, metrics_open: bool = False) -> tuple[Route, ...]:
    """Every call but those of the facades. ``metrics_open``: the metrics need no token."""
    table: list[Route] = []
    for package in (botapi, api, web):
        for found in iter_modules(package.__path__):
            table += getattr(import_module(f"{package.__name__}.{found.name}"), "ROUTES", ())
    if metrics_open:
        table = [structs.replace(line, who=ANYONE) if line.path == "/metrics" else line for line in table]
    return (*table, *openapi.routes([line for line in table if line.style is OURS]))
