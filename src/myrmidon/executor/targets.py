"""Finds functions: imports their module, reads their signature, and keeps both for the next run."""

from __future__ import annotations

import sys
import types
from typing import Any, Callable, NamedTuple

from myrmidon.executor.failures import NotFound, SignatureMismatch
from myrmidon.functions.codecs import codec_of
from myrmidon.functions.scalar_codecs import Codec
from myrmidon.functions.signature import Signature, signature_of


class ImportFailed(Exception):
    """Stands for what an import has raised, which is the cause."""


class Target(NamedTuple):
    """A function that was found, with what a call needs."""

    function: Callable[..., Any]
    signature: Signature
    inputs: list[Codec]
    outputs: list[Codec]


class Targets:
    """The functions of one code folder."""

    def __init__(self, after_import: Callable[[], None]) -> None:
        self._found: dict[tuple[str, str], Target] = {}
        self._after_import = after_import

    def find(self, package: str, name: str, signature: str) -> Target:
        """The function with this name and signature. Raises NotFound, SignatureMismatch or ImportFailed."""
        target = self._found.get((package, name))
        if target is None:
            try:
                target = self._found[package, name] = _load(package, name)
            except NotFound:
                raise
            except BaseException as error:
                raise ImportFailed from error
            self._after_import()
        if signature and signature != target.signature.text:
            raise SignatureMismatch(
                f"the function has changed: the job was submitted with {signature}, the bot has "
                f"{target.signature.text}; submit the job again, or rerun it with the new code"
            )
        return target


def _load(package: str, name: str) -> Target:
    function = find_object(package, name)
    signature = signature_of(function)
    return Target(
        function,
        signature,
        [codec_of(one.annotation) for one in signature.parameters],
        [codec_of(one) for one in signature.outputs],
    )


def find_object(package: str, name: str) -> Callable[..., Any]:
    """The plain function below a decorated one."""
    __import__(package)
    found: Any = sys.modules[package]
    for part in name.split("."):
        try:
            found = found.__dict__[part] if isinstance(found, type) else getattr(found, part)
        except (AttributeError, KeyError):
            raise NotFound(f"module {package} on the bot has no function {name}") from None
    if isinstance(found, staticmethod):
        found = found.__func__
    if not isinstance(found, types.FunctionType) and hasattr(found, "function"):
        found = found.function  # a function with the decorator `task`
    if not callable(found):
        raise NotFound(f"{name} of module {package} on the bot is not a function")
    return found  # type: ignore[no-any-return]
