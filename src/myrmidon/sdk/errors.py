"""Errors that a call can raise.

    CallFailed               base class
    ├── Unreachable          no response before the retry limit
    │   ├── Untrusted        the server's certificate is not trusted
    │   └── WrongScheme      the address says https and the server speaks HTTP, or the reverse
    ├── Refused              any other status below 500, with the error's code, message and problems
    │   ├── NotAllowed       401 and 403: no token, an invalid one, or one without the required role
    │   ├── NotFound         404: no such object, or it belongs to another resource group
    │   ├── Invalid          400, 413 and 422: the request is invalid; ``problems`` lists every problem
    │   └── Conflict         409: wrong state, or an idempotency key that was used with another body
    ├── Overloaded           429, 502, 503 and 504 until the retry limit
    └── ServerError          500 until the retry limit, which is shorter; any other 5xx at once
    JobFailed                a job has ended without success; ``info`` has it
    WaitedTooLong            what was waited for has not ended in time

Imports nothing heavy: the command line loads it at every start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from myrmidon.wire.fields import ErrorInfo
    from myrmidon.wire.jobs import JobInfo


class CallFailed(Exception):
    """A call failed. ``code`` is a stable identifier, ``message`` a sentence for people, ``advice`` what to do next."""

    code = "call.failed"

    def __init__(
        self, message: str, *, code: str = "", problems: Sequence[Mapping[str, Any]] = (), advice: str = ""
    ) -> None:
        super().__init__(f"{message} {advice}".rstrip())
        self.message = message
        self.advice = advice
        self.code = code or type(self).code
        self.problems = [dict(problem) for problem in problems]

    def as_dict(self) -> dict[str, Any]:
        """The error in the format of the server's error responses."""
        error: dict[str, Any] = {"code": self.code, "message": f"{self.message} {self.advice}".rstrip()}
        return {**error, "problems": self.problems} if self.problems else error


class Unreachable(CallFailed):
    """No server answers at the address."""

    code = "call.unreachable"


class Untrusted(Unreachable):
    """The server's certificate is not trusted on this machine. Not retried: the result would be the same."""

    code = "call.untrusted"


class WrongScheme(Unreachable):
    """The server speaks HTTP where its address says https, or the reverse. Not retried."""

    code = "call.wrong_scheme"


class Refused(CallFailed):
    """The server refused the call. ``status`` is the HTTP status, ``reason`` a word where one code has several."""

    code = "call.refused"
    status = 0
    reason = ""


class NotAllowed(Refused):
    """The token is missing, unknown or revoked, or its role does not permit the call."""

    code = "forbidden"


class NotFound(Refused):
    """The object does not exist, or belongs to another resource group."""

    code = "not_found"


class Invalid(Refused):
    """The request is invalid; nothing was stored."""

    code = "request.invalid"


class Conflict(Refused):
    """The object is in the wrong state, or the idempotency key was used with another body."""

    code = "wrong_state"


class Overloaded(CallFailed):
    """The server or its database stayed overloaded or unavailable until the retry limit."""

    code = "call.overloaded"
    retry_after_s = 0.0


class ServerError(CallFailed):
    """Internal error of the server. Its log has the request id. ``status`` is the HTTP status."""

    code = "call.server_broken"
    status = 0


class JobFailed(Exception):
    """A job has ended without success. ``info`` is the job, with its first failure."""

    def __init__(self, info: JobInfo) -> None:
        failure = info.first_failure
        where = f": {failure.label} is {failure.state}" if failure is not None else ""
        super().__init__(f"job {info.job_id} ({info.name}) is {info.state}{where}")
        self.info = info


class WaitedTooLong(TimeoutError):
    """The time that the caller gave is over."""


_BY_STATUS: dict[int, type[Refused]] = {
    400: Invalid,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
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
    "storage_quota": 413,
    "overloaded": 429,
    "store.busy": 503,
    "store.unavailable": 503,
    "store.full": 503,
}


def error_for_item(item: Mapping[str, Any] | ErrorInfo) -> CallFailed:
    """The exception for one failed item of a batch, whose error has a code but no HTTP status."""
    import msgspec  # late: see above

    error = msgspec.to_builtins(item)
    return error_for_response(_BY_CODE.get(str(error.get("code")), 400), {"error": error})


def error_for_response(status: int, body: object) -> CallFailed:
    """The exception for a response with this status and decoded body."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    not_ready = "; ".join(map(str, body.get("problems") or ())) if isinstance(body, dict) else ""  # of /readyz
    told = error.get("message") or not_ready
    message = str(told or f"This is no response of a Myrmidon server (status {status}).")
    advice = "" if told else "Check the server's address."
    # Swarming's error format has the HTTP status in "code" and our code in "status".
    code = str((error.get("status") if isinstance(error.get("code"), int) else error.get("code")) or "")
    problems = [problem for problem in error.get("problems") or () if isinstance(problem, dict)]
    if status in (429, 502, 503, 504):
        return Overloaded(message, code=code, advice=advice)
    if status >= 500:
        broken = ServerError(message, code=code, advice=advice)
        broken.status = status
        return broken
    refused = _BY_STATUS.get(status, Refused)(message, code=code, problems=problems, advice=advice)
    refused.status, refused.reason = status, str(error.get("reason") or "")
    return refused
