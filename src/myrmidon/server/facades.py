"""All routes of a server: its own, and those of the facades for the clients of other systems.

A facade is a package with a function ``register``; nothing below this module knows any of them. Another one is added
here.
"""

from __future__ import annotations

from typing import Final

from myrmidon.server import swarming_v1, taskcluster
from myrmidon.server.asgi.routes import own_routes
from myrmidon.server.calls import Route, Style

FACADES: Final = (swarming_v1.register(), taskcluster.register())
STYLES: Final[tuple[Style, ...]] = tuple(style for facade in FACADES for style in facade.styles)


def every_route(*, metrics_open: bool = False) -> tuple[Route, ...]:
    """Every call that a server answers."""
    return (*own_routes(metrics_open=metrics_open), *(route for facade in FACADES for route in facade.routes))
