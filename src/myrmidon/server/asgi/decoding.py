"""Decodes headers, query strings and bodies into what the route table names; bad input becomes InvalidRequest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Any, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import structs

from myrmidon.model.errors import InvalidRequest, Problem
from myrmidon.model.json_bounds import MAX_DEPTH, MAX_VALUES, has_too_many_values, is_too_deep
from myrmidon.model.shown_input import DID_YOU_MEAN, Path, show_path
from myrmidon.model.struct_problems import problems_of
from myrmidon.model.validation import MAX_PROBLEMS
from myrmidon.server.calls import Route, StreamedBody

MAX_QUERY_FIELDS = 1000
_ESCAPED_NUL = b"\\u0000"
_ESCAPED_BACKSLASH = b"\\\\"


def read_headers(lines: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; the values of a repeated header are joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in lines:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def parse_query(query: bytes) -> dict[str, list[str]]:
    """The values of each query field, in order."""
    fields: dict[str, list[str]] = {}
    if not query:
        return fields
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise InvalidRequest([Problem("query", "too many fields", f"at most {MAX_QUERY_FIELDS}", "length")]) from None
    for name, value in pairs:
        if "\x00" in value:
            raise InvalidRequest([Problem(name, "a text with NUL", "text without it", "text")])
        fields.setdefault(name, []).append(value)
    return fields


def body_decoder(route: Route) -> Callable[[bytes], tuple[Any, list[str]]]:
    """A function that decodes the body of a route into its struct, and says which fields have no effect."""
    if route.body in (bytes, StreamedBody, None):
        return lambda data: (data, [])
    tolerant = route.style.tolerant
    decoder = msgspec.json.Decoder(route.body, strict=not tolerant)
    rejects_nul = tolerant or route.path.startswith("/api/")

    def decode(data: bytes) -> tuple[Any, list[str]]:
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH and is_too_deep(data):
            raise InvalidRequest([Problem("body", "deeper nesting", f"at most {MAX_DEPTH} levels", "depth")])
        if len(data) > MAX_VALUES and has_too_many_values(data):
            raise InvalidRequest([Problem("body", "more values", f"at most {MAX_VALUES} values", "too_many")])
        warnings: list[str] = []
        try:
            text = data if data.strip() not in (b"", b"null") else b"{}" if tolerant else data or b"{}"
            try:
                body = decoder.decode(text)
            except msgspec.ValidationError as error:
                raw = msgspec.json.decode(text)
                warnings = _without_unknown(raw, route.body) if tolerant else []
                try:
                    body = msgspec.convert(raw, route.body, strict=False) if warnings else decoder.decode(text)
                except msgspec.ValidationError:
                    raise _refused(error, raw, route.body, "body", strict=not tolerant) from None
            if rejects_nul and _ESCAPED_NUL in data and _ESCAPED_NUL in data.replace(_ESCAPED_BACKSLASH, b""):
                # No database can store it. Bots may send it: they do not choose what commands write.
                _refuse_nul(msgspec.json.decode(data))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidRequest([Problem("body", str(error), "JSON", "json")]) from None
        return body, warnings

    return decode


def _refuse_nul(body: object) -> None:
    """InvalidRequest with the places of NUL in the texts of a body."""
    paths = list(islice(_paths_of_nul(body, ()), MAX_PROBLEMS)) or [()]
    raise InvalidRequest(
        [Problem(show_path(path) or "body", "a text with NUL", "text without it", "text") for path in paths]
    )


def _paths_of_nul(value: object, path: Path) -> Iterator[Path]:
    if isinstance(value, str) and "\0" in value:
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            if "\0" in key:
                yield (*path, key)
            if isinstance(item, (str, dict, list)):
                yield from _paths_of_nul(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, (str, dict, list)):
                yield from _paths_of_nul(item, (*path, index))


def query_decoder(kind: Any, *, tolerant: bool = False) -> Callable[[dict[str, list[str]]], Any]:
    """A function that converts query fields into a struct; tolerant: as Style.tolerant says."""
    if kind is None:
        return lambda _: None
    lists = _lists_of(kind)

    def decode(fields: dict[str, list[str]]) -> Any:
        if tolerant:
            # An empty value counts as absent, and of several values of one field the last one counts.
            fields = {
                name: present for name, values in fields.items() if (present := [text for text in values if text])
            }
            fields = {name: values if name in lists else values[-1:] for name, values in fields.items()}
        raw = {name: values if name in lists or len(values) > 1 else values[0] for name, values in fields.items()}
        try:
            return msgspec.convert(raw, kind, strict=False)
        except msgspec.ValidationError as error:
            raise _refused(error, raw, kind, "query", strict=False) from None

    return decode


@cache
def _lists_of(kind: Any) -> frozenset[str]:
    """The fields of a struct that are lists."""
    return frozenset(name for name, hint in get_type_hints(kind).items() if get_origin(hint) is list)


def _refused(error: Exception, body: object, kind: Any, source: str, *, strict: bool) -> InvalidRequest:
    """All problems of a body or query that is no ``kind``; if none is found, what msgspec says."""
    found = [problem for _, problem in islice(problems_of(body, kind, strict=strict), MAX_PROBLEMS)]
    if not found:
        text, _, place = str(error).partition(" - at `$")
        found = [Problem(place.strip("`."), "something else", text, "type")]
    return InvalidRequest([structs.replace(one, path=one.path or source) for one in found])


def _without_unknown(body: Any, kind: Any) -> list[str]:
    """Remove unknown fields from a body that need not be refused, and say so. Misspelt ones are left."""
    warnings = []
    for path, problem in list(islice(problems_of(body, kind, strict=False), MAX_PROBLEMS)):
        if problem.code == "unknown" and DID_YOU_MEAN not in problem.allowed:
            parent = body
            for step in path[:-1]:
                parent = parent[step]
            del parent[path[-1]]
            warnings.append(f"{problem.path} has no effect: this server does not know the field")
    return warnings
