"""Generates the OpenAPI 3.1 document from the route table, and serves it with a small page to read it.

The page loads nothing from other servers; its Content-Security-Policy forbids it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import msgspec
from msgspec import Struct

from myrmidon.server.calls import (
    ANYONE,
    Answer,
    Call,
    Handler,
    Role,
    Route,
    StreamedBody,
)
from myrmidon.server.context import ServerContext
from myrmidon.wire.fields import ErrorInfo

_REF = "#/components/schemas/{name}"
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"  # noqa: E501
_PAGE = {
    "/api/docs": ("docs.html", "text/html; charset=utf-8", "This page"),
    "/api/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8", "The page's script"),
    "/api/docs/docs.css": ("docs.css", "text/css; charset=utf-8", "The page's style"),
}


class ErrorBody(Struct, frozen=True):
    error: ErrorInfo


def routes(table: Sequence[Route]) -> tuple[Route, ...]:
    """The routes that serve the document of ``table`` and of themselves."""
    described: list[Route] = list(table)
    lines = [
        Route(
            method="GET",
            path="/api/openapi.json",
            call=_fixed(partial(_encoded, described), "application/json"),
            who=ANYONE,
            summary="This description of the API",
        )
    ]
    for path, (name, media, summary) in _PAGE.items():
        content = (files("myrmidon.server.asgi") / "docs" / name).read_bytes()
        show = _fixed(partial(bytes, content), media)
        lines.append(Route(method="GET", path=path, call=show, who=ANYONE, media=media, summary=summary))
    described += lines
    return tuple(lines)


def _encoded(table: Sequence[Route]) -> bytes:
    return msgspec.json.encode(document(table))


def _fixed(make: Callable[[], bytes], media: str) -> Handler:
    kept: list[bytes] = []

    async def show(context: ServerContext, call: Call) -> Answer:
        if not kept:
            kept.append(make())
        headers = {"content-type": media, "content-security-policy": _POLICY, "cache-control": "no-cache"}
        return Answer(headers=headers, body=kept[0])

    return show


def document(table: Sequence[Route]) -> dict[str, Any]:
    """The OpenAPI document of a route table."""
    wanted = [ErrorBody, *(kind for line in table for kind in (line.body, line.query, line.out) if _is_struct(kind))]
    shapes, components = msgspec.json.schema_components(wanted, ref_template=_REF)
    named = {id(kind): shape for kind, shape in zip(wanted, shapes, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for line in table:
        paths.setdefault(line.path, {})[line.method.lower()] = _operation(line, named, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Myrmidon",
            "version": version("myrmidon"),
            "description": "Runs tasks on a fleet of bots. Times are microseconds UTC; ids are hexadecimal texts.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _operation(line: Route, named: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{line.method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', line.path)}".rstrip("_"),
        "summary": line.summary,
        "description": (line.call.__doc__ or "").strip(),
        "tags": [_tag(line.path)],
        "parameters": _parameters(line, named, components),
        "responses": {"200": _good(line, named), "default": _bad(named)},
        "x-who": sorted(role.value for role in line.who if role is not Role.NOBODY),
    }
    if Role.NOBODY in line.who:
        operation["security"] = [{}]
    if line.body in (bytes, StreamedBody):
        raw = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": raw}
    elif line.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": named[id(line.body)]}}}
    return operation


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part and part not in ("api", "v1")]
    return parts[0] if path.startswith("/api/v1/") else ("bot" if path.startswith("/bot") else "server")


def _parameters(line: Route, named: dict[int, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)(?::\w+)?\}", line.path)
    ]
    if _is_struct(line.query):
        shape = components[named[id(line.query)]["$ref"].rpartition("/")[2]]
        required = shape.get("required", [])
        for name, schema in shape["properties"].items():
            found.append({"name": name, "in": "query", "required": name in required, "schema": schema})
    if line.query_token and not any(one["name"] == "tok" for one in found):
        found.append({"name": "tok", "in": "query", "required": False, "schema": {"type": "string"}})
    if line.mutates:
        schema = {"type": "string", "minLength": 1, "maxLength": 256}
        about = "A repeated call with the same key has no second effect and gets the same answer."
        key = {"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema, "description": about}
        found.append(key)
    return found


def _good(line: Route, named: dict[int, Any]) -> dict[str, Any]:
    if _is_struct(line.out):
        return {"description": "Done", "content": {"application/json": {"schema": named[id(line.out)]}}}
    return {"description": "Done", "content": {line.media.partition(";")[0]: {}}}


def _bad(named: dict[int, Any]) -> dict[str, Any]:
    return {"description": "Refused", "content": {"application/json": {"schema": named[id(ErrorBody)]}}}
