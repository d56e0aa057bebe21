"""What this bot offers functions: interpreters, environments by name, and environments that it builds or has built."""

from __future__ import annotations

from typing import Any

from myrmidon.bot.machine import settings as bot_settings
from myrmidon.bot.machine.environment_cache import EnvironmentCache
from myrmidon.bot.system.interpreters import Interpreters
from myrmidon.functions.requirements import BUILT


class EnvironmentOffer:
    """Configured by the session thread. ``build_s``: the time limit of a build; 0 if this bot builds nothing."""

    def __init__(self, cache: EnvironmentCache, interpreters: Interpreters) -> None:
        self.cache = cache
        self.interpreters = interpreters
        self.build_s: float = bot_settings.DEFAULTS["environment_build_s"]

    def configure(self, settings: dict[str, Any]) -> list[str]:
        """Use the settings of the bot; what cannot be used of them."""
        self.build_s = settings["environment_build_s"]
        self.cache.rules = settings["caches"]["environments"]
        self.cache.free_space_rule = settings["free_partition"]["bot"]
        return self.interpreters.configure(settings["pythons"], settings["environments"])

    def dimensions(self, limit: int) -> dict[str, list[str]]:
        """The dimensions `python` and `environment`, each with at most ``limit`` values."""
        names = [*([BUILT] if self.build_s else []), *sorted(self.interpreters.named)][:limit]
        return {"python": self.interpreters.dimension(limit), **({"environment": names} if names else {})}
