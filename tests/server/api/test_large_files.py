"""Large files over real connections: with little memory, and through a kill of the server."""

from __future__ import annotations

import re
import socket
from hashlib import sha256
from pathlib import Path

import pytest
import urllib3

from myrmidon.wire.files import MAX_FILE_BYTES
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server
from tests.server.wire import wait_for

pytestmark = pytest.mark.untraced


def peak_bytes(server: LiveServer) -> int:
    """The most memory that the server has ever used."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.full
def test_the_largest_file_needs_little_memory(tmp_path):
    content = bytes(range(256)) * (MAX_FILE_BYTES // 256)
    digest = sha256(content).hexdigest()
    http = urllib3.PoolManager(retries=False, timeout=HANG_S)
    with live_server(folder=tmp_path) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        assert http.request("PUT", f"{server.url}/api/v1/files/{'0' * 64}", body=b"x", headers=headers).status == 400
        before = peak_bytes(server)
        reply = http.request("PUT", f"{server.url}/api/v1/files/{digest}", body=content, headers=headers)
        assert reply.json() == {"digest": digest, "size": MAX_FILE_BYTES}
        assert peak_bytes(server) - before < MAX_FILE_BYTES // 2
        assert (tmp_path / "files" / digest[:2] / digest[2:]).stat().st_size == MAX_FILE_BYTES


def test_a_server_that_is_killed_during_an_upload_stores_nothing_and_takes_it_again(tmp_path):
    content = bytes(range(256)) * (8 << 12)
    digest = sha256(content).hexdigest()
    http = urllib3.PoolManager(retries=False, timeout=HANG_S)
    with live_server(folder=tmp_path) as server:
        path = f"/api/v1/files/{digest}"
        head = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content[: 3 << 20])
            wait_for(lambda: any(part.stat().st_size for part in (tmp_path / "files" / "tmp").iterdir()))
            server.kill()
        assert not (tmp_path / "files" / digest[:2]).exists()
        server.start()
        headers = {"Authorization": f"Bearer {server.token}"}
        assert http.request("PUT", server.url + path, body=content, headers=headers).status == 200
        assert (tmp_path / "files" / digest[:2] / digest[2:]).read_bytes() == content
