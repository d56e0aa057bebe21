"""A real server process for tests, on a free port, with files of its own.

    with live_server(f"sqlite:///{tmp_path}/m.db") as server:
        server.url, server.token          # the address, and the first administrator's token
        server.get("/api/v1/server")      # (status, decoded JSON)
        server.new_token("user")          # another token
        server.kill(); server.start()     # a crash and a restart on the same port and files
        server.source = a_source(folder, ("bot/link/http_client.py", "= 15.0", "= 1.0"))  # another release from now on

The server dies with the process that started it, however that ends. `server.log` is what it wrote to standard error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3

from tests import tracing
from tests.deadline import HANG_S
from tests.servers import PR_SET_PDEATHSIG, _libc, port_of, reserve_port

UNHURRIED = {
    "stop_s": HANG_S, "header_timeout_s": HANG_S, "body_timeout_s": HANG_S, "start_within_s": round(HANG_S),
}  # fmt: skip
"""Settings that a slow machine could exceed. A test that is about one of them sets it."""
PACKAGE = Path(__file__).parents[1] / "src" / "myrmidon"


def _new_pool(certificate: str | None = None) -> urllib3.PoolManager:
    return urllib3.PoolManager(
        retries=False,
        timeout=urllib3.Timeout(connect=HANG_S, read=HANG_S),
        maxsize=8,
        ca_certs=certificate,
        assert_hostname=False,
    )


class ServerCalls:
    """Requests to a running server, as the holder of a token."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token
        self.http = _new_pool()

    @property
    def token(self) -> str:
        return self._token

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> urllib3.BaseHTTPResponse:
        """One request, as the administrator unless `token` says otherwise (empty: without one)."""
        shown = self.token if token is None else token
        sent = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {shown}"} if shown else {})
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        return self.http.request(method, self.url + path, body=data, headers=sent | (headers or {}), **options)

    def get(self, path: str, **options: Any) -> tuple[int, Any]:
        return _decoded(self.call("GET", path, **options))

    def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        return _decoded(self.call("POST", path, {} if body is None else body, **options))

    def put(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        return _decoded(self.call("PUT", path, {} if body is None else body, **options))

    def delete(self, path: str, **options: Any) -> tuple[int, Any]:
        return _decoded(self.call("DELETE", path, **options))


class LiveServer(ServerCalls):
    """One server process. Made by `live_server`, not by hand."""

    def __init__(self, database: str, folder: Path, settings: dict[str, Any]) -> None:
        self.database = database
        self.folder = folder
        self.reserved = reserve_port()
        self.port = int(settings.pop("port", 0)) or port_of(self.reserved)
        self.settings = {"durable": database.startswith("sqlite:"), **UNHURRIED, **settings}
        self.url = f"{'https' if settings.get('tls_certificate') else 'http'}://127.0.0.1:{self.port}"
        self.stderr = folder / f"server-{self.port}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._traced = bool(tracing.variables())
        self.source: Path | None = None
        """The sources that it runs from, if not these."""
        self.http = _new_pool(settings.get("tls_certificate"))

    @property
    def token(self) -> str:
        """The first administrator's."""
        return (self.folder / "admin.token").read_text().strip()

    @property
    def log(self) -> str:
        return self.stderr.read_text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start, or start again; returns once the server is ready."""
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        given = {"data_dir": self.folder, "database": self.database, "port": self.port, **self.settings}
        flags = [
            part
            for name, value in given.items()
            for part in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else _as_json(value))
        ]
        with self.stderr.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "myrmidon.server.process", *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env=self._environment(),
            )
        self._wait_until_ready()

    def _environment(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("MYRMIDON_")}
        return ours | ({"PYTHONPATH": str(self.source)} if self.source else {})

    def stop(self) -> int:
        """SIGTERM; the exit code. A server that does not end is an error."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANG_S)

    def kill(self) -> None:
        """SIGKILL, as a crash would; the files stay for `start`."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Killed, and never started again; one that is traced is stopped, so that it writes what it has traced."""
        if self._traced and self.process is not None and self.process.poll() is None:
            self.stop()
        self.kill()
        self.http.clear()
        self.reserved.close()

    def new_token(self, role: str, group: str | None = None, *, bound: bool = True) -> str:
        """The text of a new token of this role; not ``bound``: for a release without limits of such tokens."""
        bots = {"uses": 1_000_000, "bot_pool": "*"} if role == "bot-bootstrap" and bound else {}
        status, made = self.post("/api/v1/tokens", {"name": f"a {role}", "role": role, "group": group, **bots})
        assert status == 200, made
        return str(made["token"])

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                code = self.process.returncode
                raise AssertionError(f"the server ended with {code} while starting: {self.log[-3000:]}")
            try:
                if self.http.request("GET", f"{self.url}/readyz").status == 200:
                    return
            except urllib3.exceptions.HTTPError:
                pass
            time.sleep(0.02)  # the only way to see a port open
        raise AssertionError(f"the server is not ready after {HANG_S} s: {self.log[-3000:]}")


@contextmanager
def live_server(
    database: str | None = None, *, folder: Path | None = None, source: Path | None = None, **settings: Any
) -> Iterator[LiveServer]:
    """A running server; a folder and an SQLite file of its own unless they are given. Settings as in settings.py."""
    own = None if folder else Path(tempfile.mkdtemp(prefix="myrmidon-live-"))
    place = folder or own
    assert place is not None
    place.mkdir(parents=True, exist_ok=True)
    server = LiveServer(database or f"sqlite:///{place}/myrmidon.db", place, settings)
    server.source = source
    try:
        server.start()
        yield server
    finally:
        server.close()
        if own:
            shutil.rmtree(own, ignore_errors=True)


def a_source(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of the sources in which (file, old, new) are replaced: another release, which makes another bot zip."""
    shutil.copytree(PACKAGE, folder / "myrmidon", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        file = folder / "myrmidon" / name
        file.write_text(replace_once(file.read_text(), old, new))
    return folder


def replace_once(text: str, old: str, new: str) -> str:
    """A change of a source text that cannot silently change nothing, or more than was meant."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def _as_json(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    return json.dumps(value)


def _decoded(response: urllib3.BaseHTTPResponse) -> tuple[int, Any]:
    kind = response.headers.get("content-type", "")
    return response.status, json.loads(response.data) if re.match("application/json", kind) else response.data
