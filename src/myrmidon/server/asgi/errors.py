"""Bodies of error responses: the native shape, and the shapes that clients of Swarming and TaskCluster expect.

Code and message are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myrmidon.server.calls import Style

PREFIXES: Mapping[Style, str] = {
    Style.V1: "/_ah/",
    Style.V1_OLD: "/api/swarming/",
    Style.TASKCLUSTER: "/v1/",
}
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
    """The style of errors for a path that has no route."""
    return next((style for style, prefix in PREFIXES.items() if path.startswith(prefix)), Style.OURS)


def error_body(style: Style, status: int, details: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an error. ``details`` has code and message, and problems for an invalid request."""
    if style in (Style.OURS, Style.PAGE):
        return {"error": details}
    message = _joined_message(details)
    if style is Style.TASKCLUSTER:
        return {"message": message, "error": details}
    error: dict[str, Any] = {"code": status, "message": message, "status": details["code"]}
    if style is Style.V1:
        reason = _REASONS.get(status, "internalError")
        error["errors"] = [{"domain": "global", "reason": reason, "message": message}]
    return {"error": error}


def _joined_message(details: Mapping[str, Any]) -> str:
    """Every problem in one sentence: clients of these APIs show the message only."""
    problems = details.get("problems") or []
    if len(problems) < 2:
        return str(details["message"])
    listed = "; ".join(f"{p['path'] or 'request'}: got {p['value']}; allowed: {p['allowed']}" for p in problems)
    return f"{len(problems)} problems: {listed}"
