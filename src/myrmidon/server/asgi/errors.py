"""How an error looks to who asked: one shape of our own, and those that clients of Swarming's API v1 expect.

The code and the sentence are the same in all of them; only the wrapping differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myrmidon.server.calls import Style

PREFIXES: Mapping[Style, str] = {Style.V1: "/_ah/", Style.V1_OLD: "/api/swarming/"}
_REASONS = {
    400: "badRequest",
    401: "required",
    403: "forbidden",
    404: "notFound",
    405: "httpMethodNotAllowed",
    408: "requestTimeout",
    409: "conflict",
    413: "uploadTooLarge",
    429: "rateLimitExceeded",
    503: "backendError",
}


def style_of(path: str) -> Style:
    """Whose clients ask for a path that no route has."""
    return next((style for style, prefix in PREFIXES.items() if path.startswith(prefix)), Style.OURS)


def error_body(style: Style, status: int, told: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an error. ``told`` has our code and message, and problems where there are some."""
    if style is Style.OURS:
        return {"error": told}
    message = _message(told)
    shaped: dict[str, Any] = {"code": status, "message": message, "status": told["code"]}
    if style is Style.V1:
        reason = _REASONS.get(status, "internalError")
        shaped["errors"] = [{"domain": "global", "reason": reason, "message": message}]
    return {"error": shaped}


def _message(told: Mapping[str, Any]) -> str:
    """Every problem in one sentence: v1 has no place of its own for them."""
    problems = told.get("problems") or []
    if len(problems) < 2:
        return str(told["message"])
    listed = "; ".join(f"{one['path'] or 'request'}: got {one['value']}; allowed: {one['allowed']}" for one in problems)
    return f"{len(problems)} problems: {listed}"
