"""Starts the processes that run functions, kept away from the bot as commands are, and from each other.

    functions/shared        what they may read: the bot's zip, their own code, the values of their resource group
    functions/run/<number>  what one of them may write: its working directory, TMPDIR, results, stdout, stderr, stacks

With Landlock each process has a restriction of its own: it can neither open the folder of another one nor inspect or
trace it, although both have the same user and the other one is idle and has what it worked on in its memory.
Everything here is removed when the bot starts, and created when it gets its first function: a bot must be able to start
while the disk is full.
"""

from __future__ import annotations

import os
from typing import Callable, Sequence

from myrmidon.bot.install import updater
from myrmidon.bot.run.isolation import Isolation
from myrmidon.bot.run.run import ProcessKey
from myrmidon.bot.slots.environments import Runtime
from myrmidon.bot.slots.executor_process import Channel, ExecutorProcess
from myrmidon.bot.system import filesystem, processes
from myrmidon.bot.system.users import TaskUser

FOLDER = "functions"
SHARED = ("code", "values")

Isolate = Callable[[str, Sequence[str]], Isolation]
"""Makes what starts processes that may write to one folder and read others."""
_ZIP = "bot.zip"
_FILES = ("stdout", "stderr", "stacks")
_MARKER = "MYRMIDON_EXECUTOR"
_SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


class Launcher:
    """``shared`` and ``root`` are the two folders. ``isolate`` is called once for each process.
    ``program``: the arguments of an interpreter that start the bot's program; empty before the first start.

    ``rules``: of all processes, without those of single ones. ``generation``: of these rules. Processes that were
    started with older ones cannot open files that have been created in the folders above the bot's since then.
    """

    def __init__(self, folder: str, user: TaskUser | None, env: dict[bytes, bytes], isolate: Isolate) -> None:
        self.user = user
        self.rules: Isolation | None = None
        self.isolate = isolate
        self.folder = os.path.join(folder, FOLDER)
        self.shared = os.path.join(self.folder, "shared")
        self.root = os.path.join(self.folder, "run")
        self.env = env
        self.devnull = os.open(os.devnull, os.O_RDONLY)
        self.count = 0
        self.generation = 0
        self.program: Sequence[str] = ()
        filesystem.remove_tree(self.folder)

    def _prepare(self) -> None:
        """Create the folders and what all processes share. Raises OSError."""
        self._create_folders()
        program = self._install_program()
        if self.rules is None:
            self.rules = self.isolate(self.root, (self.shared,))
        self.program = program

    def give(self, path: str) -> None:
        """Let processes own a file or folder that the bot has created for them."""
        if self.user is not None:
            self.user.give(path)

    def refresh(self) -> None:
        """Bring the rules up to date."""
        if self.rules is not None:
            self.rules.refresh()

    def _current_generation(self) -> int:
        return self.rules.generation() if self.rules is not None else 0

    def _create_folders(self) -> None:
        """Their user may pass through all of them, and has a part in ``root`` and reads what is in ``shared``."""
        mode = 0o700 if self.user is None else 0o711
        for path in (self.folder, self.root, self.shared, *(os.path.join(self.shared, name) for name in SHARED)):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)

    def _install_program(self) -> Sequence[str]:
        """Copy the bot's zip: processes with functions may not read the bot's own one, which an update replaces."""
        own_zip = updater.own_zip()
        if own_zip is None:
            self.env = {**self.env, b"PYTHONPATH": os.fsencode(_SOURCE)}  # other interpreters do not have the bot
            return ("-m", "myrmidon.bot")
        path = os.path.join(self.shared, _ZIP)
        filesystem.write_file(path, filesystem.read_file(own_zip))
        os.chmod(path, 0o644)
        return (path,)

    def start(self, key: ProcessKey, code_path: str, values: str, runtime: Runtime) -> ExecutorProcess:
        """Start a process for this code, with the folder of values and an interpreter. Raises OSError."""
        if not self.program:
            self._prepare()
        self.generation = self._current_generation()
        self.count += 1
        folder = os.path.join(self.root, str(self.count))
        for path in (folder, *(os.path.join(folder, name) for name in ("cwd", "tmp", "out"))):
            os.mkdir(path, 0o700)
            self.give(path)
        channel = Channel()
        files: list[int] = []
        try:
            for name in _FILES:
                path = os.path.join(folder, name)
                files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600))
                self.give(path)
            executor = ExecutorProcess(self.count, key, folder, channel, (files[0], files[1]), files[2])
            readable = [self.program[0], code_path, values, os.path.dirname(runtime.venv)]
            isolation = self.isolate(folder, [path for path in readable if os.path.isabs(path)])
            try:
                self._start(executor, isolation, code_path, runtime)
            finally:
                isolation.close()
        except BaseException:
            channel.close()
            for file in files:
                os.close(file)
            filesystem.remove_tree(folder)
            raise
        executor.generation = self.generation
        return executor

    def is_outdated(self, executor: ExecutorProcess) -> bool:
        """Whether a process cannot open files that a new one could."""
        self.generation = self._current_generation()
        return executor.generation != self.generation

    def _start(self, executor: ExecutorProcess, isolation: Isolation, code_path: str, runtime: Runtime) -> None:
        channel = executor.channel
        theirs, writer = channel.theirs.fileno(), channel.writer
        options = {"--control-in": theirs, "--control-out": writer, "--stacks": executor.stacks}
        words = [word for name, fd in options.items() for word in (name, str(fd))]
        argv = [runtime.python, *self.program, "executor", *words, "--code", code_path]
        streams = (self.devnull, *executor.files)
        cwd = os.path.join(executor.folder, "cwd")
        with processes.kept_lock:
            env = self._environment(executor, runtime)
            executor.process = isolation.start(argv, env, cwd, streams, tuple(options.values()))
            executor.pid = executor.process.pid
            processes.kept.add(executor.pid)
        channel.close_writer()
        processes.prefer_for_oom_kill(executor.pid)

    def _environment(self, executor: ExecutorProcess, runtime: Runtime) -> dict[bytes, bytes]:
        tmp = os.fsencode(os.path.join(executor.folder, "tmp"))
        name, _, value = self._marker(executor).partition(b"=")
        env = {**self.env, b"TMPDIR": tmp, b"TMP": tmp, b"TEMP": tmp, name: value}
        if runtime.venv:
            programs = os.fsencode(os.path.dirname(runtime.python))
            env[b"VIRTUAL_ENV"] = os.fsencode(runtime.venv)
            env[b"PATH"] = os.pathsep.encode().join((programs, env.get(b"PATH", os.defpath.encode())))
        return env

    def _marker(self, executor: ExecutorProcess) -> bytes:
        """A line in the environment of a process and of all that it starts."""
        return os.fsencode(f"{_MARKER}={self.folder}/{executor.number}")

    def clean_up(self, executor: ExecutorProcess) -> set[int]:
        """Remove everything of a process that has ended; the pids of those that it has left behind, now killed."""
        left = processes.kill_by_marker(self._marker(executor))
        with processes.kept_lock:
            processes.kept.discard(executor.pid)
        executor.close()
        filesystem.remove_tree(executor.folder)
        return left
