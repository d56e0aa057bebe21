"""The largest files over real connections: in pieces both ways, with little memory."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest
import urllib3

from myrmidon.wire.files import MAX_FILE_BYTES
from tests.deadline import HANG_S
from tests.live import LiveServer, live_server

pytestmark = pytest.mark.untraced


def peak_bytes(server: LiveServer) -> int:
    """The most memory that the server has ever used."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


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
