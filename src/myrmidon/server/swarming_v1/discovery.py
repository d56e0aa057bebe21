"""The discovery document of the API v1, from which Google's generic API clients generate their methods.

It is generated from the table of methods and the messages, so it always agrees with what is served.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from myrmidon.server.calls import (
    ANYONE,
    Call,
    Routes,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1.encoding import SORTS, STATE_FILTERS, THREE_STATES
from myrmidon.server.swarming_v1.methods import METHODS, ROOTS, SERVICE, Method
from myrmidon.server.swarming_v1.style import V1
from myrmidon.server.swarming_v1.tasks import DEFAULT_LIMIT, MAX_LIMIT

PREFIX: Final = "SwarmingRpcs"
ROUTES = Routes()
_ENUMS: Final[Mapping[str, list[str]]] = {
    "state": list(STATE_FILTERS),
    "sort": list(SORTS),
    **{name: list(THREE_STATES) for name in ("is_dead", "is_busy", "quarantined", "in_maintenance")},
}
"""Query parameters with a fixed set of values."""
_FORMATS: Final = {float: ("number", "double"), bool: ("boolean", ""), str: ("string", ""), int: ("string", "int64")}
_COMMON_PARAMETERS: Final = {
    "alt": {
        "type": "string",
        "description": "Data format for the response.",
        "default": "json",
        "enum": ["json"],
        "enumDescriptions": ["Responses with Content-Type of application/json"],
        "location": "query",
    },
    "fields": {"type": "string", "description": "Ignored; responses always have all fields.", "location": "query"},
    "key": {"type": "string", "description": "Ignored; callers are identified by their token.", "location": "query"},
    "oauth_token": {"type": "string", "description": "Ignored; send the token as a header.", "location": "query"},
    "prettyPrint": {"type": "boolean", "description": "Ignored.", "default": "true", "location": "query"},
    "quotaUser": {"type": "string", "description": "Ignored.", "location": "query"},
    "userIp": {"type": "string", "description": "Ignored.", "location": "query"},
}


def document(root: str) -> dict[str, Any]:
    """The discovery document for the root URL ``root``, which ends in a slash."""
    resources: dict[str, Any] = {}
    for method in METHODS:
        resources.setdefault(method.resource, {"methods": {}})["methods"][method.short] = _method(method)
    base = f"{root}{SERVICE}"
    return {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": "swarming:v1",
        "name": "swarming",
        "version": "v1",
        "revision": "1",
        "title": "Swarming",
        "description": "Tasks, bots and queues, for clients of Swarming.",
        "documentationLink": "",
        "icons": {"x16": "", "x32": ""},
        "protocol": "rest",
        "rootUrl": root,
        "servicePath": SERVICE,
        "basePath": f"{ROOTS[V1]}{SERVICE}",
        "baseUrl": base,
        "batchPath": "batch",
        "parameters": _COMMON_PARAMETERS,
        "schemas": dict(sorted(_schemas())),
        "resources": resources,
    }


def _method(method: Method) -> dict[str, Any]:
    in_path = re.findall(r"\{(\w+)\}", method.path)
    described: dict[str, Any] = {
        "id": f"swarming.{method.name}",
        "path": method.path,
        "httpMethod": method.http,
        "description": method.summary,
        "parameters": {
            **{name: {"type": "string", "required": True, "location": "path"} for name in in_path},
            **(dict(_parameters(method)) if method.query is not None else {}),
        },
        "parameterOrder": [*in_path, *method.required_query],
        "response": {"$ref": _schema_name(method.out)},
        "scopes": [],
    }
    if method.request_message is not None:
        described["request"] = {"$ref": _schema_name(method.request_message), "parameterName": "resource"}
    return described


def _parameters(method: Method) -> Iterator[tuple[str, dict[str, Any]]]:
    """The query parameters of a method, from the fields of its query struct."""
    for name, hint in get_type_hints(method.query).items():
        kind, repeated = _inner(hint)
        type_name, format_name = _FORMATS[kind]
        parameter: dict[str, Any] = {"type": type_name, "location": "query"}
        if name in method.required_query:
            parameter["required"] = True
        if format_name:
            parameter["format"] = format_name
        if repeated:
            parameter["repeated"] = True
        if name in _ENUMS:
            parameter["enum"] = _ENUMS[name]
            parameter["enumDescriptions"] = [""] * len(_ENUMS[name])
        if name == "limit":
            parameter |= {"default": str(DEFAULT_LIMIT), "minimum": "1", "maximum": str(MAX_LIMIT)}
        yield name, parameter


def _inner(hint: Any) -> tuple[Any, bool]:
    """The type of a parameter without None, and whether it may be repeated."""
    if get_origin(hint) is list:
        return get_args(hint)[0], True
    if get_origin(hint) in (Union, UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None)), False
    return hint, False


# ---------------------------------------------------------------- schemas


def _schema_name(message: type[Struct]) -> str:
    return f"{PREFIX}{message.__name__}"


def _schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas of all messages of the methods, and of the messages within them."""
    pending = [kind for method in METHODS for kind in (method.out, method.request_message) if kind is not None]
    done: set[str] = set()
    while pending:
        message = pending.pop()
        name = _schema_name(message)
        if name in done:
            continue
        done.add(name)
        properties: dict[str, Any] = {}
        for field, hint in get_type_hints(message, include_extras=True).items():
            properties[field] = _schema(hint, pending)
        schema = {"id": name, "type": "object", "properties": properties}
        description = _description(message)
        yield name, {**schema, "description": description} if description else schema


