"""The bot's HTTP client against a server that misbehaves."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from myrmidon.bot.link import http_client
from myrmidon.bot.link.http_client import HttpClient, HttpError, Interrupted, NoResponse, retry_delay
from myrmidon.bot.system import clock
from tests.deadline import HANG_S
from tests.servers import port_of, reserve_port


@contextmanager
def serving(*answers: bytes | Callable[[socket.socket], object] | None) -> Iterator[str]:
    """Accepts connections one after the other; each request gets the next answer, None closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    script = list(answers)

    def serve() -> None:
        while script:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                while script and _read_request(line):
                    answer = script.pop(0)
                    if answer is None:
                        break
                    if callable(answer):
                        answer(line)
                        break
                    line.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/prefix"
    finally:
        listener.close()


def _read_request(line: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            more = line.recv(65536)
        except OSError:
            return b""
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length"))
    while len(body) < length:
        body += line.recv(65536)
    return head


def _ok(body: bytes, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), extra, body)


AWAY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 0\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


def test_a_call_for_a_run_waits_for_a_server_that_is_away_but_not_for_one_that_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_client, "MAX_DELAY_S", 0.0)
    with serving(*[AWAY, None] * 10, _ok(b'{"done": true}')) as url, closing(HttpClient(url)) as client:
        assert client.call_until_answered("POST", "/extend", b"{}") == {"done": True}
    with serving(*[BROKEN] * http_client.ATTEMPTS) as url, closing(HttpClient(url)) as client, pytest.raises(HttpError):
        client.call_until_answered("POST", "/extend", b"{}")


def test_a_large_body_may_take_longer_than_a_call_if_its_pieces_come_in_time(monkeypatch: pytest.MonkeyPatch):
    passed_s = [0.0]
    began = time.monotonic()
    monkeypatch.setattr(clock, "boottime", lambda: began + passed_s[0])

    class OnASlowLine(HttpClient):
        def _receive(self, until: float) -> bytes:
            data = super()._receive(until)
            passed_s[0] += 0.8 * self.margin_s
            return data

    content = bytes(1 << 20)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
    with serving(_ok(content), chunked) as url:
        line = OnASlowLine(url)
        assert [line.call("GET", "/x") for _ in range(2)] == [content, content]
        line.close()
    assert passed_s[0] > 10 * line.margin_s


def test_answers_with_a_length_in_chunks_and_until_the_end_are_read():
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\nT: 1\r\n\r\n'
    endless = b'HTTP/1.1 200 OK\r\n\r\n{"a":3}'
    with serving(_ok(b'{"a":0}'), chunked, lambda line: line.sendall(endless), _ok(b'{"a":4}')) as url:
        line = HttpClient(url)
        assert [line.post("/x", {})["a"] for _ in range(4)] == [0, 1, 3, 4]
        line.close()


def test_a_kept_connection_that_was_closed_is_opened_again_without_a_failure():
    with serving(_ok(b"{}"), None, _ok(b'{"a":1}')) as url:
        line = HttpClient(url)
        line.post("/x", {})
        assert line.post("/x", {}) == {"a": 1}
        line.close()


def test_a_cut_answer_is_a_failure():
    cut = _ok(b'{"a":1}')[:-3]
    with serving(lambda line: line.sendall(cut)) as url, pytest.raises(NoResponse, match="cut"):
        HttpClient(url).post("/x", {})


def test_something_else_than_the_server_is_a_failure():
    with serving(_ok(b"<html>log in</html>")) as url:
        line = HttpClient(url)
        with pytest.raises(NoResponse, match="not JSON"):
            line.post("/x", {})
        line.close()
    with serving(lambda line: line.sendall(b"SSH-2.0-x\r\n\r\n")) as url, pytest.raises(NoResponse, match="not HTTP"):
        HttpClient(url).post("/x", {})


def test_a_black_hole_is_noticed_after_the_wait_and_the_margin(monkeypatch):
    monkeypatch.setattr(http_client, "MARGIN_S", 0.2)
    begun = time.monotonic()
    done = threading.Event()
    with serving(lambda _: done.wait(HANG_S) and None) as url:
        line = HttpClient(url)
        with pytest.raises(NoResponse, match="in time"):
            line.post("/x", {}, wait_s=0.2)
        done.set()
    assert time.monotonic() - begun > 0.35
    assert line.socket is None


def test_a_server_that_is_not_there_is_a_failure_at_once():
    with reserve_port() as nobody, pytest.raises(NoResponse):
        HttpClient(f"http://127.0.0.1:{port_of(nobody)}").post("/x", {})


