"""The environments of the functions of this bot: found in the cache or built in threads of their own, and kept in use.

A run that needs an environment waits for it as for its files, and the other slots go on. Runs that need the same one
wait for one build, whose output is in the log of each of them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import Callable, NamedTuple, Optional

from myrmidon.bot.machine.environment_cache import EnvironmentOffer, HeldLock, short_name
from myrmidon.bot.run.reports import Problem, problem_of
from myrmidon.bot.run.run import ProcessKey, Run
from myrmidon.bot.run.watch import Watch
from myrmidon.bot.slots.environment_build import PYTHON, Build, BuildCancelled, Builder, BuildFailed
from myrmidon.bot.system import interpreters
from myrmidon.functions.requirements import NAMED, BadRequirements, Lines, parse_document

FAILED = "environment_failed"
"""The kind of the fault of a run whose environment cannot be built."""
REMEMBER_S = 60.0
"""For how long a failed build is not repeated: many runs may need the same environment."""
MAX_OUTPUT_BYTES = 4 << 20
"""Of one build that is shown."""
_POLL_S = 0.2
_STDERR = 1

log = logging.getLogger("myrmidon.bot")


class Runtime(NamedTuple):
    """What runs a function: an interpreter, and the folder of its virtual environment or an empty text."""

    python: str
    venv: str = ""


class EnvironmentKey(NamedTuple):
    """An environment as tasks name it: the digest of requirements, and what they require of the interpreter."""

    digest: str
    python: str


class _Held(NamedTuple):
    """An environment in use. The lock keeps all bots of this host from removing it."""

    runtime: Runtime
    lock: HeldLock


Done = Callable[[Optional[Problem]], None]


class Environments:
    """``held`` and ``builds`` are shared with the threads of builds. The other methods are for the functions' thread.

    ``outputs``: what builds have written and no log has yet. ``failed``: when builds have failed, and why.
    """

    def __init__(self, offer: EnvironmentOffer, builder: Builder) -> None:
        self.offer = offer
        self.cache = offer.cache
        self.offered = offer.interpreters
        self.builder = builder
        self.lock = threading.Lock()
        self.held: dict[EnvironmentKey, _Held] = {}
        self.builds: dict[EnvironmentKey, _BuildThread] = {}
        self.failed: dict[EnvironmentKey, tuple[float, Problem]] = {}
        self.outputs: deque[tuple[EnvironmentKey, bytes]] = deque()

    def is_ready(self, key: ProcessKey) -> bool:
        """Whether a process for this key can be started now."""
        return not key.environment or key.environment.startswith(NAMED) or _key_of(key) in self.held

    def runtime(self, key: ProcessKey) -> Runtime:
        """The interpreter for a key that is ready. Raises ValueError."""
        if key.environment.startswith(NAMED):
            name = key.environment[len(NAMED) :]
            if name not in self.offered.named:
                raise ValueError(f"this bot has no environment {name} any more")
            python = self.offered.named[name]
            return Runtime(python, os.path.dirname(os.path.dirname(python)))
        if key.environment:
            return self.held[_key_of(key)].runtime
        return Runtime(self.offered.choose(key.python.split()))

    def request(self, process_key: ProcessKey, document: bytes, done: Done) -> None:
        """Make an environment ready, in another thread. ``done`` is called with a problem, or None when it is."""
        key = _key_of(process_key)
        with self.lock:
            problem = self._known_problem(key)
            if problem is None and key not in self.held:
                build = self.builds.get(key)
                if build is not None and not build.is_cancelled:
                    build.waiting.append(done)
                else:  # a cancelled build may be ending; the new one waits for its lock
                    self.builds[key] = _BuildThread(self, key, document, done)
                    self.builds[key].start()
                return
        done(problem)

    def _known_problem(self, key: EnvironmentKey) -> Problem | None:
        """The failure of a build a short time ago, with its age: its output is in the log of another run."""
        failed_at, problem = self.failed.get(key, (0.0, None))
        age = time.monotonic() - failed_at
        if problem is None or age > REMEMBER_S:
            self.failed.pop(key, None)
            return None
        note = f"(The build failed {age:.0f} s ago on this bot; after {REMEMBER_S:.0f} s a task builds it again.)"
        return Problem(problem.kind, f"{problem}\n{note}")

    def finish(self, build: _BuildThread, held: _Held | None, problem: Problem | None) -> list[Done]:
        """Note the end of a build; who waits for it."""
        key = build.key
        with self.lock:
            if held is not None and key in self.held:
                held.lock.release()
            elif held is not None:
                self.held[key] = held
            elif problem is not None and problem.kind == FAILED:
                now = time.monotonic()
                self.failed = {one: known for one, known in self.failed.items() if now - known[0] <= REMEMBER_S}
                self.failed[key] = (now, problem)
            if self.builds.get(key) is build:
                del self.builds[key]
            return build.waiting

    def keep(self, used: Iterable[ProcessKey]) -> None:
        """Cancel builds that no run waits for, and let go of environments that no process or run uses."""
        if not (self.held or self.builds):
            return
        needed = {_key_of(key) for key in used if key.environment}
        with self.lock:
            for key, build in self.builds.items():
                if key not in needed:
                    build.is_cancelled = True
            for key in [key for key in self.held if key not in needed]:
                held = self.held.pop(key)
                held.lock.touch(self.cache.now())
                held.lock.release()

    def num_building(self, runs: Collection[Run]) -> int:
        """How many of these runs wait for a build."""
        return sum(1 for run in runs if _key_of(run.key) in self.builds) if self.builds else 0

    def move_output(self, runs: Collection[Run], watch: Watch) -> bool:
        """Add the output of builds to the logs of the runs that wait for them; whether there was any."""
        moved = False
        while self.outputs:
            key, data = self.outputs.popleft()
            for run in runs:
                if run.key.environment and _key_of(run.key) == key:
                    moved = True
                    watch.store_output(run, _STDERR, data, to_spool=True)
        return moved


def _key_of(key: ProcessKey) -> EnvironmentKey:
    return EnvironmentKey(key.environment, key.python)


class _BuildThread(threading.Thread):
    """Makes one environment ready: takes it from the cache, waits for another bot that builds it, or builds it."""

    def __init__(self, owner: Environments, key: EnvironmentKey, document: bytes, done: Done) -> None:
        super().__init__(name="environment", daemon=True)
        self.owner = owner
        self.key = key
        self.document = document
        self.waiting = [done]
        self.is_cancelled = False
        self.num_written = 0

    def run(self) -> None:
        held: _Held | None = None
        problem: Problem | None = None
        try:
            held = self._obtain(parse_document(self.document))
        except (BadRequirements, BuildFailed) as error:
            problem = Problem(FAILED, f"the environment of the function cannot be built: {error}")
        except BuildCancelled:
            problem = Problem("bot_error", "the build of the environment was cancelled")
        except Exception as error:
            log.exception("an environment could not be built")
            problem = problem_of(error, "the bot could not make the environment of the function")
        for done in self.owner.finish(self, held, problem):
            done(problem)

    def _obtain(self, lines: Lines) -> _Held:
        cache = self.owner.cache
        cache.create()
        python = self._interpreter()
        key = f"{self.key.digest}-{python.version}-{hashlib.sha256(os.fsencode(python.path)).hexdigest()[:8]}"
        has_waited = False
        while not self.is_cancelled:
            held = self._use(key)
            if held is not None:
                return held
            lock = cache.lock(key, exclusive=True)
            if lock is None:
                if not has_waited:
                    self._write(f"[myrmidon: {short_name(key)} is being built or removed; waiting]\n".encode())
                has_waited = True
                time.sleep(_POLL_S * (0.5 + random.random()))  # noqa: S311 - two bots must not look in step
                continue
            try:
                if cache.find(key) is None:
                    self._build(key, python.path, lines)
            finally:
                lock.release()
        raise BuildCancelled

    def _interpreter(self) -> interpreters.Interpreter:
        path = self.owner.offered.choose(self.key.python.split())
        own = interpreters.own()
        found = own if path == own.path else self.owner.offered.version_of(path)
        if found is None:
            raise OSError(f"the interpreter {path} does not start")
        return interpreters.Interpreter(os.path.realpath(found.path), found.version)

    def _use(self, key: str) -> _Held | None:
        """A complete environment, locked for use."""
        cache = self.owner.cache
        lock = cache.lock(key, exclusive=False)
        if lock is None:
            return None
        folder = cache.find(key)
        if folder is None:
            lock.release()
            return None
        lock.touch(cache.now())
        return _Held(Runtime(os.path.join(folder, PYTHON), os.path.join(folder, "venv")), lock)

    def _build(self, key: str, python: str, lines: Lines) -> None:
        cache = self.owner.cache
        cache.trim()
        began = time.monotonic()
        self._write(f"[myrmidon: builds the environment {short_name(key)} of {len(lines)} requirements]\n".encode())
        folder = cache.new_folder(key)
        try:
            self.owner.builder.build(
                Build(folder, python, lines, self.owner.offer.build_s, self._write, lambda: self.is_cancelled)
            )
            seconds = round(time.monotonic() - began, 1)
            cache.publish(key, folder, PYTHON, requirements=len(lines), seconds=seconds)
        except BaseException:
            cache.discard(key)
            raise
        self._write(f"[myrmidon: built the environment in {seconds} s]\n".encode())

    def _write(self, data: bytes) -> None:
        """Show output in the logs, up to a limit: the log of the function must have room, and so must the memory."""
        if self.num_written <= MAX_OUTPUT_BYTES < self.num_written + len(data):
            self.owner.outputs.append((self.key, b"[myrmidon: further output of the build is not kept]\n"))
        elif self.num_written <= MAX_OUTPUT_BYTES:
            self.owner.outputs.append((self.key, data))
        self.num_written += len(data)
