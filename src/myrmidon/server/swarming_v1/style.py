"""How Swarming's API v1 takes requests and answers errors, below each of its two prefixes and below that of its v2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from myrmidon.server.calls import ErrorReply, Style, joined_message

_REASONS: Final = {
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
_PERMISSION_DENIED, _UNIMPLEMENTED = "7", "12"
"""Codes of gRPC."""


def _error_reply(status: int, details: Mapping[str, Any]) -> ErrorReply:
    """An error as Google's API clients expect it."""
    message = joined_message(details)
    error = {"code": status, "message": message, "status": details["code"]}
    reason = {"domain": "global", "reason": _REASONS.get(status, "internalError"), "message": message}
    return ErrorReply(status, {"error": {**error, "errors": [reason]}})


def _old_error_reply(status: int, details: Mapping[str, Any]) -> ErrorReply:
    return ErrorReply(
        status, {"error": {"code": status, "message": joined_message(details), "status": details["code"]}}
    )


def _prpc_error_reply(status: int, details: Mapping[str, Any]) -> ErrorReply:
    """Without the header, clients of the API v2 repeat the call for five minutes."""
    if status == 403:
        return ErrorReply(status, {"error": details}, {"x-prpc-grpc-code": _PERMISSION_DENIED})
    message = "This server has no pRPC methods. Use a client of Swarming's API version 1: docs/swarming.md."
    error = {"code": "not_found", "message": message}
    return ErrorReply(501, {"error": error}, {"x-prpc-grpc-code": _UNIMPLEMENTED})


V1: Final = Style("swarming v1", "/_ah/", tolerant=True, cross_origin=True, error_reply=_error_reply)
V1_OLD: Final = Style(
    "swarming v1, older prefix", "/api/swarming/", tolerant=True, cross_origin=True, error_reply=_old_error_reply
)
V2: Final = Style("swarming v2", "/prpc/", error_reply=_prpc_error_reply)
STYLES: Final = (V1, V1_OLD, V2)
