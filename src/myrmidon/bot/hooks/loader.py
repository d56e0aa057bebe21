"""Loads and calls hooks: administrators' Python functions from bot_config.py and from the script of the bot's group.

No hook can stop the bot. Each call runs in its own thread with a timeout. An exception or a timeout is reported, and a
hook that has timed out is not called again until it has returned. A hook that is missing or has an empty body is never
called.
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
from myrmidon.bot.system import processes

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
    """Raised inside the thread of a hook that has timed out, to end it if it runs Python code."""


class HookFailed(Exception):
    """A hook has raised an exception or timed out; the message says what happened."""


class Hooks:
    """The hooks of both layers. Different hooks may be called from different threads, each from one at a time.

    ``zip_hooks`` come from bot_config.py, ``group_hooks`` from the group's script. ``functions`` holds, for each hook
    that is not empty, (layer, function) in the order of the calls.
    """

    def __init__(self, report_error: Callable[[str], None]) -> None:
        self.report_error = report_error
        self.zip_hooks: dict[str, Callable[..., Any]] = {}
        self.group_hooks: dict[str, Callable[..., Any]] = {}
        self.script = ""
        self.hung_threads: dict[str, threading.Thread] = {}
        self.functions: dict[str, list[tuple[str, Callable[..., Any]]]] = {}

    def load_zip_hooks(self, text: str | None) -> str | None:
        """Load bot_config.py; the reason why that failed, or None."""
        if text is not None:
            try:
                self.zip_hooks = self._call_with_timeout("bot_config.py", _SLOW_FACTOR, load, text, "bot_config")
            except HookFailed as error:
                self.report_error(str(error))
                return str(error)
        self._resolve()
        return None

    def load_group_script(self, text: str, name: str) -> bool | None:
        """Load the script of the bot's group; whether it has changed, or None if it cannot be loaded."""
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

    # ---------------------------------------------------------------- calls

    def has(self, name: str) -> bool:
        return name in self.functions

    def call(self, name: str, *args: Any) -> bool:
        """Call a hook of each layer and report failures; whether all succeeded."""
        succeeded = True
        for layer, function in self.functions.get(name, ()):
            try:
                self._call_one(name, layer, function, args)
            except HookFailed as error:
                succeeded = False
                self.report_error(str(error))
        return succeeded

    def query(self, name: str, *args: Any) -> Any:
        """The return value of a hook; None when there is no such hook. Raises HookFailed."""
        for layer, function in self.functions.get(name, ()):
            return self._call_one(name, layer, function, args)
        return None

    def _call_one(self, name: str, layer: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        label = f"{name} of {layer}"
        hung_thread = self.hung_threads.get(label)
        if hung_thread is not None and hung_thread.is_alive():
            raise HookFailed(f"hook {label} was skipped: an earlier call has not returned yet")
        return self._call_with_timeout(label, _SLOW_FACTOR if name in _SLOW_HOOKS else 1.0, function, *args)

    def _call_with_timeout(self, label: str, factor: float, function: Callable[..., Any], *args: Any) -> Any:
        outcome: list[tuple[bool, Any]] = []

        def run() -> None:
            try:
                outcome.append((True, function(*args)))
            except BaseException as error:  # noqa: BLE001 - also a hook that calls sys.exit()
                outcome.append((False, _format_error(error)))

        thread = threading.Thread(target=run, name=f"hook {label}", daemon=True)
        thread.start()
        timeout_s = HOOK_TIMEOUT_S * factor
        thread.join(timeout_s)
        if thread.is_alive():
            self.hung_threads[label] = thread
            processes.raise_in_thread(thread.ident or 0, HookTimeout)
            raise HookFailed(f"hook {label} timed out after {timeout_s:g} s; it is skipped until it returns")
        self.hung_threads.pop(label, None)
        succeeded, value = outcome[0]
        if not succeeded:
            raise HookFailed(f"hook {label} failed: {value}")
        return value


def load(text: str, name: str) -> dict[str, Callable[..., Any]]:
    """Execute a script as a module and return its hooks. Raises whatever the script raises."""
    module = types.ModuleType(name)
    module.__dict__["__file__"] = f"{name}.py"
    sys.modules[name] = module
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)  # noqa: S102 - this is what a hook is
    found = {hook: getattr(module, hook, None) for hook in HOOKS}
    return {hook: function for hook, function in found.items() if callable(function)}


def packed_text() -> str | None:
    """The source of bot_config.py in the running zip; None when there is none."""
    path = updater.own_zip()
    if path is None:
        return None
    with zipfile.ZipFile(path) as archive:
        return archive.read(ZIP_PATH).decode() if ZIP_PATH in archive.namelist() else None


def _layers_of(
    name: str, zip_hooks: dict[str, Callable[..., Any]], group_hooks: dict[str, Callable[..., Any]]
) -> list[tuple[str, Callable[..., Any]]]:
    """The (layer, function) pairs of a hook in the order of the calls, without empty functions."""
    layers = [("bot_config.py", zip_hooks.get(name)), ("the group's script", group_hooks.get(name))]
    if name == "setup_bot":
        layers = layers[:1]
    elif (name in _GROUP_REPLACES or name.startswith("get_")) and name in group_hooks:
        layers = layers[1:]
    return [(layer, function) for layer, function in layers if function is not None and not _is_empty(function)]


def _docstring_only() -> None:
    """For comparison in `_is_empty`."""


def _pass_only() -> None:
    pass


_EMPTY_BODIES = (_docstring_only.__code__.co_code, _pass_only.__code__.co_code)


def _is_empty(function: Callable[..., Any]) -> bool:
    """Whether the body of a function is empty or a docstring, by its bytecode and constants."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_code not in _EMPTY_BODIES:
        return False
    consts = code.co_consts
    return all(value is None or isinstance(value, str) for value in consts) and (not consts or consts[-1] is None)


def _format_error(error: BaseException) -> str:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return f"{type(error).__name__}: {error}\n{''.join(lines[2:])[-1500:]}".strip()
