"""Is this zip fit to run? Asked of a new zip, in a process of its own, before the fleet depends on it."""

from __future__ import annotations

import sys
import tempfile
import time

ASK_S = 5.0
TIMES = 3


def check(argv: list[str]) -> int:
    """0 if all is well, NOT_NOW if the disk is too full to tell, UNHEARD if all is well but for the server.

    Otherwise another code, and the reason. The server is asked only if one is named.
    """
    from myrmidon.bot.install import updater
    from myrmidon.bot.system import host

    try:
        code = _check()
        server = argv[argv.index("--server") + 1] if "--server" in argv[:-1] else ""
        return code or (_ask(server) if server else 0)
    except OSError as error:
        if not host.disk_is_full(error):
            raise
        sys.stderr.write(f"the test could not be made: {error}\n")
        return updater.NOT_NOW


def _ask(server: str) -> int:
    """Whether this zip can reach the server. Any answer will do: who may say what is not its business."""
    from myrmidon.bot.install import updater
    from myrmidon.bot.link import http_client

    line = http_client.Wire(server)
    line.margin_s = ASK_S
    for _ in range(TIMES):
        try:
            line.call("GET", http_client.PING)
        except http_client.Refused:
            return 0
        except http_client.Broken as error:
            sys.stderr.write(f"{error}\n")
            time.sleep(0.5)
        else:
            return 0
    return updater.UNHEARD


def _check() -> int:
    """Import everything, the hooks too, and run one command."""
    from myrmidon.bot import supervisor, worker
    from myrmidon.bot.hooks import loader, swarming_api
    from myrmidon.bot.install import startup_config, updater
    from myrmidon.bot.machine.named_caches import Caches
    from myrmidon.bot.run.command import Watch
    from myrmidon.bot.run.task_runner import Runner
    from myrmidon.bot.storage.log_spool import Spool
    from myrmidon.bot.system import dimensions, host

    host.check_fit()
    config = loader.packed_text()
    swarming_api.install(None)
    if config is not None:
        loader.load(config, "bot_config")
    loaded = (supervisor.Keeper, startup_config.Orders, worker.Soldier, updater.check, dimensions.dimensions)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Spool(f"{folder}/spool"), hung=lambda _: None)
        runner = Runner(folder, Caches(f"{folder}/c"), watch, {})
        task = {"run": "0", "token": "0", "execution_timeout_s": 60, "grace_period_s": 1}
        record = runner.execute({**task, "command": [sys.executable, "-I", "-S", "-c", "print('fine')"]})
    report = record["report"] if record else {}
    if not all(map(callable, loaded)) or report.get("exit_code") != 0 or report.get("stdout_size") != 5:
        sys.stderr.write(f"the test command ended so: {record}\n")
        return 1
    return 0
