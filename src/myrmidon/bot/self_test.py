"""`bot.zip self-test`: check that this zip works. Run on a new zip, in a separate process, before it is started."""

from __future__ import annotations

import sys
import tempfile
import time

ATTEMPTS = 3


def check(argv: list[str]) -> int:
    """Test the zip, and that the server answers if --server is given. Write the reason of a failure to stderr.

    Returns 0 on success, SELF_TEST_DISK_FULL, SELF_TEST_SERVER_UNREACHABLE, or another code when the zip is broken.
    """
    from myrmidon.bot.install import exit_codes
    from myrmidon.bot.system import filesystem

    try:
        code = _check_zip()
        server = argv[argv.index("--server") + 1] if "--server" in argv[:-1] else ""
        return code or (_check_server(server) if server else 0)
    except OSError as error:
        if not filesystem.disk_is_full(error):
            raise
        sys.stderr.write(f"the self-test could not run: {error}\n")
        return exit_codes.SELF_TEST_DISK_FULL


def _check_server(server: str) -> int:
    """Check that this zip can reach the server."""
    from myrmidon.bot.install import exit_codes
    from myrmidon.bot.link import http_client

    for _ in range(ATTEMPTS):
        try:
            http_client.check_reachable(server)
        except http_client.NoResponse as error:
            sys.stderr.write(f"{error}\n")
            time.sleep(0.5)
        else:
            return 0
    return exit_codes.SELF_TEST_SERVER_UNREACHABLE


def _check_zip() -> int:
    """Import every module and the hooks, and run one command."""
    from myrmidon.bot import supervisor, worker
    from myrmidon.bot.commands.command_runner import CommandRunner
    from myrmidon.bot.commands.command_watcher import CommandWatcher
    from myrmidon.bot.commands.seat import Seat
    from myrmidon.bot.hooks import loader, swarming_api
    from myrmidon.bot.install import startup_config, updater
    from myrmidon.bot.machine.named_caches import NamedCaches
    from myrmidon.bot.protocol import FinishReport, Task
    from myrmidon.bot.run.isolation import Isolation, base_environment
    from myrmidon.bot.run.run import Run
    from myrmidon.bot.run.watch import Watch
    from myrmidon.bot.storage.log_spool import LogSpool
    from myrmidon.bot.system import dimensions, platforms

    platforms.check_supported()
    config = loader.packed_text()
    swarming_api.install(None)
    if config is not None:
        loader.load(config, "bot_config")
    loaded = (supervisor.Supervisor, startup_config.StartupConfig, worker.Worker, updater.check, dimensions.dimensions)
    with tempfile.TemporaryDirectory() as folder:
        watcher = CommandWatcher(Watch(LogSpool(f"{folder}/spool")), on_unkillable=lambda _: None)
        isolation = Isolation()
        seat = Seat(folder, isolation, base_environment((), {}))
        isolation.use_landlock(folder, writable=seat.workdir.root, readable=[seat.files.folder])
        task = Task("0", "0", 60, 1, command=[sys.executable, "-I", "-S", "-c", "print('test')"])
        record = CommandRunner(seat, watcher, NamedCaches(f"{folder}/c")).execute(Run(task))
    report = record.report if record is not None else None
    has_run = isinstance(report, FinishReport) and (report.exit_code, report.stdout_size) == (0, len("test\n"))
    if not all(map(callable, loaded)) or not has_run:
        sys.stderr.write(f"the test command failed: {record}\n")
        return 1
    return 0
