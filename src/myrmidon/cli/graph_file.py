"""Reads graph documents: a file or stdin, JSON or YAML.

YAML is read by PyYAML's safe loader, which makes no Python objects: a tag such as ``!!python/object`` is an error.
Anchors are allowed, but a document that grows to more than MAX_VALUES values by them is refused. So is a key that an
object has twice, in both formats: parsers keep the last one, and a task would be lost without an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from myrmidon.cli.standard_input import read_file, shown

if TYPE_CHECKING:
    import yaml

MAX_VALUES: Final = 5_000_000
MAX_DEPTH: Final = 64

_JSON_KINDS: Final = {"NoneType": "an empty file", "list": "a list", "str": "a text", "bool": "true or false"}


def read_document(path: str) -> dict[str, Any]:
    """The document in a file, or in stdin for ``-``."""
    name = shown(path)
    document = _parse(read_file(path, "FILE"), name)
    if not isinstance(document, dict):
        kind = _JSON_KINDS.get(type(document).__name__, "a number")
        raise click.UsageError(f"{name}: a graph document is an object with `tasks`, not {kind}.")
    return document


def _parse(text: bytes, name: str) -> Any:
    if text.lstrip()[:1] == b"{":
        try:
            return json.loads(text, object_pairs_hook=_unique_keys)
        except _RepeatedKey as error:
            raise click.UsageError(f"{name}: {error}.") from None
        except RecursionError:
            raise click.UsageError(f"{name}: nested more than {MAX_DEPTH} levels.") from None
        except ValueError as error:
            if name.endswith(".json"):
                raise click.UsageError(f"{name}: not valid JSON: {error}.") from None
    return _parse_yaml(text, name)


class _RepeatedKey(Exception):
    """An object has a key twice."""

    def __init__(self, key: object, place: str = "") -> None:
        super().__init__(f"the key {str(key)[:100]!r} is repeated{place}; every label and field may occur once")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


def _parse_yaml(text: bytes, name: str) -> Any:
    import yaml  # late, for startup time

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)  # safe, and in C where it is compiled
    try:
        root = loader.get_single_node()
        if root is not None:
            _check_keys(root)
        document = loader.construct_document(root) if root is not None else None
    except _RepeatedKey as error:
        raise click.UsageError(f"{name}: {error}.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise click.UsageError(f"{name}: not valid YAML: {_yaml_problem(error, text)}.") from None
    except RecursionError:
        raise click.UsageError(f"{name}: nested more than {MAX_DEPTH} levels.") from None
    finally:
        loader.dispose()
    _check_size(document, name)
    return _plain(document, name)


def _check_keys(root: yaml.Node) -> None:
    """Refuse keys that a mapping has twice. What ``<<`` merges may be overridden."""
    import yaml

    seen, pending = {id(root)}, [root]
    while pending:
        node = pending.pop()
        children = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            _check_mapping(node)
            children = [value for _, value in node.value]
        for child in children:
            if id(child) not in seen:
                seen.add(id(child))
                pending.append(child)


def _check_mapping(node: yaml.MappingNode) -> None:
    import yaml

    keys: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue
        if (key.tag, key.value) in keys:
            raise _RepeatedKey(key.value, f" in line {key.start_mark.line + 1}")
        keys.add((key.tag, key.value))


def _yaml_problem(error: Exception, text: bytes) -> str:
    """The parser's message on one line; it says nothing of tabs, which look like spaces."""
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and b"\t" in lines[mark.line][: mark.column + 1]:
        return f"line {mark.line + 1} is indented with a tab; use spaces"
    return " ".join(str(error).replace('in "<byte string>", ', "in ").split())


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
