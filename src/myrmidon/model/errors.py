"""All errors that the system raises on purpose, in one tree.

    MyrmidonError
    ├── InvalidRequest        request.invalid               bad input; nothing was stored
    ├── Conflict              request.conflict              the same key or label with another body
    ├── NotFound              not_found                     no such object, or not visible to the caller
    ├── Unauthorized          unauthorized                  no valid token
    ├── Forbidden             forbidden                     the caller lacks the permission
    ├── WrongState            wrong_state                   not possible in the object's current state
    ├── TooLarge              request.too_large             the body exceeds the size limit of this call
    ├── StorageQuotaExceeded  storage_quota                 the resource group may not store more files
    ├── TooSlow               request.too_slow              the body did not arrive in time
    ├── UnknownFile           unknown_file                  a reference to a file that the group has not stored
    ├── UnknownValue          unknown_value                 a reference to a shared value that the group does not have
    ├── FileDamaged           files.damaged                 the stored bytes are not those of the digest, or are gone
    ├── FilesUnavailable      files.unavailable             the folder of the files cannot be used
    ├── Overloaded            overloaded                    too many requests; sent with Retry-After
    │   ├── QuotaExceeded     quota                         the resource group has used up its quota
    │   └── Stopping          stopping                      this server is shutting down
    ├── BrokenPromise         broken_promise                an invariant failed: a bug in Myrmidon
    │   └── IllegalMove       broken_promise.illegal_move   a state transition that is not in the table
    └── StoreError            store
        ├── StoreBusy         store.busy                    still locked after every retry
        ├── StoreUnavailable  store.unavailable             cannot connect
        ├── StoreFull         store.full                    no space left
        └── StoreRefused      store.refused                 unsafe settings, wrong schema, second server

A lost race is not an error: the function returns ``None``.
Codes are part of the API and never change; messages may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One problem of a request: where it is, what was given, and what is allowed there."""

    path: str
    value: str
    allowed: str
    code: str = "invalid"

    def __str__(self) -> str:
        return f"{self.path or 'request'}: got {self.value}; allowed: {self.allowed}"


class MyrmidonError(Exception):
    """Base class of all errors that the system raises on purpose."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    """The HTTP status of the response."""
    retry_after_s: ClassVar[int] = 0
    """The value of Retry-After; 0: the header is not sent."""
    advice: ClassVar[str] = ""
    """What to do, for errors where that is always the same; else the message itself says it."""

    def __init__(self, message: str, *, advice: str | None = None, reason: str = "") -> None:
        sentence = message if message.endswith((".", "!", "?")) else f"{message}."
        self.message = f"{sentence} {self.advice if advice is None else advice}".strip()
        self.reason = reason
        """Why, as a word for programs, where one code has several reasons."""
        super().__init__(self.message)

    def as_dict(self) -> dict[str, object]:
        """The JSON form of an error; only InvalidRequest adds ``problems``."""
        reason = {"reason": self.reason} if self.reason else {}
        return {"code": self.code, "message": self.message, **reason}


class InvalidRequest(MyrmidonError):
    """The input is wrong. Lists *every* problem found, so that all can be corrected at once."""

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
    """A request key, external id or label was used before with a different body."""

    code = "request.conflict"
    status = 409


NOT_FOUND_ADVICE: Final[Mapping[str, str]] = {
    "task": "`myrmidon tasks` lists tasks; they are deleted some time after their end.",
    "run": "`myrmidon task show TASK` lists the runs of a task.",
    "run of this bot": "Drop its output: the run belongs to another bot or was deleted.",
    "parent task": "Name a run of a task that exists, or submit the task without a parent.",
    "job": "`myrmidon jobs` lists jobs; they are deleted some time after their end.",
    "shared value": "`myrmidon value list` lists them. One is deleted with its last reference; create it again.",
    "bot": "`myrmidon bots` lists the bots; one that was deleted registers again with a bootstrap token.",
    "resource group": "Name another one, or ask an administrator to create it.",
    "webhook": "`myrmidon webhook list` lists the webhooks.",
    "delivery": "`myrmidon webhook deliveries WEBHOOK` lists them; they are deleted after three days.",
    "token": "`myrmidon token list` lists the tokens.",
    "configuration file": "`myrmidon config show` lists the files.",
    "value": "`myrmidon value list JOB` lists the values of a job.",
    "stream of results": "Open another one on this server, with all tasks that you wait for.",
    "file": "Files are deleted some time after the last job that uses them; a group reads only files that it has sent.",
    "file of this run": "A run may read the files that are its inputs or its code.",
    "release": "`myrmidon releases` lists the releases.",
    "bot zip": "`GET /api/v1/server` has the digest of the active one as `bot_version`.",
    "page": "`/api/docs` lists the paths of the API.",
}
"""What to do if there is no such object, by kind."""


class NotFound(MyrmidonError):
    """No object of that kind has this id, or the caller may not see it. ``but``: the kind of object that has it."""

    code = "not_found"
    status = 404

    def __init__(self, what: str, which: str, *, but: str = "") -> None:
        self.what = what
        self.id = which
        if but:
            super().__init__(f"{which} is a {but}, not a {what}.", advice=f"`myrmidon {but} show {which}` shows it.")
        else:
            super().__init__(f"There is no {what} {which}.", advice=NOT_FOUND_ADVICE.get(what, ""))


class Unauthorized(MyrmidonError):
    """The caller has no token, or one that is wrong, expired or revoked."""

    code = "unauthorized"
    status = 401
    advice = "Send a valid token as `Authorization: Bearer ...`."


class Forbidden(MyrmidonError):
    """The caller lacks the permission, for example to read a value of another resource group."""

    code = "forbidden"
    status = 403


class WrongState(MyrmidonError):
    """Not possible in the object's current state: a sealed job cannot grow, a running task cannot be rerun."""

    code = "wrong_state"
    status = 409


