"""What a run finds around it, and what is put back in order after it.

A function may print, close its output, change the folder or the environment, or leave files. The next run of the same
process must begin as the first one did. Threads and child processes that a function leaves are not touched: libraries
keep such pools on purpose. What they print later goes to the log of the run that is on then.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import os
import shutil
import signal
import sys
from typing import Any, Callable, TextIO

from myrmidon.executor.stacks import take_stacks

OUT, ERR = 1, 2

# These run after every run: the module signal makes an enum of each handler, which takes longer than a small function.
_getsignal = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)
_alarm = getattr(signal, "alarm", None)
_SIGTERM, _SIGINT, _DEFAULT = int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIG_DFL)


def _c_flush() -> Callable[[None], object]:
    """``fflush`` of the C library, which flushes all streams if it is given none: C extensions print through them.

    A call takes 0.7 microseconds, and the import of ctypes one millisecond of the start of a process.
    """
    try:
        import ctypes  # not in every build of Python

        flush: Callable[[None], object] = ctypes.CDLL(None).fflush
    except (ImportError, OSError, TypeError, AttributeError):
        return lambda _: None
    return flush


_flush_c_streams = _c_flush()


class Streams:
    """Standard output and error: files of the bot. The logs of runs are told apart by the files' sizes.

    ``stacks``: the file for the stacks of processes that are ended or crash.
    """

    def __init__(self, stacks: int) -> None:
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        # Copies, because the function may close or redirect the originals.
        self._kept = [os.dup(fd) for fd in (OUT, ERR)]
        self._files = [_identity(os.fstat(fd)) for fd in self._kept]
        self.out, self.err = _text_stream(OUT), _text_stream(ERR)
        self.use()
        self._stacks = stacks
        faulthandler.enable(stacks)
        self.show_stacks_at_the_end()

    def show_stacks_at_the_end(self) -> None:
        """Let SIGTERM, which the bot sends when the time of a run is over, write where the function was."""
        if hasattr(faulthandler, "register"):
            faulthandler.unregister(signal.SIGTERM)
            faulthandler.register(signal.SIGTERM, self._stacks, chain=True)

    def use(self) -> None:
        sys.stdout = sys.__stdout__ = self.out  # type: ignore[misc, assignment]
        sys.stderr = sys.__stderr__ = self.err  # type: ignore[misc, assignment]

    def finish(self) -> tuple[int, int]:
        """Flush what the run has printed, repair the streams, and return the sizes of the two files."""
        _flush_c_streams(None)
        if sys.stdout is not self.out or sys.stderr is not self.err:
            for own in (sys.stdout, sys.stderr):  # the function's; it may hold text back
                with contextlib.suppress(Exception):
                    own.flush()
        self._add_stacks_of_children()
        try:
            self.out.flush()
            self.err.flush()
            out, err = os.fstat(OUT), os.fstat(ERR)
            intact = [_identity(out), _identity(err)] == self._files
        except (OSError, ValueError):
            intact = False
        if not intact or sys.stdout is not self.out or sys.stderr is not self.err:
            self._repair()
            out, err = os.fstat(self._kept[0]), os.fstat(self._kept[1])
        return out.st_size, err.st_size

    def _add_stacks_of_children(self) -> None:
        """Add the stacks of processes that the function has forked to its log."""
        with contextlib.suppress(OSError):  # the function may have closed the file
            stacks = take_stacks(self._stacks)
            if stacks:
                os.write(self._kept[1], stacks)

    def _repair(self) -> None:
        for fd, kept in zip((OUT, ERR), self._kept):
            os.dup2(kept, fd)
        if self.out.closed:
            self.out = _text_stream(OUT)
        if self.err.closed:
            self.err = _text_stream(ERR)
        self.use()
        with contextlib.suppress(OSError, ValueError):
            self.out.flush()
            self.err.flush()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _text_stream(fd: int) -> TextIO:
    """A stream that shows lines at once, and any text: a character that UTF-8 cannot write must not end a run."""
    raw = io.FileIO(fd, "wb", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)


class _StandardErrorHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what is standard error at the moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None:
        """The stream is never another one."""


def set_up_logging() -> None:
    """Show log records from INFO on in the log of the run, unless the user's module has configured logging."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _StandardErrorHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    if root.level == logging.WARNING:
        root.setLevel(logging.INFO)


class Folder:
    """The folder in which a run begins: empty, and removed after the run.

    A folder that the run has not touched is used again: making and removing one costs more than a small function. Its
    time of change is set to a value in the past, so that every change shows.
    """

    _UNTOUCHED_NS = 1_000_000_000

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self._number = 0
        self._path = ""

    def enter(self) -> None:
        if not self._path:
            self._number += 1
            path = os.path.join(self._parent, f"run-{self._number}")
            os.makedirs(path)
            os.utime(path, ns=(self._UNTOUCHED_NS, self._UNTOUCHED_NS))
            self._path = path
        os.chdir(self._path)

    def leave(self) -> None:
        if not self._path:
            return
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_mtime_ns == self._UNTOUCHED_NS:
                return
        path, self._path = self._path, ""
        os.chdir(self._parent)
        shutil.rmtree(path, ignore_errors=True)


class Environment:
    """The environment variables as they were after the last import: what a call changes is undone."""

    def __init__(self) -> None:
        self.keep()

    def keep(self) -> None:
        self._data = getattr(os.environ, "_data", os.environ)  # the dict below, which compares quickly
        self._kept = dict(self._data)
        self._variables = dict(os.environ)

    def restore(self) -> None:
        if self._data == self._kept:
            return
        for name in set(os.environ) - set(self._variables):
            del os.environ[name]
        for name, value in self._variables.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


class Memory:
    """Limits what a run may allocate beyond what the process has, with RLIMIT_DATA."""

    def __init__(self) -> None:
        self._resource: Any = None
        self._is_limited = False
        with contextlib.suppress(ImportError, OSError):  # not on every platform
            import resource

            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._page = resource.getpagesize()
            self._before = resource.getrlimit(resource.RLIMIT_DATA)
            self._resource = resource

    def limit(self, megabytes: int | None) -> None:
        if not megabytes or self._resource is None:
            return
        pages = int(os.pread(self._statm, 256, 0).split()[5])
        wanted = pages * self._page + (megabytes << 20)
        hard = self._before[1]
        if hard != self._resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        self._resource.setrlimit(self._resource.RLIMIT_DATA, (wanted, hard))
        self._is_limited = True

    def lift(self) -> None:
        if self._is_limited:
            self._resource.setrlimit(self._resource.RLIMIT_DATA, self._before)
            self._is_limited = False


class Interrupts:
    """SIGINT raises KeyboardInterrupt during a run, and does nothing between runs, where an answer would be lost."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.are_taken = False
        self._own = self._handle  # one object: reading a method makes a new one each time
        signal.signal(signal.SIGINT, self._own)

    def _handle(self, signum: int, frame: Any) -> None:
        if self.are_taken:
            signal.default_int_handler(signum, frame)

    def reset_signals(self) -> None:
        """Undo what a run may have changed: SIGTERM ends the process again, no alarm is pending."""
        if _getsignal(_SIGTERM) != _DEFAULT:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._streams.show_stacks_at_the_end()
        if _getsignal(_SIGINT) is not self._own:
            signal.signal(signal.SIGINT, self._own)
        if _alarm is not None:
            _alarm(0)  # also ends a timer of setitimer
