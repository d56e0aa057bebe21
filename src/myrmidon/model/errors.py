"""Everything that can go wrong, in one tree.

    MyrmidonError
    ├── InvalidRequest        request.invalid               bad input; nothing was stored
    ├── Conflict              request.conflict              the same key or label with another body
    │   └── ReportConflict    run.conflict                  a report that contradicts an earlier one
    ├── NotFound              not_found                     no such thing, or not yours to see
    ├── Forbidden             forbidden                     it exists, but not for you
    ├── WrongState            wrong_state                   too late or too early for this verb
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
    advice: ClassVar[str] = ""

    def __init__(self, message: str) -> None:
        self.message = f"{message} {self.advice}".strip()
        super().__init__(self.message)

    def as_dict(self) -> dict[str, object]:
        """The one JSON shape of an error; ``problems`` is there only where there are some."""
        return {"code": self.code, "message": self.message}


class InvalidRequest(MyrmidonError):
    """The input is wrong. It carries *every* problem found, so that one round trip mends them all."""

    code = "request.invalid"
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
    advice = "Use a new key, or send exactly what was sent the first time."


class ReportConflict(Conflict):
    """A run was reported again, with a different outcome. The first report counts."""

    code = "run.conflict"
    advice = "The first report counts; drop this one."


class NotFound(MyrmidonError):
    """Nothing of that kind has this id; perhaps it was deleted after its retention."""

    code = "not_found"
    advice = "Check the id; it may have been deleted after its retention."

    def __init__(self, what: str, which: str) -> None:
        self.what = what
        self.id = which
        super().__init__(f"There is no {what} {which}.")


class Forbidden(MyrmidonError):
    """The caller may not do this to that, for example read a value of another resource group."""

    code = "forbidden"
    advice = "Ask its owner for access."


class WrongState(MyrmidonError):
    """The thing exists but cannot do this now: a sealed job cannot grow, a running task cannot be rerun."""

    code = "wrong_state"
    advice = "Look at its current state first."


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
    advice = "See the server's log."


class StoreBusy(StoreError):
    """Deadlocks or locks persisted through every retry. Nothing was changed."""

    code = "store.busy"
    advice = "Nothing was changed; try again in a moment."


class StoreUnavailable(StoreError):
    """The database cannot be reached."""

    code = "store.unavailable"
    advice = "Check that the database runs and that its URL is right."


class StoreRefused(StoreError):
    """The database can be reached but must not be used: working on it would break a promise."""

    code = "store.refused"
    advice = "Change the setting named here and start again."
