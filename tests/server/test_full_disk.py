"""A server whose disk is full: it says so, keeps what it has, and goes on when there is space again."""

from __future__ import annotations

from pathlib import Path

from tests.bot.test_chaos import a_small_disk
from tests.live import live_server
from tests.server.contexts import a_task
from tests.server.wire import wait_for


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def test_a_server_is_not_ready_while_its_disk_is_full(tmp_path):
    with a_small_disk(tmp_path / "disk", "size=48m") as disk, live_server(folder=disk) as server:
        task = {"tasks": [a_task()]}
        kept = server.post("/api/v1/tasks", task)[1]["tasks"][0]["task_id"]
        for _ in range(2):
            fill(disk / "filler")
            status, told = server.get("/readyz")
            assert (status, told["problems"]) == (503, ["the disk is full"])
            assert server.get(f"/api/v1/tasks/{kept}")[0] == 200
            (disk / "filler").unlink()
            wait_for(lambda: server.get("/readyz")[0] == 200)
            assert server.post("/api/v1/tasks", task)[0] == 200
