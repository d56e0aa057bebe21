"""Everything that can go wrong, in one tree.

    MyrmidonError
    ├── InvalidRequest        request.invalid               bad input; nothing was stored
    ├── Conflict              request.conflict              the same key or label with another body
    │   └── ReportConflict    run.conflict                  a report that contradicts an earlier one
    ├── NotFound              not_found                     no such thing, or not yours to see
    ├── Unauthorized          unauthorized                  nobody we know, or no longer
    ├── Forbidden             forbidden                     it exists, but not for you
    ├── WrongState            wrong_state                   too late or too early for this verb
    ├── TooLarge              request.too_large             more bytes than this call may have
    ├── TooSlow               request.too_slow              the body did not come in time
    ├── Overloaded            overloaded                    too much at once; comes with Retry-After
    │   ├── QuotaExceeded     quota                         the resource group has enough waiting
    │   └── Stopping          stopping                      this server is going down
    ├── BrokenPromise         broken_promise                a bug of ours; never expected
    │   └── IllegalMove       broken_promise.illegal_move   a state move that is not in the table
    └── StoreError            store
        ├── StoreBusy         store.busy                    retries used up
        ├── StoreUnavailable  store.unavailable             cannot connect
        └── StoreRefused      store.refused                 unsafe settings, wrong schema, second server

A lost race is not an error and not in this file: it returns ``None``.
Codes are part of the API and never change; sentences may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One thing that is wrong with a request: where, what was given, and what is allowed there."""

    path: str
    value: str
    allowed: str
    code: str = "invalid"

    def __str__(self) -> str:
        return f"{self.path or 'request'}: got {self.value}; allowed: {self.allowed}"


class MyrmidonError(Exception):
    """The root: ``except MyrmidonError`` catches whatever this system raises on purpose."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    """The HTTP status that goes with it."""
    retry_after_s: ClassVar[int] = 0
    """When it is worth another try; 0: not by itself."""
    advice: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        said = message if message.endswith((".", "!", "?")) else f"{message}."
        self.message = f"{said} {self.advice}".strip()
        super().__init__(self.message)

    def as_dict(self) -> dict[str, object]:
        """The one JSON shape of an error; ``problems`` is there only where there are some."""
        return {"code": self.code, "message": self.message}


class InvalidRequest(MyrmidonError):
    """The input is wrong. It carries *every* problem found, so that one round trip mends them all."""

    code = "request.invalid"
    status = 400
    advice = "Nothing was stored; correct the request and send it again."

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        first = f"{self.problems[0]}." if self.problems else "The request is not valid."
        more = len(self.problems) - 1
        super().__init__(first if more < 1 else f"{first} And {more} more.")

    def as_dict(self) -> dict[str, object]:
        problems = [{"path": p.path, "value": p.value, "allowed": p.allowed, "code": p.code} for p in self.problems]
        return {**super().as_dict(), "problems": problems}


class Conflict(MyrmidonError):
    """A request key, external id or label was used before, with another body."""

    code = "request.conflict"
    status = 409
    advice = "Use a new key, or send exactly what was sent the first time."


class ReportConflict(Conflict):
    """A run was reported again, with a different outcome. The first report counts."""

    code = "run.conflict"
    advice = "The first report counts; drop this one."


class NotFound(MyrmidonError):
    """Nothing of that kind has this id; perhaps it was deleted after its retention."""

    code = "not_found"
    status = 404
    advice = "Check the id; it may have been deleted after its retention."

    def __init__(self, what: str, which: str) -> None:
        self.what = what
        self.id = which
        super().__init__(f"There is no {what} {which}.")


class Unauthorized(MyrmidonError):
    """The caller is nobody we know: no token, a wrong one, one that has expired or was revoked."""

    code = "unauthorized"
    status = 401
    advice = "Send a valid token as `Authorization: Bearer ...`."


class Forbidden(MyrmidonError):
    """The caller may not do this to that, for example read a value of another resource group."""

    code = "forbidden"
    status = 403
    advice = "Ask its owner for access."


class WrongState(MyrmidonError):
    """The thing exists but cannot do this now: a sealed job cannot grow, a running task cannot be rerun."""

    code = "wrong_state"
    status = 409
    advice = "Look at its current state first."


class TooLarge(MyrmidonError):
    """The body has more bytes than this call may have."""

    code = "request.too_large"
    status = 413
    advice = "Send it in several smaller calls."


class TooSlow(MyrmidonError):
    """The body did not arrive in time."""

    code = "request.too_slow"
    status = 408
    advice = "Nothing was stored; send the request again over a better connection."


class Overloaded(MyrmidonError):
    """The server has more to do than it can answer in time."""

    code = "overloaded"
    status = 429
    retry_after_s = 1
    advice = "Nothing was stored; wait as long as Retry-After says and send it again."


class QuotaExceeded(Overloaded):
    """The resource group has as many tasks, or bytes, waiting as it may have."""

    code = "quota"
    retry_after_s = 10
    advice = "This call has stored nothing; let some of its tasks end first, or ask for a larger quota."


class Stopping(Overloaded):
    """The server is going down and takes nothing new."""

    code = "stopping"
    status = 503
    advice = "Nothing was stored; send it to another server, or again in a moment."


class BrokenPromise(MyrmidonError):
    """An invariant failed inside. The transaction is rolled back; please report it."""

    code = "broken_promise"
    advice = "This is a bug in Myrmidon, please report it; nothing was changed."


class IllegalMove(BrokenPromise):
    """A state move that the table does not know; the message carries the whole story of the task."""

    code = "broken_promise.illegal_move"


class StoreError(MyrmidonError):
    """The database could not do what was asked."""

    code = "store"
    status = 503
    retry_after_s = 5
    advice = "See the server's log."


class StoreBusy(StoreError):
    """Deadlocks or locks persisted through every retry. Nothing was changed."""

    code = "store.busy"
    status = 503
    retry_after_s = 1
    advice = "Nothing was changed; try again in a moment."


class StoreUnavailable(StoreError):
    """The database cannot be reached."""

    code = "store.unavailable"
    advice = "Check that the database runs and that its URL is right."


class StoreRefused(StoreError):
    """The database can be reached but must not be used: working on it would break a promise."""

    code = "store.refused"
    advice = "Change the setting named here and start again."
