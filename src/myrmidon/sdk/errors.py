"""What can go wrong between a caller and a server.

    CallFailed               the root
    ├── Unreachable          no answer at all, for longer than the caller's patience
    │   └── Untrusted        a certificate that is not trusted here
    ├── Refused              an answer that says no: its code, its sentence and its problems
    │   ├── NotAllowed       401 and 403: no token, a wrong one, or one that may not do this
    │   ├── Missing          404: no such thing, or not yours to see
    │   ├── Invalid          400, 413 and 422: the request is wrong; ``problems`` says all that is
    │   └── Conflict         409: the wrong state, or a key that was used for something else
    ├── Overloaded           429, 502, 503 and 504, for longer than the caller's patience
    └── ServerBroken         any other 5xx: the server's fault, and nothing to repeat

This file imports nothing, so that whoever starts quickly can still say what went wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class CallFailed(Exception):
    """A call did not bring what was asked for. ``code`` is stable, ``message`` is a sentence for people."""

    code = "call.failed"

    def __init__(self, message: str, *, code: str = "", problems: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.problems = [dict(problem) for problem in problems]

    def as_dict(self) -> dict[str, Any]:
        """The same shape that a server's error has."""
        shown: dict[str, Any] = {"code": self.code, "message": self.message}
        return {**shown, "problems": self.problems} if self.problems else shown


class Unreachable(CallFailed):
    """Nobody answers at that address."""

    code = "call.unreachable"


class Untrusted(Unreachable):
    """Somebody answers there with a certificate that nobody trusts here; asking again would not change that."""

    code = "call.untrusted"


class Refused(CallFailed):
    """The server understood the call and said no. ``status`` is HTTP's."""

    code = "call.refused"
    status = 0


class NotAllowed(Refused):
    """The token is missing, unknown or revoked, or its role may not do this."""

    code = "forbidden"


class Missing(Refused):
    """There is no such thing, or it belongs to another resource group."""

    code = "not_found"


class Invalid(Refused):
    """The request is wrong; nothing was stored."""

    code = "request.invalid"


class Conflict(Refused):
    """Too late, too early, or a key that was used with another body."""

    code = "wrong_state"


class Overloaded(CallFailed):
    """The server, or its database, asked to come back later, until patience ran out."""

    code = "call.overloaded"
    retry_after_s = 0.0


class ServerBroken(CallFailed):
    """The server failed inside. Its log has the request id."""

    code = "call.server_broken"


_BY_STATUS: dict[int, type[Refused]] = {
    400: Invalid,
    401: NotAllowed,
    403: NotAllowed,
    404: Missing,
    409: Conflict,
    413: Invalid,
    422: Invalid,
}

_BY_CODE: dict[str, int] = {
    "request.conflict": 409,
    "wrong_state": 409,
    "not_found": 404,
    "forbidden": 403,
    "quota": 429,
    "overloaded": 429,
    "store.busy": 503,
    "store.unavailable": 503,
}


def refusal_of_one(error: Mapping[str, Any]) -> CallFailed:
    """The error of one item of a batch, which has a code and no status of its own."""
    return refusal(_BY_CODE.get(str(error.get("code")), 400), {"error": error})


def refusal(status: int, body: object) -> CallFailed:
    """The error that an answer with this status and this decoded body means."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    message = str(error.get("message") or f"The answer has status {status}; check that the server's address is right.")
    # Swarming's shape has the HTTP status as its code, and ours beside it.
    code = str((error.get("status") if isinstance(error.get("code"), int) else error.get("code")) or "")
    problems = [problem for problem in error.get("problems") or () if isinstance(problem, dict)]
    if status in (429, 502, 503, 504):
        return Overloaded(message, code=code)
    if status >= 500:
        return ServerBroken(message, code=code)
    refused = _BY_STATUS.get(status, Refused)(message, code=code, problems=problems)
    refused.status = status
    return refused
