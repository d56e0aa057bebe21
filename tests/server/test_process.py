"""The server as a process: start, limits of the listener, stop, crash, TLS, a database that goes away."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import WrongScheme
from myrmidon.server.asgi.protocol import MAX_HEADER_BYTES
from tests import servers
from tests.deadline import HANG_S, POLL_S
from tests.live import live_server
from tests.server.contexts import a_task
from tests.server.wire import WireBot, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One for all tests that leave it as it was."""
    with live_server(folder=tmp_path_factory.mktemp("serve"), body_limit=20_000) as started:
        yield started


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """One that ends what is slow at once. It may take for slow what is not, and tests that call it call it again."""
    with live_server(folder=tmp_path_factory.mktemp("hasty"), header_timeout_s=0.3, body_timeout_s=0.4) as started:
        yield started


def dial(server, said: bytes) -> socket.socket:
    at = urlsplit(server.url)
    connection = socket.create_connection((at.hostname, at.port), timeout=HANG_S)
    connection.sendall(said)
    return connection


@contextmanager
def answered(server, said: bytes):
    """A connection and the first words of its answer; one that was ended because we were slow is made again."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        with dial(server, said) as connection:
            if first := connection.recv(65536):
                yield connection, first
                return
    raise AssertionError("the server never had the patience")


def head(server, *, length: int, more: str = "") -> bytes:
    return (
        f"POST /api/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


def all_of(connection: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    said = b""
    while piece := connection.recv(65536):
        said += piece
    return said


# ---------------------------------------------------------------- responses


def test_a_response_leaves_in_one_piece(server):
    """Else its head would wake the client before the body is there."""
    with dial(server, b"") as connection:
        for _ in range(50):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            fields, _, body = connection.recv(65536).partition(b"\r\n\r\n")
            assert f"content-length: {len(body)}".encode() in fields
            assert body


def test_a_response_without_a_body_leaves_too(server):
    with dial(server, b"") as connection:
        for _ in range(2):
            connection.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def up_to(connection: socket.socket, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        piece = connection.recv(65536)
        assert piece, said
        said += piece
    return said


# ---------------------------------------------------------------- limits of the listener


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc"], ids=["silent", "unfinished"])
def test_headers_that_do_not_come_in_time_end_the_connection(hasty, said):
    with dial(hasty, said) as connection:
        assert all_of(connection) == b""


ASKED = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        (ASKED + b"\r\n", b"\r\n"),
        (ASKED + b"Content-Length: 100\r\n\r\n", b"x"),
        (ASKED + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nab"),
        (ASKED.replace(b"GET /healthz", b"POST /api/v1/tasks") + b"Content-Length: 100\r\n\r\n", b"x"),
    ],
    ids=["empty lines", "body", "chunks", "refused"],
)
def test_what_is_no_call_keeps_no_connection_open(hasty, asked, more):
    with answered(hasty, asked) as (connection, said):
        connection.sendall(more)
        assert b"HTTP/1.1 " not in all_of(connection)
    assert said.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 401 "))


def test_a_body_that_comes_after_its_answer_is_in_nobodys_way(server):
    """Who sends a body that is not wanted is answered at once, and may go on with the next call."""
    with dial(server, ASKED + b"Content-Length: 4\r\n\r\n") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"ab")
        connection.sendall(b"cd" + ASKED + b"Connection: close\r\n\r\n")
        assert b"HTTP/1.1 200 " in all_of(connection)


def test_headers_without_end_are_refused(server):
    """However much of them fits into the buffers between here and there."""
    end = time.monotonic() + HANG_S
    with dial(server, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n") as connection, suppress(ConnectionError):
        for number in count():
            connection.sendall(f"X-{number}: {'x' * 10_000}\r\n".encode())
            assert time.monotonic() < end, f"{number} headers were taken"


@pytest.mark.parametrize("version", [b"\n", b"\r\n", b" HTTP/0.9\r\n", b" HTTP/2.0\r\n"])
def test_a_request_without_a_version_that_proxies_know_is_refused(server, version):
    with dial(server, b"GET /healthz" + version + b"Host: 127.0.0.1\r\n\r\n") as connection:
        assert all_of(connection).startswith(b"HTTP/1.1 400 ")


def test_trailers_without_end_are_refused(server):
    start = head(server, length=0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    end = time.monotonic() + HANG_S
    with dial(server, start + b"2\r\n{}\r\n0\r\nX-Fill: ") as connection, suppress(ConnectionError):
        for number in count():
            connection.sendall(b"x" * 10_000)
            assert time.monotonic() < end, f"{number} pieces were taken"


@pytest.fixture(scope="module")
def behind_a_proxy(tmp_path_factory):
    """One that believes what this machine says about the addresses of clients, and trusts the network 10.1.0.0/16."""
    allow = [{"network": "10.1.0.0/16", "name": "ops", "role": "admin"}]
    with live_server(folder=tmp_path_factory.mktemp("proxy"), proxies=["127.0.0.1"], allow=allow) as started:
        yield started


FORGED = "X-Forwarded-For: 10.1.2.3\r\n"
HONEST = "X-Forwarded-For: 203.0.113.9\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
EMPTY_BODY = "2\r\n{}\r\n0\r\n"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (FORGED, "", 200),
        (HONEST, "", 401),
        (FORGED + HONEST, "", 401),
        (FORGED.replace("-", "_") + HONEST, "", 401),
        (HONEST + FORGED.replace("-", "_"), "", 401),
        (HONEST + FORGED.replace(":", " :"), "", 400),
        (HONEST.replace("\r\n", "\r\n , 10.1.2.3\r\n"), "", 400),
        (HONEST + "X-Fill: 1\n" + FORGED, "", 400),
        (HONEST + "X-Fill: 1\r" + FORGED, "", 400),
        (HONEST + CHUNKED, EMPTY_BODY + FORGED + "\r\n", 401),
        (HONEST + CHUNKED, EMPTY_BODY + "Authorization: Bearer {token}\r\n\r\n", 401),
        (HONEST + CHUNKED + "Content-Length: 4\r\n", EMPTY_BODY + "\r\n", 400),
        (HONEST + "Host: localhost\r\n", "", 400),
    ],
    ids=[
        "a client of the network", "another client", "a line before the proxy's", "underscores", "underscores after",
        "space", "folded", "bare LF", "bare CR", "trailer", "trailer with a token", "two lengths", "two hosts",
    ],
)  # fmt: skip
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_client_behind_a_proxy_cannot_forge_its_address(behind_a_proxy, headers, body, status, pieces):
    start = f"GET /api/v1/tokens HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n".encode()
    rest = body.replace("{token}", behind_a_proxy.token).encode()
    with dial(behind_a_proxy, start + rest if pieces == 1 else start) as connection:
        if pieces == 2 and rest:
            with suppress(ConnectionError):
                connection.sendall(rest)
        assert all_of(connection).startswith(b"HTTP/1.1 %d " % status)


def headers_of(size: int, more: str = "") -> bytes:
    """A request without a body, whose line and headers have so many bytes."""
    said = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}X-Fill: ".encode()
    return said + b"x" * (size - len(said) - 4) + b"\r\n\r\n"


CLOSE = "Connection: close\r\n"
BEFORE = ASKED + b"\r\n"
WITH_A_BODY = ASKED.replace(b"GET", b"POST") + b"Content-Length: 60000\r\n\r\n" + b" " * 60_000


@pytest.mark.parametrize("cut_at", [0, 1, 40_000, MAX_HEADER_BYTES - 1])
@pytest.mark.parametrize("before", [b"", BEFORE, WITH_A_BODY], ids=["alone", "after another", "after a body"])
@pytest.mark.parametrize(("size", "status"), [(MAX_HEADER_BYTES, 200), (MAX_HEADER_BYTES + 1, 400)])
def test_the_limit_of_headers_is_exact_however_they_arrive(server, before, cut_at, size, status):
    said = before + headers_of(size, CLOSE)
    with dial(server, said[: len(before) + cut_at]) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(said[len(before) + cut_at :])
        answer = all_of(connection)
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    assert last.startswith(b"HTTP/1.1 %d " % status), last
    assert (b"The headers are too large." in last) is (status == 400)


def test_a_slow_body_is_refused_and_nothing_is_stored(hasty):
    with answered(hasty, head(hasty, length=100) + b'{"tasks"') as (connection, said):
        said += all_of(connection)
    assert said.startswith(b"HTTP/1.1 408 ")
    assert json.loads(said.split(b"\r\n\r\n")[1])["error"]["code"] == "request.too_slow"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_before_it_is_read(server, chunked):
    if chunked:
        start = head(server, length=0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        # Not a byte more: what a server has not read when it hangs up makes the system drop its answer.
        said = start + b"%x\r\n" % 20_001 + b" " * 20_001
    else:
        said = head(server, length=20_001)
    with dial(server, said.replace(b"/api/v1/tasks", b"/api/v1/groups")) as connection:
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"request.too_large"' in answer


def test_a_caller_that_hangs_up_is_not_waited_for(server):
    hello = {"bot_id": "gone", "session": 1, "dimensions": {"id": ["gone"], "pool": ["default"]}}
    credential = server.post("/bot/v1/handshake", hello)[1]["credential"]
    ask = b'{"session": 1, "nonce": 1, "n": 1, "wait_s": 120}'
    said = head(server, length=len(ask)).replace(b"/api/v1/tasks", b"/bot/v1/exchange")
    with dial(server, said.replace(server.token.encode(), credential.encode()) + ask):
        until_it_says(server, b"myrmidon_bots_waiting 1.0")
    until_it_says(server, b"myrmidon_bots_waiting 0.0")
    with dial(server, head(server, length=100) + b"{"):
        until_it_says(server, b"myrmidon_bodies_arriving 1.0")
    until_it_says(server, b"myrmidon_bodies_arriving 0.0")
    assert "Exception" not in server.log


def test_a_reader_of_a_stream_that_takes_nothing_is_let_go():
    with live_server() as server:
        bot = WireBot(server, "b1")
        bot.shake()
        server.post("/api/v1/tasks", {"tasks": [a_task()]})
        (task,) = bot.work()
        for offset in range(0, 8 << 20, 1 << 20):  # more than fits into the buffers between here and there
            assert bot.log(task, 0, offset, b"x" * (1 << 20))[0] == 200
        server.kill()
        server.settings["body_timeout_s"] = 0.4
        server.start()
        path = f"/api/v1/tasks/{task['run']}/log/follow"
        said = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n\r\n"
        with deaf(server, said.encode()) as connection:
            wait_for(lambda: is_let_go(connection))
            assert server.get("/healthz")[0] == 200
            assert other_side(connection)[1] > 0, "it had more to say"
        assert "Exception" not in server.log


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/tasks/{}/log/follow"])
def test_a_stream_ends_when_its_token_is_revoked(server, path):
    (task,) = server.post("/api/v1/tasks", {"tasks": [a_task()]})[1]["tasks"]
    made = server.post("/api/v1/tokens", {"name": "short", "role": "user"})[1]
    asked = f"GET {path.format(task['task_id'])} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with dial(server, f"{asked}Authorization: Bearer {made['token']}\r\n\r\n".encode()) as connection:
        up_to(connection, b"\n\n\r\n")
        assert server.delete(f"/api/v1/tokens/{made['id']}")[0] == 200
        assert server.post(f"/api/v1/tasks/{task['task_id']}/cancel")[0] == 200
        assert b"CANCELLED" not in up_to(connection, b"0\r\n\r\n")


def deaf(server, said: bytes) -> socket.socket:
    """A caller that asks and asks, and takes no answer."""
    at = urlsplit(server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(HANG_S)
    connection.connect((at.hostname, at.port))
    connection.sendall(said)
    return connection


def num_connections(server) -> int:
    held = []
    for one in Path(f"/proc/{server.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was listed
            held.append(os.readlink(one))
    return sum(name.startswith("socket:") for name in held)


def other_side(connection: socket.socket) -> tuple[bool, int, int]:
    """What the system knows of the server's end: whether it is open, and how many bytes are unsent and unread there."""
    here, there = (f"{at[1]:04X}" for at in (connection.getsockname(), connection.getpeername()))
    for line in Path("/proc/net/tcp").read_text().splitlines():
        _, local, remote, state, queues, *_ = line.split()
        if local.endswith(f":{there}") and remote.endswith(f":{here}"):
            unsent, _, unread = queues.partition(":")
            return state == "01", int(unsent, 16), int(unread, 16)
    return False, 0, 0


