"""Is this zip fit to run? Asked of a new zip, in a process of its own, before the fleet depends on it."""

from __future__ import annotations

import sys
import tempfile


def check() -> int:
    """0 if all is well, NOT_NOW if the disk is too full to tell, else another code and the reason."""
    from myrmidon.bot import system, updater

    try:
        return _check()
    except OSError as error:
        if not system.disk_is_full(error):
            raise
        sys.stderr.write(f"the test could not be made: {error}\n")
        return updater.NOT_NOW


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
