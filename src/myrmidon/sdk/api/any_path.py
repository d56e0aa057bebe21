"""Calls of any path, for paths that have no method here."""

from __future__ import annotations

from typing import Any, Final

from myrmidon.sdk.api.caller import Caller
from myrmidon.sdk.transport import Reply, new_key

SWARMING_API: Final = "/_ah/api/swarming/v1/"


class AnyPathCalls(Caller):
    def query(self, path: str, **params: Any) -> Reply:
        """GET a path with these query parameters. A path without a leading slash belongs to Swarming's API v1."""
        return self.transport.call("GET", full_path(path), query=params)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Reply:
        """POST to a path, resolved as in query. The key makes the call idempotent where the path supports keys."""
        return self.transport.call("POST", full_path(path), body=body, key=key or new_key())


def full_path(path: str) -> str:
    """``tasks/list`` is a path of Swarming's API v1; a path with a leading slash is returned unchanged."""
    return path if path.startswith("/") else SWARMING_API + path
