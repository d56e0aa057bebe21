"""The ASGI application: finds the endpoint of a path and answers what no endpoint handles.

Paths without parameters are looked up in a dictionary before the framework's router is asked: the calls of bots and
submits are among them, and it saves about 40 us each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from myrmidon.model.errors import MyrmidonError, NotFound
from myrmidon.server.asgi.decoding import read_headers
from myrmidon.server.asgi.endpoint import JSON, Endpoint, RequestIds, cors_headers, encode_json
from myrmidon.server.asgi.protocol import is_closing, send_response
from myrmidon.server.asgi.request_bodies import CallerLimits
from myrmidon.server.auth.authenticator import Authenticator
from myrmidon.server.calls import OURS, Route, Style
from myrmidon.server.context import ServerContext


class App:
    """The ASGI application of one server. ``styles`` are those of facades: how calls without a route are answered."""

    def __init__(
        self, context: ServerContext, authenticator: Authenticator, routes: Sequence[Route], styles: Sequence[Style]
    ) -> None:
        self._context = context
        self._authenticator = authenticator
        self._styles = styles
        self._request_ids = RequestIds()
        self._fixed_paths: dict[tuple[str, str], Endpoint] = {}
        limits = CallerLimits(context.settings)
        table = []
        for route in routes:
            endpoint = Endpoint(context, authenticator, route, self._request_ids, limits)
            if "{" not in route.path:
                self._fixed_paths[route.method, route.path] = endpoint
            table.append(StarletteRoute(route.path, endpoint, methods=[route.method]))
        # Fixed paths first, so that tasks/wait is never taken for a task's id.
        table.sort(key=lambda line: line.path.count("{"))
        framework = Starlette(routes=table, exception_handlers={HTTPException: self._handle_unrouted})
        framework.router.redirect_slashes = False  # it would redirect to whatever host name the caller sent
        self._framework: ASGIApp = framework

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        endpoint = self._fixed_paths.get((scope["method"], scope["path"]))
        try:
            if endpoint is None and scope["method"] == "OPTIONS" and self._style_of(scope["path"]).cross_origin:
                await self._answer_preflight(scope, send)
            elif endpoint is None:
                await self._framework(scope, receive, send)
            else:
                await endpoint(scope, receive, send)
        except RuntimeError:
            if not is_closing(scope):
                raise
            await asyncio.sleep(0)  # the transport is closed; the protocol learns why in the next loop iteration

    async def _answer_preflight(self, scope: Scope, send: Send) -> None:
        """CORS preflight of browsers: dashboards of other systems are served from other origins."""
        headers = read_headers(scope["headers"])
        allowed = self._host_error(headers) is None
        fields = cors_headers(self._authenticator, headers.get("origin", "")) if allowed else []
        if fields:
            fields += [
                (b"access-control-allow-methods", b"GET, POST, PUT"),
                (b"access-control-allow-headers", b"authorization, content-type"),
                (b"access-control-max-age", b"3600"),
            ]
        await send_response(scope, send, 204 if fields else 403, fields, b"", self._context.settings.body_timeout_s)

    async def _handle_unrouted(self, request: Request, error: Exception) -> Response:
        """Answer paths and methods that are not in the route table."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        path = request.scope["path"]
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        details: Mapping[str, object] = NotFound("page", path[:200]).as_dict()
        if host_error := self._host_error(read_headers(request.scope["headers"])):
            status, details, headers = host_error.status, host_error.as_dict(), {}
        elif status == 405:
            details = {
                "code": "method_not_allowed",
                "message": f"Method {request.method} is not allowed on this path. `/api/docs` lists what is.",
            }
        reply = self._style_of(path).error_reply(status, details)
        headers |= reply.headers
        headers["x-request-id"] = self._request_ids.of(request.headers)
        headers["x-content-type-options"] = "nosniff"
        return Response(encode_json(reply.body), status_code=reply.status, media_type=JSON, headers=headers)

    def _style_of(self, path: str) -> Style:
        """The style of errors for a path that has no route."""
        return next((style for style in self._styles if path.startswith(style.prefix)), OURS)

    def _host_error(self, headers: Mapping[str, str]) -> MyrmidonError | None:
        """Why a call with this Host is refused; endpoints check it themselves."""
        try:
            self._authenticator.origins.check_host(headers.get("host", ""), "", mutates=False)
        except MyrmidonError as error:
            return error
        return None
