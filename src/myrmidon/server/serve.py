"""A server process: settings in, a listening address out, and a stop that leaves nobody waiting.

The listener is uvicorn with a protocol of our own for what it lacks: a deadline and a size for headers, a deadline for
readers, and a word to whoever waits when its connection is lost.
"""

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
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, TextIO, cast

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from myrmidon.model.errors import InvalidRequest, MyrmidonError, StoreError
from myrmidon.server import service
from myrmidon.server.app import App
from myrmidon.server.auth import Guard, make_admin_token
from myrmidon.server.door import Door, open_door
from myrmidon.server.routes import every_route
from myrmidon.server.settings import Settings, read_settings

log = structlog.get_logger("server")

SWITCH_INTERVAL_S = 0.0005
"""The writer's thread gets its turn this often when the event loop is busy; Python's 5 ms would starve it."""
GARBAGE_EVERY = (100_000, 50, 100)
"""Held polls are many objects that live for half a minute and are in no cycle: a look through them finds nothing."""
MOST_HEADER_BYTES = 64 << 10
SLOWEST_READER_BYTES_PER_S = 16 << 10
KEEP_ALIVE_S = 75
BACKLOG = 4096
CLOSE_S = 2.0
"""How long at least a stop waits for the database to write what is left; ``stop_s`` may say longer."""


# ---------------------------------------------------------------- the listener


class Listener(HttpToolsProtocol):
    """Ends connections whose headers do not come, or whose answers are not taken, and tells a call that waits when its
    caller is gone.
    """

    header_timeout_s = 10.0
    body_timeout_s = 30.0
    most_connections = 50_000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._reader_deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._at_work: RequestResponseCycle | None = None
        """The call being answered; ``cycle`` is the last one that came, and a caller may send many ahead."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.abort()
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._stop_expecting_reader()
        call = self._at_work
        if call is not None and not call.response_complete:
            call.disconnected = True
            call.message_event.set()
        super().connection_lost(exc)
        gone = call.scope.get("gone") if call else None
        if callable(gone):
            gone()

    # ------------------------------------------------ what comes

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > MOST_HEADER_BYTES:
            self.send_400_response("The headers are too large.")
        elif self._deadline is None and self.timeout_keep_alive_task is None and self._is_idle():
            # Empty lines, or more of a body that nobody wants: it has ended the keep-alive, and is no call.
            self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["hang_up"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope["is_closing"] = self.transport.is_closing  # type: ignore[typeddict-unknown-key]
        self._in_headers = True
        self._header_bytes = 0
        if self._deadline is None:
            self._arm()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._disarm()
        super().on_headers_complete()
        if not self.pipeline:
            self._at_work = self.cycle

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:
            self._disarm()  # a body came to its end after its answer: the next call may take its time
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _is_idle(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout_s, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.timeout_keep_alive_handler()

    # ------------------------------------------------ what goes

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._at_work = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect_reader()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_reader()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._expect_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_expecting_reader()
        if self.transport.is_closing():
            self._expect_reader()

    def _expect_reader(self) -> None:
        """What is written waits for its reader, and a close waits for what is written: neither does so for ever."""
        unread = self.transport.get_write_buffer_size()
        if unread and self._reader_deadline is None:
            patience_s = self.body_timeout_s + unread / SLOWEST_READER_BYTES_PER_S
            self._reader_deadline = self.loop.call_later(patience_s, self.transport.abort)

    def _stop_expecting_reader(self) -> None:
        if self._reader_deadline is not None:
            self._reader_deadline.cancel()
            self._reader_deadline = None


class Listening(uvicorn.Server):
    """uvicorn, stopped by our own hand: who waits is answered before connections are closed."""

    def __init__(self, config: uvicorn.Config, door: Door, url: str) -> None:
        super().__init__(config)
        self._door = door
        self._url = url
        self.failed = False

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """A signal asks to stop, a second one not to wait; unlike uvicorn's own, it does not end the process anew."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def ask_to_stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    def service_ended(self, task: asyncio.Task[None]) -> None:
        """Without its background work a server is of no use: it stops, so that whoever watches starts another."""
        if not task.cancelled():
            log.error("the service has ended", exc_info=task.exception())
            self.failed = True
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        tell(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._door.stopping = True
        self._door.hub.stop()
        await super().shutdown(sockets)


# ---------------------------------------------------------------- the process


def run_server(settings: Settings) -> int:
    """Serve until a signal comes; the exit code of the process."""
    set_up_logs(settings.log_level)
    _allow_many_connections(settings.most_connections)
    sock = bind(settings)
    address, port = sock.getsockname()[:2]
    door = open_door(settings, address=address, port=port)
    try:
        wrote = make_admin_token(door.db, settings.folder, now=door.now(), ids=door.ids)
        if wrote is not None:
            log.info("made the first administrator's token", file=str(wrote))
        server = Listening(_listener(door), door, url_of(settings, sock))
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GARBAGE_EVERY)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=_loop) as runner:
            runner.run(_serve(server, door, sock))
    finally:
        in_time = _close(door)
    log.info("stopped")
    if not in_time:
        os._exit(1)  # threads that wait for a database that does not answer would keep the process alive
    return int(server.failed)