def is_stuck(connection: socket.socket) -> bool:
    """Whether the server has more to say than the system takes from it."""
    return other_side(connection)[1] > 100_000


def is_let_go(connection: socket.socket) -> bool:
    """Whether the server has closed its end, though we have not read what it said."""
    return not other_side(connection)[0]


def is_read(connection: socket.socket) -> bool:
    """Whether the server has taken everything that was sent to it."""
    return other_side(connection)[2] == 0


DOCUMENT = b"GET /api/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_answers_that_a_caller_does_not_read_take_up_only_so_much_memory():
    """A viewer could ask for thousands of long lists, and read none."""
    with live_server(most_body_bytes=300_000, large_body_limit=300_000) as server:
        at = urlsplit(server.url)

        def status(source: str) -> bytes:
            with socket.create_connection((at.hostname, at.port), HANG_S, (source, 0)) as connection:
                connection.sendall(DOCUMENT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                return all_of(connection)[:12]

        with deaf(server, DOCUMENT * 80):
            wait_for(lambda: status("127.0.0.1") == b"HTTP/1.1 429")
            assert status("127.0.0.2") == b"HTTP/1.1 200", "the limit is one of each caller"
        wait_for(lambda: status("127.0.0.1") == b"HTTP/1.1 200")


@pytest.mark.full
def test_callers_that_take_no_answers_keep_nobody_out_and_are_let_go():
    with live_server(body_timeout_s=1, most_calls=3) as server, ExitStack() as stack:
        assert server.get("/api/v1/server")[0] == 200
        before = num_connections(server)
        callers = [stack.enter_context(deaf(server, DOCUMENT * 80)) for _ in range(6)]
        wait_for(lambda: all(is_stuck(one) or is_let_go(one) for one in callers))
        assert server.get("/api/v1/server")[0] == 200
        wait_for(lambda: num_connections(server) <= before)
        assert all(all_of(one).count(b"HTTP/1.1 200") < 80 for one in callers)
        assert "Exception" not in server.log
        assert '"error"' not in server.log


@pytest.mark.full
def test_an_answer_that_nobody_takes_does_not_keep_its_connection_open():
    """The call is answered and the connection is to be closed, but what was said is still here."""
    last = DOCUMENT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with live_server(body_timeout_s=1) as server, ExitStack() as stack:
        assert server.get("/api/v1/server")[0] == 200
        before = num_connections(server)
        callers = [stack.enter_context(deaf(server, DOCUMENT * number + last)) for number in range(20, 40)]
        wait_for(lambda: any(is_stuck(one) or is_let_go(one) for one in callers))
        wait_for(lambda: num_connections(server) <= before)


def test_callers_that_leave_with_many_calls_unanswered_are_not_an_error(server):
    before = num_connections(server)
    for _ in range(5):
        with deaf(server, DOCUMENT * 80) as caller:
            wait_for(partial(is_stuck, caller))
    wait_for(lambda: num_connections(server) <= before)
    assert "Exception" not in server.log
    assert '"error"' not in server.log


def until_it_says(server, metric: bytes) -> None:
    wait_for(lambda: metric in server.get("/metrics")[1])


def test_other_calls_go_on_beside_slow_ones(server):
    slow = [dial(server, b"GET /healthz HTTP/1.1\r\n") for _ in range(50)]
    assert server.get("/healthz")[0] == 200
    for connection in slow:
        connection.close()


# ---------------------------------------------------------------- what it tells


def test_logs_are_json_with_request_ids_and_without_secrets(server):
    secret = "c2VjcmV0LWJ5dGVz"
    token = server.new_token("user")
    server.post("/api/v1/groups", {"name": "logged"}, headers={"X-Request-Id": "mine-1"})
    server.post("/api/v1/tasks", {"tasks": [a_task(secret_bytes=secret)]}, token=token)
    server.get(f"/bootstrap?tok={token}", token="")
    server.get("/api/v1/server", token="myr_1_" + "x" * 43)
    server.get("/healthz")  # a call is written down before the next one on its connection is read
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert any(line.get("request_id") == "mine-1" and line["path"] == "/api/v1/groups" for line in lines)
    assert all({"event", "level", "timestamp"} <= set(line) for line in lines)
    for hidden in (secret, token, token.split("_", 2)[2], server.token, "x" * 43):
        assert hidden not in server.log


def test_a_log_that_cannot_be_written_stops_nobody():
    """/dev/full is a disk that is always full."""
    speaks = """if True:
        import logging, structlog
        from myrmidon.server.process import configure_logging
        configure_logging("info")
        structlog.get_logger("server").warning("background job failed", error="x" * 20_000)
        logging.getLogger("uvicorn").warning("a library speaks")
        print("went on")
    """
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", speaks], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.stdout == b"went on\n"


def test_messages_of_libraries_are_logged_at_their_own_levels():
    speaks = """if True:
        import logging
        from myrmidon.server.process import configure_logging
        configure_logging("info")
        for level in (logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger("pika.channel").log(level, "a library speaks")
    """
    done = subprocess.run([sys.executable, "-c", speaks], stderr=subprocess.PIPE, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("pika.channel", "warning"),
        ("pika.channel", "error"),
    ]


def test_metrics_tell_what_the_issue_of_the_day_may_be(server):
    server.post("/api/v1/tasks", {"tasks": [a_task()]})
    status, page = server.get("/metrics")
    text = page.decode()
    assert status == 200
    for name in (
        "request_seconds_bucket", "writer_wait_seconds_count", "commit_batch_size_count", "pending_seconds_count",
        "queue_depth{", "queue_age_seconds{", "bots{", "maintenance_overdue_seconds{", "outbox_age_seconds",
        "clock_skew_seconds", "tasks_unfinished{", "calls_in_progress", "bots_waiting", "expiry_detection_lag_seconds",
        "run_lost_seconds", "no_resource_total", "config_rejected_total", "releases_reverted_total",
    ):  # fmt: skip
        assert f"myrmidon_{name}" in text
    assert server.get("/metrics", token="")[0] == 401


# ---------------------------------------------------------------- stop


@pytest.mark.full
def test_a_stop_answers_those_who_wait():
    with live_server() as server, ThreadPoolExecutor(8) as callers:
        held = []
        for number in range(4):
            hello = {"bot_id": f"b{number}", "session": 1, "dimensions": {"id": [f"b{number}"], "pool": ["default"]}}
            credential = server.post("/bot/v1/handshake", hello)[1]["credential"]
            ask = {"session": 1, "nonce": 1, "n": 1, "wait_s": POLL_S}
            held.append(callers.submit(server.post, "/bot/v1/exchange", ask, token=credential))
        until_it_says(server, b"myrmidon_bots_waiting 4.0")
        assert server.stop() == 0
        assert [one.result(HANG_S)[0] for one in held] == [200] * 4
        assert '"stopped"' in server.log


def test_a_server_that_is_killed_needs_no_repair(tmp_path):
    with live_server(folder=tmp_path) as server:
        told: list[str] = []

        def submit_on() -> None:
            try:
                while True:
                    told.extend(
                        one["task_id"] for one in server.post("/api/v1/tasks", {"tasks": [a_task()] * 3})[1]["tasks"]
                    )
            except Exception:  # noqa: BLE001 - the server is gone
                return

        writers = [threading.Thread(target=submit_on) for _ in range(3)]
        for writer in writers:
            writer.start()
        wait_for(lambda: len(told) >= 60)
        server.kill()
        for writer in writers:
            writer.join()
        server.start()
        for task in told:
            assert server.get(f"/api/v1/tasks/{task}")[0] == 200


def test_the_first_start_prints_a_link_to_the_page_on_a_terminal_and_later_ones_do_not(tmp_path):
    words = [sys.executable, "-m", "myrmidon.server.process", "--data-dir", str(tmp_path), "--port", "0"]
    token = f"The first administrator's token is in {tmp_path}/admin.token"
    master, slave = pty.openpty()
    said = []
    with os.fdopen(master) as terminal:
        for _ in range(2):
            with subprocess.Popen(words, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL) as child:
                assert terminal.readline().startswith("Myrmidon listens on http://127.0.0.1:")
                said.append([terminal.readline().strip()])
                if len(said) == 1:
                    said[0].append(terminal.readline())
                child.send_signal(signal.SIGTERM)
        os.close(slave)
    assert [lines[0] for lines in said] == [token, token]
    assert re.search(r" at http://127\.0\.0\.1:\d+/auth/link#[\w-]{43}\n$", said[0][1])


def test_no_link_gets_into_a_log(tmp_path):
    """What reads a pipe often keeps it: systemd, containers, tee."""
    words = [sys.executable, "-m", "myrmidon.server.process", "--data-dir", str(tmp_path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("Myrmidon listens on http://127.0.0.1:")
        child.send_signal(signal.SIGTERM)
        assert child.stdout.read() == f"The first administrator's token is in {tmp_path}/admin.token\n"


def test_a_second_server_on_one_file_is_refused(server):
    command = [sys.executable, "-m", "myrmidon.server.process", "--data-dir", str(server.folder), "--port", "0"]
    done = subprocess.run(command, capture_output=True, timeout=HANG_S, check=False)
    assert done.returncode == 2
    assert b"Another server uses" in done.stderr


def test_wrong_settings_end_the_start_with_all_problems():
    command = [sys.executable, "-m", "myrmidon.server.process", "--port", "x", "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, timeout=HANG_S, check=False)
    assert done.returncode == 2
    assert b"port" in done.stderr
    assert b"host" in done.stderr


# ---------------------------------------------------------------- TLS


@pytest.fixture
def tls(tmp_path) -> dict[str, Any]:
    """A certificate and its key, as settings."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-keyout", tmp_path / "key", "-out", tmp_path / "certificate"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("there is no openssl here")
    return {"tls_certificate": str(tmp_path / "certificate"), "tls_key": str(tmp_path / "key")}


def test_tls_by_settings(tls, tmp_path):
    with live_server(**tls) as server:
        assert server.get("/api/v1/server")[0] == 200
        context = ssl.create_default_context(cafile=str(tmp_path / "certificate"))
        with (
            socket.create_connection(("127.0.0.1", server.port)) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as wrapped,
        ):
            assert wrapped.version() in ("TLSv1.2", "TLSv1.3")


def test_https_that_is_spoken_to_an_http_server_is_told_to_both(server):
    with pytest.raises(WrongScheme, match="speaks HTTP, not HTTPS"):
        Client(server.url.replace("http:", "https:"), "myr_x").tasks()
    wait_for(lambda: "A client spoke HTTPS to this port, which speaks HTTP." in server.log)


def test_http_that_is_spoken_to_an_https_server_is_told_at_once(tls):
    with live_server(**tls) as server:
        where = f"127.0.0.1:{server.port}"
        with pytest.raises(WrongScheme) as failed:
            Client(f"http://{where}", "myr_x").tasks()
    assert str(failed.value) == f"The server at {where} speaks HTTPS, not HTTP. Write https://{where}."


@pytest.mark.parametrize("odd", ["locked", "swapped"])
def test_a_certificate_that_cannot_be_used_ends_the_start_before_anything_is_told(tls, tmp_path, odd):
    if odd == "locked":
        lock = ["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", tls["tls_key"], "-out", tmp_path / "locked"]
        subprocess.run(lock, capture_output=True, check=True)
        tls["tls_key"] = str(tmp_path / "locked")
    else:
        tls["tls_certificate"] = tls["tls_key"]
    command = [sys.executable, "-m", "myrmidon.server.process", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    flags = ["--tls-certificate", tls["tls_certificate"], "--tls-key", tls["tls_key"]]
    done = subprocess.run(
        [*command, *flags], capture_output=True, timeout=HANG_S, check=False, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"tls_certificate" in done.stderr
    assert b"Traceback" not in done.stderr


# ---------------------------------------------------------------- a database that goes away


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_database_away_means_503_and_work_goes_on_when_it_is_back(kind):
    if servers.available()[kind]:
        pytest.skip(str(servers.available()[kind]))
    database = servers.KINDS[kind](durable=False)
    database.prepare()
    database.start()
    try:
        with live_server(database.new_database()) as server:
            task = server.post("/api/v1/tasks", {"tasks": [a_task()]})[1]["tasks"][0]["task_id"]
            database.kill()
            answer = server.call("POST", "/api/v1/tasks", {"tasks": [a_task()]})
            assert (answer.status, json.loads(answer.data)["error"]["code"][:5]) == (503, "store")
            assert answer.headers["retry-after"]
            unknown = server.call("GET", "/api/v1/tasks", token=f"myr_1_{'x' * 43}")
            assert unknown.status == 503
            assert "127.0.0.1" not in unknown.data.decode()
            assert str(database.port) not in unknown.data.decode()
            assert '"database error"' in server.log
            assert server.get("/healthz")[0] == 200
            assert server.get("/readyz")[0] == 503
            database.start()
            wait_for(lambda: server.get("/readyz")[0] == 200)
            assert server.get(f"/api/v1/tasks/{task}")[0] == 200
            assert server.process is not None
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(HANG_S) == 0
    finally:
        database.stop()


@pytest.mark.full
def test_a_database_that_does_not_answer_keeps_no_server_from_stopping():
    if servers.available()["mariadb"]:
        pytest.skip(str(servers.available()["mariadb"]))
    database = servers.mariadb()
    assert database.process is not None
    try:
        with live_server(database.new_database(), stop_s=1) as server:
            said = f"GET /api/v1/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n\r\n"
            database.process.send_signal(signal.SIGSTOP)
            with dial(server, said.encode()) as connection:
                wait_for(lambda: is_read(connection))
                assert server.get("/healthz")[0] == 200
                server.stop()
    finally:
        database.process.send_signal(signal.SIGCONT)
        database.stop()
