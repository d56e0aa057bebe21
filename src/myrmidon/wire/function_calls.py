"""The call of a function by a task: what one needs to repeat it elsewhere. /api/v1/tasks/{id}/call"""

from __future__ import annotations

from msgspec import Struct


class CallValue(Struct, frozen=True, kw_only=True):
    """A value that the call reads; its bytes are ``GET /api/v1/values/{value_id}``. No size: it does not exist yet."""

    value_id: str
    type: str
    size: int | None


class CallInput(CallValue, frozen=True, kw_only=True):
    """An argument. With ``parts`` it is composed of them; its own bytes are the shape, none for a plain list."""

    parts: list[CallValue] | None = None


class FunctionCall(Struct, frozen=True, kw_only=True):
    """A function with its arguments. ``code`` is the digest of the zip that bots run now, empty if it is installed.

    ``identity`` is a digest of what the function reaches in its code, empty if that is not known. ``environment`` is
    the digest of a file with its requirements, or ``name:`` and an environment of the bots; empty for the packages of
    the bot. ``python`` is what it requires of the interpreter.
    """

    task_id: str
    package_name: str
    func_name: str
    language: str
    code: str
    identity: str
    signature: str
    environment: str
    python: list[str]
    env: dict[str, str]
    inputs: list[CallInput]
