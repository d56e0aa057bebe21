"""A proxy that does to calls what networks and proxies do, by a seed that can be played again.

    with chaos(server.url, seed=7, rate=0.2) as proxy:
        proxy.url                # the way to the server that goes wrong
        proxy.done               # what it did to which call, for the message of a test that fails

refused   the call never reaches the server
lost      the server has done it, and its answer is lost before the first byte
cut       the same, in the middle of the answer
hole      the same, and the connection stays open for ever
twice     the call arrives twice, one after the other
late      the call arrives once more, when nobody expects it any more
stuck     the call never reaches the server, and the connection stays open for ever; only if it is planned
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO
from urllib.parse import urlsplit

FAULTS = ("refused", "lost", "cut", "hole", "twice", "late")
LATE_S = 0.4


class Chaos:
    """Forwards whole calls between its own port and a server's; some go wrong."""

    def __init__(self, upstream: str, *, seed: int, rate: float, faults: Sequence[str], spares: Sequence[str]) -> None:
        self.turn_to(upstream)
        self._chance = random.Random(seed)
        self.rate = rate
        self.faults = tuple(faults)
        self.spares = tuple(spares)
        """What a path begins with whose calls arrive once and in order, whatever happens to their answers."""
        self.done: list[tuple[str, str]] = []
        self.plan: list[str] = []
        """What happens to the next calls, before chance has its say."""
        self.plan_for: dict[str, list[str]] = {}
        """The same for the next calls with this text in their path."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def turn_to(self, upstream: str) -> None:
        """The next calls go to this server, as a balancer would have it."""
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)

    def count(self) -> Counter[str]:
        return Counter(fault for fault, _ in self.done if fault)

    def let_out(self) -> None:
        """Hang up on those who are in a hole or stuck now."""
        self._over.set()
        self._over = threading.Event()

    def calm(self) -> None:
        """Nothing goes wrong any more; those in a hole are let out."""
        self.rate = 0.0
        self._over.set()

    def close(self) -> None:
        self.calm()
        _hang_up(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), caller, caller.makefile("rb") as asks:
            while call := _message(asks):
                if not self._forward(caller, call, self._fault(call)):
                    break
            _hang_up(caller)

    def _fault(self, call: bytes) -> str:
        what = call.split(b" HTTP/", 1)[0].decode(errors="replace")
        with self._lock:
            wrong = self._chance.random() < self.rate
            planned = next((plan for text, plan in self.plan_for.items() if text in what and plan), self.plan)
            fault = planned.pop(0) if planned else self._chance.choice(self.faults) if wrong else ""
            if fault in ("twice", "late") and what.partition(" ")[2].startswith(self.spares):
                fault = "lost"
            self.done.append((fault, what))
        return fault

    def _forward(self, caller: socket.socket, call: bytes, fault: str) -> bool:
        """One call; whether the connection is good for another."""
        if fault == "stuck":
            self._over.wait()
        if fault in ("refused", "stuck"):
            return False
        if fault == "twice":
            self._ask_only(caller, call)
        answer = self._ask(caller, call)
        if fault == "late":
            timer = threading.Timer(LATE_S, self._ask_only, (None, call))
            timer.daemon = True
            timer.start()
        if answer is None:
            return False
        server, head = answer
        with contextlib.closing(server), server.makefile("rb") as says:
            if fault == "lost":
                return False
            if b"text/event-stream" in head.lower():
                return self._relay(caller, says, head, fault)
            whole = head + _body(says, head)
        if fault == "cut":
            caller.sendall(whole[: len(whole) // 2])
            return False
        if fault == "hole":
            self._over.wait()
            return False
        caller.sendall(whole)
        return True

    def _ask_only(self, caller: socket.socket | None, call: bytes) -> None:
        answer = self._ask(caller, call)
        if answer is not None:
            answer[0].close()

    def _ask(self, caller: socket.socket | None, call: bytes) -> tuple[socket.socket, bytes] | None:
        """The head of the server's answer; None when there is none, or nobody waits for it any more."""
        server = socket.socket()
        try:
            server.connect(self._upstream)
            server.sendall(call)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                ready = _readable([server, caller] if caller else [server])
                piece = server.recv(1) if server in ready else b""
                if not piece and (server in ready or not (caller and caller.recv(1, socket.MSG_PEEK))):
                    raise ConnectionAbortedError
                head += piece
        except OSError:
            server.close()
            return None
        return server, head

    def _relay(self, caller: socket.socket, says: IO[bytes], head: bytes, fault: str) -> bool:
        """A stream goes on until one side ends it, or until it breaks after a few pieces."""
        caller.sendall(head)
        left = self._chance.randrange(1, 6) if fault in ("cut", "hole") else -1
        while left and (piece := says.read1(65_536)):  # type: ignore[attr-defined]
            caller.sendall(piece)
            left -= 1
        if fault == "hole":
            self._over.wait()
        return False


def _readable(sockets: Sequence[socket.socket]) -> set[object]:
    """Wait until some of the sockets can be read. (select() takes no descriptors above 1023.)"""
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        return {key.fileobj for key, _ in selector.select()}


def _message(asks: IO[bytes]) -> bytes:
    """A whole request; nothing when the caller has hung up."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = asks.readline()
        if not line:
            return b""
        head += line
    return head + _body(asks, head)


def _body(says: IO[bytes], head: bytes) -> bytes:
    """What follows a head, as it came. Whatever has no length lasts until the other side hangs up.

    EOFError if the other side dies in the middle of it.
    """
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"content-length" in fields:
        body = says.read(int(fields[b"content-length"]))
        if len(body) < int(fields[b"content-length"]):
            raise EOFError
        return body
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        body = b""
        while not body.endswith(b"0\r\n\r\n"):
            size = says.readline()
            if not size:
                raise EOFError
            body += size + says.read(int(size.split(b";")[0], 16) + 2)
        return body
    return b"" if head.startswith((b"GET", b"POST", b"PUT", b"DELETE")) else says.read()


def _hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextlib.contextmanager
def chaos(
    upstream: str, *, seed: int = 1, rate: float = 0.2, faults: Sequence[str] = FAULTS, spares: Sequence[str] = ()
) -> Iterator[Chaos]:
    proxy = Chaos(upstream, seed=seed, rate=rate, faults=faults, spares=spares)
    try:
        yield proxy
    finally:
        proxy.close()
