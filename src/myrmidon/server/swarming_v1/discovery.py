"""The API v1 described for machines: a discovery document, from which generic clients build themselves.

Made from the table of methods and the messages themselves, so that it cannot say anything else than what is served.
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
    Route,
    Style,
)
from myrmidon.server.context import ServerContext
from myrmidon.server.swarming_v1 import messages as v1
from myrmidon.server.swarming_v1.encoding import SORTS, STATE_FILTERS, THREE_STATES
from myrmidon.server.swarming_v1.methods import METHODS, ROOTS, SERVICE, Method
from myrmidon.server.swarming_v1.tasks import DEFAULT_LIMIT, MAX_LIMIT

PREFIX: Final = "SwarmingRpcs"
_ENUMS: Final[Mapping[str, list[str]]] = {
    "state": list(STATE_FILTERS),
    "sort": list(SORTS),
    **{name: list(THREE_STATES) for name in ("is_dead", "is_busy", "quarantined", "in_maintenance")},
}
"""Parameters of queries that are one of a few words."""
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
    "fields": {"type": "string", "description": "Tolerated; replies are always whole.", "location": "query"},
    "key": {"type": "string", "description": "Tolerated; tokens say who calls.", "location": "query"},
    "oauth_token": {"type": "string", "description": "Tolerated; send the token as a header.", "location": "query"},
    "prettyPrint": {"type": "boolean", "description": "Tolerated.", "default": "true", "location": "query"},
    "quotaUser": {"type": "string", "description": "Tolerated.", "location": "query"},
    "userIp": {"type": "string", "description": "Tolerated.", "location": "query"},
}


def document(root: str) -> dict[str, Any]:
    """The discovery document of this API at an address that ends in a slash."""
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
        "basePath": f"{ROOTS[Style.V1]}{SERVICE}",
        "baseUrl": base,
        "batchPath": "batch",
        "parameters": _COMMON_PARAMETERS,
        "schemas": dict(sorted(_schemas())),
        "resources": resources,
    }


def _method(method: Method) -> dict[str, Any]:
    in_path = re.findall(r"\{(\w+)\}", method.path)
    told: dict[str, Any] = {
        "id": f"swarming.{method.name}",
        "path": method.path,
        "httpMethod": method.http,
        "description": method.about,
        "parameters": {
            **{name: {"type": "string", "required": True, "location": "path"} for name in in_path},
            **(dict(_parameters(method)) if method.query is not None else {}),
        },
        "parameterOrder": [*in_path, *method.needs],
        "response": {"$ref": _named(method.out)},
        "scopes": [],
    }
    if method.told is not None:
        told["request"] = {"$ref": _named(method.told), "parameterName": "resource"}
    return told


def _parameters(method: Method) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parameters of a query, by the fields of the struct that reads it."""
    for name, hint in get_type_hints(method.query).items():
        kind, repeated = _inner(hint)
        type_name, format_name = _FORMATS[kind]
        told: dict[str, Any] = {"type": type_name, "location": "query"}
        if name in method.needs:
            told["required"] = True
        if format_name:
            told["format"] = format_name
        if repeated:
            told["repeated"] = True
        if name in _ENUMS:
            told["enum"] = _ENUMS[name]
            told["enumDescriptions"] = [""] * len(_ENUMS[name])
        if name == "limit":
            told |= {"default": str(DEFAULT_LIMIT), "minimum": "1", "maximum": str(MAX_LIMIT)}
        yield name, told


def _inner(hint: Any) -> tuple[Any, bool]:
    """The type of a value, and whether there may be several of it."""
    if get_origin(hint) is list:
        return get_args(hint)[0], True
    if get_origin(hint) in (Union, UnionType):
        return next(one for one in get_args(hint) if one is not type(None)), False
    return hint, False


# ---------------------------------------------------------------- schemas


def _named(message: type[Struct]) -> str:
    return f"{PREFIX}{message.__name__}"


def _schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every message that some method takes or gives, with all that is in it."""
    left = [kind for method in METHODS for kind in (method.out, method.told) if kind is not None]
    done: set[str] = set()
    while left:
        message = left.pop()
        name = _named(message)
        if name in done:
            continue
        done.add(name)
        properties: dict[str, Any] = {}
        for field, hint in get_type_hints(message, include_extras=True).items():
            properties[field] = _schema(hint, left)
        told = {"id": name, "type": "object", "properties": properties}
        about = _about(message)
        yield name, {**told, "description": about} if about else told


def _about(message: type[Struct]) -> str:
    return "" if message.__doc__ == v1.Message.__doc__ else " ".join((message.__doc__ or "").split())


def _schema(hint: Any, seen: list[Any]) -> dict[str, Any]:
    """One type; the messages that it mentions are added to those seen."""
    if get_origin(hint) in (Union, UnionType):
        return _schema(next(one for one in get_args(hint) if one is not type(None)), seen)
    if get_origin(hint) is Annotated:
        _, meta = get_args(hint)
        return {"type": "string", **meta.extra}
    if get_origin(hint) is list:
        return {"type": "array", "items": _schema(get_args(hint)[0], seen)}
    if isinstance(hint, type) and issubclass(hint, Struct):
        seen.append(hint)
        return {"$ref": _named(hint)}
    type_name, format_name = _FORMATS[hint]
    return {"type": type_name, "format": format_name} if format_name else {"type": type_name}


# ---------------------------------------------------------------- routes


def _root(context: ServerContext, call: Call) -> str:
    """Where the caller finds this server: the public address, or the one that it has called."""
    known = context.settings.public_url.rstrip("/")
    if not known:
        scheme = "https" if context.settings.tls_certificate else "http"
        known = f"{scheme}://{call.headers.get('host', '')}"
    return f"{known}{ROOTS[Style.V1]}"


async def show_document(context: ServerContext, call: Call) -> bytes:
    return msgspec.json.encode(document(_root(context, call)))


async def show_directory(context: ServerContext, call: Call) -> bytes:
    """The APIs that are described here: one."""
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


ROUTES = (
    Route(
        method="GET",
        path="/_ah/api/discovery/v1/apis",
        call=show_directory,
        who=ANYONE,
        style=Style.V1,
        summary="The APIs that are described for machines",
    ),
    Route(
        method="GET",
        path="/_ah/api/discovery/v1/apis/swarming/v1/rest",
        call=show_document,
        who=ANYONE,
        style=Style.V1,
        summary="The API v1, described for machines",
    ),
)