def test_https_that_is_spoken_to_an_http_port_is_told_in_words():
    def refuse(listener: socket.socket) -> None:
        with listener.accept()[0] as line:
            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            line.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=refuse, args=(listener,)).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(NoResponse, match="speaks HTTP, not HTTPS: write http:// in place"):
            HttpClient(url, "").post("/bot/v1/handshake", {})


def test_a_wait_can_be_cut_short():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    done = threading.Event()
    with serving(lambda _: done.wait(HANG_S) and None) as url:
        line = HttpClient(url, wake_fd=reader)
        os.write(writer, b".")
        with pytest.raises(Interrupted):
            line.post("/x", {}, wait_s=30)
        done.set()
    os.close(reader)
    os.close(writer)


def test_errors_of_the_server_are_told_apart():
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    body = b'{"error":{"code":"wrong_state","message":"shake hands"}}'
    ended = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with serving(busy, ended) as url:
        line = HttpClient(url)
        with pytest.raises(HttpError) as first:
            line.post("/x", {})
        with pytest.raises(HttpError) as second:
            line.post("/x", {})
        line.close()
    assert (first.value.status, first.value.retry_after, first.value.is_transient) == (503, 7.0, True)
    assert (second.value.status, second.value.code, second.value.is_transient) == (409, "wrong_state", False)


def test_the_address_and_the_bearer_are_sent(monkeypatch):
    heads: list[bytes] = []
    read = _read_request

    def note(line: socket.socket) -> bytes:
        heads.append(read(line))
        return heads[-1]

    monkeypatch.setattr(sys.modules[__name__], "_read_request", note)
    with serving(_ok(b"{}")) as url:
        line = HttpClient(url, "tok")
        line.post("/bot/v1/x", {"a": 1})
        line.close()
    assert heads[0].startswith(b"POST /prefix/bot/v1/x HTTP/1.1\r\n")
    assert b"Authorization: Bearer tok" in heads[0]


@pytest.mark.parametrize("server", ["ftp://x", "nonsense", "http://"])
def test_an_address_that_is_none_is_refused(server: str):
    with pytest.raises(ValueError, match="URL"):
        HttpClient(server)


def test_pauses_grow_are_spread_out_and_have_a_cap():
    assert [retry_delay(failures, jitter=1.0) for failures in (1, 2, 3, 20)] == [0.5, 1.0, 2.0, 30.0]
    assert retry_delay(20, jitter=0.0) == 0.0
    assert 7.0 <= retry_delay(20, retry_after=7.0) <= 12.0


# ---------------------------------------------------------------- several addresses


def test_the_next_address_is_used_while_the_first_refuses_connections_and_later_the_first_again(
    monkeypatch: pytest.MonkeyPatch,
):
    now = [clock.boottime()]
    monkeypatch.setattr(clock, "boottime", lambda: now[0])
    with reserve_port() as reserved, serving(*[_ok(b"second")] * 3) as second:
        first_port = port_of(reserved)
        line = HttpClient(f"http://127.0.0.1:{first_port}, {second}")
        assert [line.call("GET", "/x"), line.call("GET", "/x")] == [b"second", b"second"]
        now[0] += http_client.RETURN_S + 1
        assert line.call("GET", "/x") == b"second", "the first was tried, and it still refuses"
        line.close()


def test_the_first_address_is_used_again_after_a_while(monkeypatch: pytest.MonkeyPatch):
    now = [clock.boottime()]
    monkeypatch.setattr(clock, "boottime", lambda: now[0])
    with serving(_ok(b"first")) as first, serving(_ok(b"second")) as second:
        line = HttpClient(f"{first},{second}")
        line._use_next()
        assert line.call("GET", "/x") == b"second"
        now[0] += http_client.RETURN_S + 1
        assert line.call("GET", "/x") == b"first"
        line.close()


@pytest.mark.parametrize("status", http_client.AWAY)
def test_an_address_whose_server_is_away_is_left_for_the_next_call(status: int):
    away = b"HTTP/1.1 %d Away\r\nContent-Length: 0\r\nRetry-After: 5\r\n\r\n" % status
    with serving(away, _ok(b"first")) as first, serving(_ok(b"second")) as second:
        line = HttpClient(f"{first},{second}")
        with pytest.raises(HttpError) as told:
            line.call("GET", "/x")
        assert told.value.retry_after is None
        assert line.call("GET", "/x") == b"second"
        line.close()


def test_an_address_that_accepts_a_call_and_does_not_answer_is_left_for_the_next_call():
    with serving(None, None) as first, serving(_ok(b"second")) as second:
        line = HttpClient(f"{first},{second}")
        with pytest.raises(NoResponse):
            line.call("GET", "/x")
        assert line.call("GET", "/x") == b"second"
        line.close()