def _description(message: type[Struct]) -> str:
    return "" if message.__doc__ == v1.Message.__doc__ else " ".join((message.__doc__ or "").split())


def _schema(hint: Any, pending: list[Any]) -> dict[str, Any]:
    """The schema of one type; messages that it refers to are appended to ``pending``."""
    if get_origin(hint) in (Union, UnionType):
        return _schema(next(kind for kind in get_args(hint) if kind is not type(None)), pending)
    if get_origin(hint) is Annotated:
        _, meta = get_args(hint)
        return {"type": "string", **meta.extra}
    if get_origin(hint) is list:
        return {"type": "array", "items": _schema(get_args(hint)[0], pending)}
    if isinstance(hint, type) and issubclass(hint, Struct):
        pending.append(hint)
        return {"$ref": _schema_name(hint)}
    type_name, format_name = _FORMATS[hint]
    return {"type": type_name, "format": format_name} if format_name else {"type": type_name}


# ---------------------------------------------------------------- routes


def _root(context: ServerContext, call: Call) -> str:
    """The root URL of the API: from the setting public_url, else from the Host header of the call."""
    base = context.settings.public_url.rstrip("/")
    if not base:
        scheme = "https" if context.settings.tls_certificate else "http"
        base = f"{scheme}://{call.headers.get('host', '')}"
    return f"{base}{ROOTS[V1]}"


@ROUTES.add(
    "GET", "/_ah/api/discovery/v1/apis/swarming/v1/rest", ANYONE, "Get the discovery document of the API v1", style=V1
)
async def show_document(context: ServerContext, call: Call) -> bytes:
    """The discovery document."""
    return msgspec.json.encode(document(_root(context, call)))


@ROUTES.add("GET", "/_ah/api/discovery/v1/apis", ANYONE, "List discovery documents", style=V1)
async def show_directory(context: ServerContext, call: Call) -> bytes:
    """The directory of discovery documents, which has one entry."""
    root = _root(context, call)
    item = {
        "kind": "discovery#directoryItem",
        "id": "swarming:v1",
        "name": "swarming",
        "version": "v1",
        "title": "Swarming",
        "description": "Tasks, bots and queues, for clients of Swarming.",
        "discoveryRestUrl": f"{root}discovery/v1/apis/swarming/v1/rest",
        "discoveryLink": "./apis/swarming/v1/rest",
        "preferred": True,
        "icons": {"x16": "", "x32": ""},
    }
    return msgspec.json.encode({"kind": "discovery#directoryList", "discoveryVersion": "v1", "items": [item]})
