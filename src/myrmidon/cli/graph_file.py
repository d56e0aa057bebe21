"""Reads graph documents: a file or stdin, JSON or YAML.

YAML is read by PyYAML's safe loader, which makes no Python objects: a tag such as ``!!python/object`` is an error.
Anchors are allowed, but a document that grows to more than MAX_VALUES values by them is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

MAX_VALUES: Final = 5_000_000
MAX_DEPTH: Final = 64


def read_document(path: str) -> dict[str, Any]:
    """The document in a file, or in stdin for ``-``."""
    name = "stdin" if path == "-" else path
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{name}: {error.strerror}.") from None
    document = _parse(text, name)
    if not isinstance(document, dict):
        raise click.UsageError(f"{name}: a graph document is an object with `tasks`, not {type(document).__name__}.")
    return document


def _parse(text: bytes, name: str) -> Any:
    if text.lstrip()[:1] == b"{":
        try:
            return json.loads(text)
        except RecursionError:
            raise click.UsageError(f"{name}: nested more than {MAX_DEPTH} levels.") from None
        except ValueError as error:
            if name.endswith(".json"):
                raise click.UsageError(f"{name}: not valid JSON: {error}.") from None
    return _parse_yaml(text, name)


def _parse_yaml(text: bytes, name: str) -> Any:
    import yaml  # late, for startup time

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader, in C where it is compiled
    except (yaml.YAMLError, ValueError) as error:
        raise click.UsageError(f"{name}: not valid YAML: {str(error).replace(chr(10), ' ')}.") from None
    except RecursionError:
        raise click.UsageError(f"{name}: nested more than {MAX_DEPTH} levels.") from None
    _check_size(document, name)
    return _plain(document, name)


def _check_size(document: Any, name: str) -> None:
    """Refuse a document whose anchors make it huge or contain themselves, before it is copied."""
    sizes: dict[int, int] = {}

    def size(value: Any, depth: int) -> int:
        if not isinstance(value, (dict, list)):
            return 1
        if depth > MAX_DEPTH:
            raise click.UsageError(f"{name}: nested more than {MAX_DEPTH} levels, or an anchor that contains itself.")
        if id(value) not in sizes:
            items = value.values() if isinstance(value, dict) else value
            sizes[id(value)] = 1 + sum(size(item, depth + 1) for item in items)
        return sizes[id(value)]

    if size(document, 0) > MAX_VALUES:
        raise click.UsageError(f"{name}: more than {MAX_VALUES} values after anchors are replaced.")


def _plain(value: Any, name: str) -> Any:
    """A copy with text keys, and dates as YAML wrote them, as JSON can hold them."""
    if isinstance(value, dict):
        return {_key(key, name): _plain(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, name) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise click.UsageError(f"{name}: a value of type {type(value).__name__} cannot be sent as JSON.")


def _key(key: Any, name: str) -> str:
    if isinstance(key, (dict, list, tuple)):
        raise click.UsageError(f"{name}: a key must be text.")
    return "true" if key is True else "false" if key is False else str(key)


def parse_parameters(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """``-p name=value``: values that are JSON are sent as such (numbers, lists, true), others as text."""
    parameters: dict[str, Any] = {}
    for name, text in pairs:
        try:
            parameters[name] = json.loads(text)
        except ValueError:
            parameters[name] = text
    return parameters
