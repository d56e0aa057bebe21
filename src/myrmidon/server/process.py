"""A server process: reads settings, listens, serves until a signal, and stops without leaving a caller waiting."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TextIO, cast

import structlog
import uvicorn

from myrmidon.model.errors import InvalidRequest, MyrmidonError, StoreError
from myrmidon.server.asgi.app import App
from myrmidon.server.asgi.protocol import HttpProtocol
from myrmidon.server.auth import sessions
from myrmidon.server.auth.authenticator import ADMIN_FILE, Authenticator, make_admin_token
from myrmidon.server.background import loop as background
from myrmidon.server.context import ServerContext, open_context
from myrmidon.server.facades import STYLES, every_route
from myrmidon.server.settings import Settings
from myrmidon.server.settings_reader import read_settings
from myrmidon.server.web.login import link_path
from myrmidon.wire.session import FIRST_LINK_S

log = structlog.get_logger("server")

SWITCH_INTERVAL_S = 0.00005
"""The shortest time between two turns of threads.

The thread that writes gives its turn away at every statement. While another one computes, it waits this long to get it
back: with Python's 5 ms a busy event loop starves it, and with 0.5 ms a small submit took 13 ms beside the parsing of a
large graph. Shorter turns need no more CPU time, because threads change only while several have something to do.
"""
GC_THRESHOLDS = (100_000, 50, 100)
"""Held polls are many objects that live for half a minute and are in no cycle: frequent collections find nothing."""
KEEP_ALIVE_S = 75
BACKLOG = 4096
CLOSE_S = 2.0
"""Minimum time a stop waits for the database to write what is left; `stop_s` may be longer."""


class HttpServer(uvicorn.Server):
    """uvicorn with an orderly stop: long polls are answered before connections are closed."""

    def __init__(self, config: uvicorn.Config, context: ServerContext, url: str, first_link: str = "") -> None:
        super().__init__(config)
        self._context = context
        self._url = url
        self._first_link = first_link
        self.failed = False

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop at the first signal, without waiting at the second. uvicorn would raise the signal again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def request_stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def on_background_end(self, task: asyncio.Task[None]) -> None:
        """Stop the process when its background work ended: a supervisor can then start another one."""
        if not task.cancelled():
            log.error("background work ended", exc_info=task.exception())
            self.failed = True
            self.should_exit = True

    def on_disk_error(self, error: str) -> None:
        """Stop the process when nothing can be written: one that starts again reads what the disk has kept."""
        log.error("the disk of the database failed; the server ends", error=error)
        self.failed = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        announce(self._url, self._context.settings.data_folder / ADMIN_FILE, self._first_link)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.state.stopping = True
        self._context.hub.stop()
        await super().shutdown(sockets)


# ---------------------------------------------------------------- the process


def run_server(settings: Settings, *, on_listening: Callable[[str], None] | None = None) -> int:
    """Serve until a signal arrives; returns the exit code of the process. ``on_listening`` gets the address."""
    configure_logging(settings.log_level)
    _raise_file_limit(settings.most_connections)
    sock = bind(settings)
    address, port = sock.getsockname()[:2]
    context = open_context(settings, address=address, port=port)
    try:
        token_file = make_admin_token(context.db.engine, settings.data_folder, now=context.now(), ids=context.ids)
        if token_file is not None:
            log.info("created the first administrator's token", file=str(token_file))
        url = url_of(settings, sock)
        if on_listening is not None:
            on_listening(url)
        server = HttpServer(_uvicorn_config(context), context, url, first_link(context, url, token_file))
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(_serve(server, context, sock))
    finally:
        closed = _close(context)
    log.info("stopped")
    if not closed:
        os._exit(1)  # threads that wait for an unresponsive database would keep the process alive
    return int(server.failed)


def _close(context: ServerContext) -> bool:
    """Finish waiting writes and close the databases; False when they do not answer in time.

    Then nothing needs repair either: what was not committed was not acknowledged, and the server's slot expires.
    """
    closing = Thread(target=_close_context, args=(context,), name="closing", daemon=True)
    closing.start()
    closing.join(max(CLOSE_S, context.settings.stop_s))
    return not closing.is_alive()


def _close_context(context: ServerContext) -> None:
    try:
        context.close()
    except StoreError as error:
        log.warning("stopped without the database", code=error.code)


async def _serve(server: HttpServer, context: ServerContext, sock: socket.socket) -> None:
    task = asyncio.create_task(background.run(context), name="background")
    task.add_done_callback(server.on_background_end)
    loop = asyncio.get_running_loop()

    def on_disk_error(error: str) -> None:
        loop.call_soon_threadsafe(partial(server.on_disk_error, error))

    for engine in (context.db.engine, context.logs.engine):
        engine.on_disk_error = on_disk_error
    try:
        await server.serve(sockets=[sock])
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def bind(settings: Settings) -> socket.socket:
    """Bind the address before anything else, so that an address in use fails at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise SystemExit(f"Cannot listen on {settings.host} port {settings.port}: {error.strerror}.") from error
    sock.listen(BACKLOG)
    sock.setblocking(False)  # noqa: FBT003 - the library's own signature
    return sock


