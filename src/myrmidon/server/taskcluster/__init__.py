"""The API of TaskCluster's graph scheduler, for its clients: a facade that ``register`` adds to the server.

``documents.py`` turns a task-graph into a job of ours, ``routes.py`` has the calls, ``render.py`` and ``messages.py``
the answers.
"""

from myrmidon.server.calls import Facade
from myrmidon.server.taskcluster.routes import ROUTES, STYLE


def register() -> Facade:
    """The routes of this facade and how they answer errors."""
    return Facade(ROUTES, (STYLE,))