class TooLarge(MyrmidonError):
    """The body exceeds the size limit of this call."""

    code = "request.too_large"
    status = 413
    advice = "Send less in one call."


class StorageQuotaExceeded(MyrmidonError):
    """The files of the resource group would exceed its quota of stored bytes. Waiting a moment does not help."""

    code = "storage_quota"
    status = 413
    advice = (
        "Delete jobs and shared values that refer to large files; files that nothing refers to are deleted after a "
        "day. Or ask for a larger quota."
    )


class TooSlow(MyrmidonError):
    """The body did not arrive in time."""

    code = "request.too_slow"
    status = 408
    advice = "Nothing was stored; send the request again over a better connection."


class UnknownFile(MyrmidonError):
    """A request refers to files that its resource group has not stored."""

    code = "unknown_file"
    status = 409
    advice = "Nothing was stored; upload them with `PUT /api/v1/files/{digest}` and send the request again."

    def __init__(self, digests: Sequence[str]) -> None:
        more = f" and {len(digests) - 3} more" if len(digests) > 3 else ""
        super().__init__(f"The resource group has no file {', '.join(digests[:3])}{more}.")


class UnknownValue(MyrmidonError):
    """A request refers to shared values that were deleted, or that its resource group does not reference.

    The two are not told apart: else a group could find out which values another one has.
    """

    code = "unknown_value"
    status = 409
    advice = "Nothing was stored; share the value again, or ask an administrator to reference it for this group."

    def __init__(self, value_ids: Sequence[str]) -> None:
        more = f" and {len(value_ids) - 3} more" if len(value_ids) > 3 else ""
        super().__init__(f"The resource group has no shared value {', '.join(value_ids[:3])}{more}.")


class FileDamaged(MyrmidonError):
    """The stored bytes of a file are not those that its digest names, or they are gone."""

    code = "files.damaged"
    status = 410
    advice = "Upload the file again, or run the task again that has produced it."


class FilesUnavailable(MyrmidonError):
    """The folder of the files cannot be used: its disk is full or failed, or it belongs to another database."""

    code = "files.unavailable"
    status = 503
    retry_after_s = 5
    advice = "Nothing was stored; see the server's log and `/readyz`."


class Overloaded(MyrmidonError):
    """The server has more requests than it can process in time."""

    code = "overloaded"
    status = 429
    retry_after_s = 1
    advice = "Nothing was stored; wait for the time in Retry-After and send it again."


class QuotaExceeded(Overloaded):
    """The resource group has used up its quota of pending tasks or bytes."""

    code = "quota"
    retry_after_s = 10
    advice = "This call stored nothing; wait until some of its tasks have ended, or ask for a larger quota."


class Stopping(Overloaded):
    """The server is shutting down and accepts no new work."""

    code = "stopping"
    status = 503
    advice = "Nothing was stored; send it to another server, or again in a moment."


class BrokenPromise(MyrmidonError):
    """An internal invariant failed, which is a bug. The transaction is rolled back."""

    code = "broken_promise"
    advice = "This is a bug in Myrmidon, please report it; nothing was changed."


class IllegalMove(BrokenPromise):
    """A state transition that is not in the table; the message has the whole history of the task."""

    code = "broken_promise.illegal_move"


class StoreError(MyrmidonError):
    """The database could not complete an operation."""

    code = "store"
    status = 503
    retry_after_s = 5
    advice = "See the server's log."


class StoreBusy(StoreError):
    """Deadlocks or lock timeouts persisted through every retry. Nothing was changed."""

    code = "store.busy"
    status = 503
    retry_after_s = 1
    advice = "Nothing was changed; try again in a moment."


class StoreUnavailable(StoreError):
    """The database cannot be reached."""

    code = "store.unavailable"
    advice = "Check that the database runs and that its URL is right."


class StoreFull(StoreError):
    """The disk of the database is full. Nothing was changed."""

    code = "store.full"
    advice = "Free some space on the disk of the database; the server then goes on by itself."


class StoreRefused(StoreError):
    """The database can be reached but must not be used: its settings, schema or owner are wrong."""

    code = "store.refused"
    advice = "Change the setting named here and start again."
