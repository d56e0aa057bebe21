"""Swarming's HTTP API v1, for its clients: a facade that ``register`` adds to the server.

``methods.py`` is the table of its methods, which ``discovery.py`` describes to generic clients; ``request_parser.py``
reads a new task, ``render.py`` and ``messages.py`` write the answers, and ``style.py`` has its errors.
"""

from myrmidon.server.calls import Facade
from myrmidon.server.swarming_v1 import discovery, methods, page_addresses
from myrmidon.server.swarming_v1.style import STYLES


def register() -> Facade:
    """The routes of this facade and how they answer errors."""
    return Facade((*methods.ROUTES, *discovery.ROUTES, *page_addresses.ROUTES), STYLES)
