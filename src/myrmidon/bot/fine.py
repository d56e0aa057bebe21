"""Is this zip fit to run? Asked of a new zip, in a process of its own, before the fleet depends on it."""

from __future__ import annotations

import sys
import tempfile


def check() -> int:
    """Import everything and run one command; 0 if all is well, else 1 and the reason."""
    from myrmidon.bot import dimensions, keeper, orders, soldier, system, updater
    from myrmidon.bot.caches import Caches
    from myrmidon.bot.command import Watch
    from myrmidon.bot.runner import Runner
    from myrmidon.bot.spool import Spool

    system.check_fit()
    loaded = (keeper.Keeper, orders.Orders, soldier.Soldier, updater.check, dimensions.dimensions)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Spool(f"{folder}/spool"), hung=lambda _: None)
        runner = Runner(folder, Caches(f"{folder}/caches"), watch, {})
        task = {"run": "0", "token": "0", "execution_timeout_s": 60, "grace_period_s": 1}
        record = runner.execute({**task, "command": [sys.executable, "-I", "-S", "-c", "print('fine')"]})
    report = record["report"] if record else {}
    if not all(map(callable, loaded)) or report.get("exit_code") != 0 or report.get("stdout_size") != 5:
        sys.stderr.write(f"the test command ended so: {record}\n")
        return 1
    return 0