def url_of(settings: Settings, sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if settings.tls_certificate else 'http'}://{shown}:{port}"


def first_link(context: ServerContext, url: str, token_file: Path | None) -> str:
    """The URL that logs in the first administrator's browser, at the first start on a terminal; all else is a log."""
    if token_file is None or not sys.stdout.isatty():
        return ""
    token_id, now = int(token_file.read_text().split("_")[1], 16), context.now()
    code = context.db.engine.write(lambda tx: sessions.begin_link(tx, token_id, now=now, lifetime_s=FIRST_LINK_S))
    return f"{context.settings.public_url.rstrip('/') or url}{link_path(code)}"


def announce(url: str, token_file: Path, link: str) -> None:
    """Print the line on standard output that the parent process waits for, and then how to log in."""
    sys.stdout.write(f"Myrmidon listens on {url}\n")
    if token_file.exists():  # other servers on the database have none, or its administrator has moved it away
        sys.stdout.write(f"The first administrator's token is in {token_file}\n")
    if link:
        sys.stdout.write(f"Open the web page within ten minutes, once, at {link}\n")
    sys.stdout.flush()


def _uvicorn_config(context: ServerContext) -> uvicorn.Config:
    settings = context.settings
    protocol = type(
        "ConfiguredHttpProtocol",
        (HttpProtocol,),
        {
            "header_timeout_s": settings.header_timeout_s,
            "body_timeout_s": settings.body_timeout_s,
            "max_connections": settings.most_connections,
        },
    )
    return uvicorn.Config(
        App(context, Authenticator(context), every_route(metrics_open=settings.metrics_open), STYLES),
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=round(settings.stop_s),
        ssl_certfile=settings.tls_certificate or None,
        ssl_keyfile=settings.tls_key or None,
    )


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # no wheel for this system; the standard loop is slower but equivalent
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _raise_file_limit(max_connections: int) -> None:
    """Raise the limit of open files as far as allowed; the usual 1,024 would reject bots."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = max_connections + 1000
    if hard != resource.RLIM_INFINITY:
        target = min(target, hard)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    if target < max_connections:
        log.info("open file limit is below most_connections", limit=hard, most_connections=max_connections)


class BestEffortStream(io.TextIOBase):
    """A stream that drops what it cannot write: a full disk under the log must not stop the server."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def configure_logging(level: str) -> None:
    """Log JSON lines to standard error, those of libraries too. No call may log a secret; a test checks it."""
    stream = cast("TextIO", BestEffortStream(sys.stderr))
    number = logging.getLevelNamesMapping()[level.upper()]
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    library_handler = logging.StreamHandler(stream)
    library_handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *processors[1:]],
            foreign_pre_chain=[structlog.stdlib.add_logger_name],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[library_handler], force=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m myrmidon.server.process --name value ...``: every setting is a flag."""
    flags: dict[str, object] = {}
    given = list(sys.argv[1:] if arguments is None else arguments)
    while given:
        name = given.pop(0)
        flags[name.removeprefix("--").replace("-", "_")] = given.pop(0) if given else ""
    file = flags.pop("config", None)
    try:
        return run_server(read_settings(str(file) if file else None, flags=flags))
    except InvalidRequest as error:
        sys.stderr.writelines(f"{problem}\n" for problem in error.problems)
    except MyrmidonError as error:
        sys.stderr.write(f"{error}\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
