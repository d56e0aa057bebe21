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
ZIP_PATH = "config/bot_config.py"
HOOK_TIMEOUT_S = float(os.environ.get("MYRMIDON_BOT_HOOK_S") or 60.0)
_SLOW_HOOKS = ("setup_bot", "on_bot_startup")
_SLOW_FACTOR = 10.0
_GROUP_REPLACES = ("on_before_poll", "on_after_poll")


class HookTimeout(Exception):
    """Raised inside a hook that has missed its deadline, in the hope that it ends."""


class HookFailed(Exception):
    """A hook has raised or not come back; the message says what happened."""


class Hooks:
    """The hooks of both layers. Safe to call from several threads, each hook from one at a time."""

    def __init__(self, report_error: Callable[[str], None]) -> None:
        self.report_error = report_error
        self.zip_hooks: dict[str, Callable[..., Any]] = {}
        self.group_hooks: dict[str, Callable[..., Any]] = {}
        self.script = ""
        self.hung_threads: dict[str, threading.Thread] = {}
        self.functions: dict[str, list[tuple[str, Callable[..., Any]]]] = {}

    def load_zip_hooks(self, text: str | None) -> str | None:
        """Take the zip's hooks; why that was not possible, or None."""
        if text is not None:
            try:
                self.zip_hooks = self._call_with_timeout("bot_config.py", _SLOW_FACTOR, load, text, "bot_config")
            except HookFailed as error:
                self.report_error(str(error))
                return str(error)
        self._resolve()
        return None

    def load_group_script(self, text: str, name: str) -> bool | None:
        """Take the script of the bot's group; whether it is another one than before, None if it cannot be loaded."""
        if text == self.script:
            return False
        self.script, self.group_hooks = text, {}
        loaded: bool | None = True
        try:
            if text:
                self.group_hooks = self._call_with_timeout(name, 1.0, load, text, "injected_bot_config")
        except HookFailed as error:
            self.report_error(str(error))
            loaded = None
        self._resolve()
        return loaded

    def _resolve(self) -> None:
        self.functions = {name: _layers_of(name, self.zip_hooks, self.group_hooks) for name in HOOKS}
        self.functions = {name: chain for name, chain in self.functions.items() if chain}

    # ---------------------------------------------------------------- calling

    def has(self, name: str) -> bool:
        return name in self.functions

    def call(self, name: str, *args: Any) -> bool:
        """Call a hook of both layers; whether nothing went wrong."""
        succeeded = True
        for layer, function in self.functions.get(name, ()):
            try:
                self._call_one(name, layer, function, args)
            except HookFailed as error:
                succeeded = False
                self.report_error(str(error))
        return succeeded

    def query(self, name: str, *args: Any) -> Any:
        """What the hook answers; None when there is none. Raises Failed."""
        for layer, function in self.functions.get(name, ()):
            return self._call_one(name, layer, function, args)
        return None

    def _call_one(self, name: str, layer: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        label = f"{name} of {layer}"
        hung_threads = self.hung_threads.get(label)
        if hung_threads is not None and hung_threads.is_alive():
            raise HookFailed(f"the hook {label} has not come back from an earlier call; it was skipped")
        return self._call_with_timeout(label, _SLOW_FACTOR if name in _SLOW_HOOKS else 1.0, function, *args)

    def _call_with_timeout(self, label: str, factor: float, function: Callable[..., Any], *args: Any) -> Any:
        outcome: list[tuple[bool, Any]] = []

        def run() -> None:
            try:
                outcome.append((True, function(*args)))
            except BaseException as error:  # noqa: BLE001 - also a hook that says sys.exit()
                outcome.append((False, _format_error(error)))

        thread = threading.Thread(target=run, name=f"hook {label}", daemon=True)
        thread.start()
        timeout_s = HOOK_TIMEOUT_S * factor
        thread.join(timeout_s)
        if thread.is_alive():
            self.hung_threads[label] = thread
            host.interrupt_thread(thread.ident or 0, HookTimeout)
            raise HookFailed(f"the hook {label} did not come back within {timeout_s:g} s; it is skipped until it does")
        self.hung_threads.pop(label, None)
        succeeded, value = outcome[0]
        if not succeeded:
            raise HookFailed(f"the hook {label} failed: {value}")
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
        return archive.read(ZIP_PATH).decode() if ZIP_PATH in archive.namelist() else None


def _layers_of(
    name: str, zip_hooks: dict[str, Callable[..., Any]], group_hooks: dict[str, Callable[..., Any]]
) -> list[tuple[str, Callable[..., Any]]]:
    """Which functions a hook is, in order."""
    layers = [("bot_config.py", zip_hooks.get(name)), ("the group's script", group_hooks.get(name))]
    if name == "setup_bot":
        layers = layers[:1]
    elif (name in _GROUP_REPLACES or name.startswith("get_")) and name in group_hooks:
        layers = layers[1:]
    return [(layer, function) for layer, function in layers if function is not None and not _is_empty(function)]


def _docstring_only() -> None:
    """Like this."""


def _pass_only() -> None:
    pass


_EMPTY_BODIES = (_docstring_only.__code__.co_code, _pass_only.__code__.co_code)


def _is_empty(function: Callable[..., Any]) -> bool:
    """Whether a function has no code but a text: its instructions and constants are those of one that has none."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_code not in _EMPTY_BODIES:
        return False
    consts = code.co_consts
    return all(value is None or isinstance(value, str) for value in consts) and (not consts or consts[-1] is None)


def _format_error(error: BaseException) -> str:
    functions = traceback.format_exception(type(error), error, error.__traceback__)
    return f"{type(error).__name__}: {error}\n{''.join(functions[2:])[-1500:]}".strip()
