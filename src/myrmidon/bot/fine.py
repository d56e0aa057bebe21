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
    from myrmidon.bot import system, updater

    try:
        code = _check()
        server = argv[argv.index("--server") + 1] if "--server" in argv[:-1] else ""
        return code or (_ask(server) if server else 0)
    except OSError as error:
        if not system.disk_is_full(error):
            raise
        sys.stderr.write(f"the test could not be made: {error}\n")
        return updater.NOT_NOW


def _ask(server: str) -> int:
    """Whether this zip can reach the server. Any answer will do: who may say what is not its business."""
    from myrmidon.bot import updater, wire

    line = wire.Wire(server)
    line.margin_s = ASK_S
    for _ in range(TIMES):
        try:
            line.call("GET", wire.PING)
        except wire.Refused:
            return 0
        except wire.Broken as error:
            sys.stderr.write(f"{error}\n")
            time.sleep(0.5)
        else:
            return 0
    return updater.UNHEARD


def _check() -> int:
    """Import everything, the hooks too, and run one command."""
    from myrmidon.bot import dimensions, hooks, keeper, orders, soldier, swarming_api, system, updater
    from myrmidon.bot.caches import Caches
    from myrmidon.bot.command import Watch
    from myrmidon.bot.runner import Runner
    from myrmidon.bot.spool import Spool

    system.check_fit()
    config = hooks.packed_text()
    swarming_api.install(None)
    if config is not None:
        hooks.load(config, "bot_config")
    loaded = (keeper.Keeper, orders.Orders, soldier.Soldier, updater.check, dimensions.dimensions)
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
