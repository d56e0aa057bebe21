"""Hooks: a fleet's own Python in its bots, from the zip and from the bot's group, kept at arm's length.

Whatever a hook does, the bot goes on. Each call runs in a thread of its own with a deadline; one that raises or does
not come back is told, and one that has not come back is not called again until it has. A hook that is absent, or that
says nothing but what it is for, is never called at all.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import types
import zipfile
from collections.abc import Callable
from typing import Any

from myrmidon.bot.install import updater
from myrmidon.bot.system import host

HOOKS = (
    "get_dimensions", "get_state", "get_settings", "get_authentication_headers", "on_bot_startup", "on_handshake",
    "on_before_poll", "on_after_poll", "on_bot_idle", "on_before_task", "on_after_task", "on_bot_shutdown", "setup_bot",
)  # fmt: skip
PACKED = "config/bot_config.py"
HOOK_S = float(os.environ.get("MYRMIDON_BOT_HOOK_S") or 60.0)
_SLOW = ("setup_bot", "on_bot_startup")
_SLOW_TIMES = 10.0
_REPLACED = ("on_before_poll", "on_after_poll")


class Late(Exception):
    """Raised inside a hook that has missed its deadline, in the hope that it ends."""


class Failed(Exception):
    """A hook has raised or not come back; the message says what happened."""


class Hooks:
    """The hooks of both layers. Safe to call from several threads, each hook from one at a time."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self.general: dict[str, Callable[..., Any]] = {}
        self.injected: dict[str, Callable[..., Any]] = {}
        self.script = ""
        self.hung: dict[str, threading.Thread] = {}
        self.lines: dict[str, list[tuple[str, Callable[..., Any]]]] = {}

    def load_general(self, text: str | None) -> str | None:
        """Take the zip's hooks; why that was not possible, or None."""
        if text is not None:
            try:
                self.general = self._bounded("bot_config.py", _SLOW_TIMES, load, text, "bot_config")
            except Failed as error:
                self.complain(str(error))
                return str(error)
        self._arrange()
        return None

    def inject(self, text: str, name: str) -> bool | None:
        """Take the script of the bot's group; whether it is another one than before, None if it cannot be loaded."""
        if text == self.script:
            return False
        self.script, self.injected = text, {}
        loaded: bool | None = True
        try:
            if text:
                self.injected = self._bounded(name, 1.0, load, text, "injected_bot_config")
        except Failed as error:
            self.complain(str(error))
            loaded = None
        self._arrange()
        return loaded

    def _arrange(self) -> None:
        self.lines = {name: _line(name, self.general, self.injected) for name in HOOKS}
        self.lines = {name: line for name, line in self.lines.items() if line}

    # ---------------------------------------------------------------- calling

    def has(self, name: str) -> bool:
        return name in self.lines

    def call(self, name: str, *args: Any) -> bool:
        """Call a hook of both layers; whether nothing went wrong."""
        well = True
        for layer, function in self.lines.get(name, ()):
            try:
                self._one(name, layer, function, args)
            except Failed as error:
                well = False
                self.complain(str(error))
        return well

    def ask(self, name: str, *args: Any) -> Any:
        """What the hook answers; None when there is none. Raises Failed."""
        for layer, function in self.lines.get(name, ()):
            return self._one(name, layer, function, args)
        return None

    def _one(self, name: str, layer: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        shown = f"{name} of {layer}"
        hung = self.hung.get(shown)
        if hung is not None and hung.is_alive():
            raise Failed(f"the hook {shown} has not come back from an earlier call; it was skipped")
        return self._bounded(shown, _SLOW_TIMES if name in _SLOW else 1.0, function, *args)

    def _bounded(self, shown: str, times: float, function: Callable[..., Any], *args: Any) -> Any:
        outcome: list[tuple[bool, Any]] = []

        def run() -> None:
            try:
                outcome.append((True, function(*args)))
            except BaseException as error:  # noqa: BLE001 - also a hook that says sys.exit()
                outcome.append((False, _told(error)))

        thread = threading.Thread(target=run, name=f"hook {shown}", daemon=True)
        thread.start()
        patience = HOOK_S * times
        thread.join(patience)
        if thread.is_alive():
            self.hung[shown] = thread
            host.interrupt_thread(thread.ident or 0, Late)
            raise Failed(f"the hook {shown} did not come back within {patience:g} s; it is skipped until it does")
        self.hung.pop(shown, None)
        well, value = outcome[0]
        if not well:
            raise Failed(f"the hook {shown} failed: {value}")
        return value


def load(text: str, name: str) -> dict[str, Callable[..., Any]]:
    """The hooks that a text defines. Raises whatever its code raises."""
    module = types.ModuleType(name)
    module.__dict__["__file__"] = f"{name}.py"
    sys.modules[name] = module
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)  # noqa: S102 - this is what a hook is
    found = {hook: getattr(module, hook, None) for hook in HOOKS}
    return {hook: function for hook, function in found.items() if callable(function)}


def packed_text() -> str | None:
    """bot_config.py of this zip; None when there is none."""
    path = updater.own_zip()
    if path is None:
        return None
    with zipfile.ZipFile(path) as archive:
        return archive.read(PACKED).decode() if PACKED in archive.namelist() else None


def _line(
    name: str, general: dict[str, Callable[..., Any]], injected: dict[str, Callable[..., Any]]
) -> list[tuple[str, Callable[..., Any]]]:
    """Which functions a hook is, in order."""
    layers = [("bot_config.py", general.get(name)), ("the group's script", injected.get(name))]
    if name == "setup_bot":
        layers = layers[:1]
    elif (name in _REPLACED or name.startswith("get_")) and name in injected:
        layers = layers[1:]
    return [(layer, function) for layer, function in layers if function is not None and not _does_nothing(function)]


def _says_what_it_is_for() -> None:
    """Like this."""


def _is_empty() -> None:
    pass


_NOTHING = (_says_what_it_is_for.__code__.co_code, _is_empty.__code__.co_code)


def _does_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function has no code but a text: its instructions and constants are those of one that has none."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_code not in _NOTHING:
        return False
    consts = code.co_consts
    return all(value is None or isinstance(value, str) for value in consts) and (not consts or consts[-1] is None)


def _told(error: BaseException) -> str:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return f"{type(error).__name__}: {error}\n{''.join(lines[2:])[-1500:]}".strip()