def _close(door: Door) -> bool:
    """Write what is left and let go of everything; False when the database does not answer in time.

    It leaves nothing to repair: what was not committed was not acknowledged, and the slot's lease runs out by itself.
    """
    closing = Thread(target=_close_door, args=(door,), name="closing", daemon=True)
    closing.start()
    closing.join(max(CLOSE_S, door.settings.stop_s))
    return not closing.is_alive()


def _close_door(door: Door) -> None:
    try:
        door.close()
    except StoreError as error:
        log.warning("stopped without the database", code=error.code)


async def _serve(server: Listening, door: Door, sock: socket.socket) -> None:
    background = asyncio.create_task(service.run(door), name="service")
    background.add_done_callback(server.service_ended)
    try:
        await server.serve(sockets=[sock])
    finally:
        background.cancel()
        with suppress(asyncio.CancelledError):
            await background


def bind(settings: Settings) -> socket.socket:
    """Take the address at once, so that one in use is known before anything else is done."""
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


def tell(url: str) -> None:
    """The one line on standard output: who started this process waits for it."""
    sys.stdout.write(f"Myrmidon listens on {url}\n")
    sys.stdout.flush()


def _listener(door: Door) -> uvicorn.Config:
    settings = door.settings
    protocol = type(
        "Listener",
        (Listener,),
        {
            "header_timeout_s": settings.header_timeout_s,
            "body_timeout_s": settings.body_timeout_s,
            "most_connections": settings.most_connections,
        },
    )
    return uvicorn.Config(
        App(door, Guard(door), every_route(metrics_open=settings.metrics_open)),
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


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # it has no wheel for every system; the standard loop is slower, not different
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _allow_many_connections(wanted: int) -> None:
    """Raise the number of open files as far as the system lets us; the default of 1,024 would turn bots away."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted + 1000
    if hard != resource.RLIM_INFINITY:
        target = min(target, hard)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    if target < wanted:
        log.info("the system allows fewer open files than most_connections", allowed=hard, wanted=wanted)


class Unfailing(io.TextIOBase):
    """A stream that drops what it cannot write: a full disk under the log must not stop whoever wants to tell of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def set_up_logs(level: str) -> None:
    """JSON lines on standard error, those of the libraries too. Nobody passes a secret to a log call; a test looks."""
    stream = cast("TextIO", Unfailing(sys.stderr))
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
    others = logging.StreamHandler(stream)
    others.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *processors[1:]],
            foreign_pre_chain=[structlog.stdlib.add_logger_name],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[others], force=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m myrmidon.server.serve --name value ...``: settings as flags, without the command line's comforts."""
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
