"""The tasks of a stream of results, and which of them must be read next. In memory of one server only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from myrmidon.server.waiting.watch import GrowingWatch


class ResultStream:
    """The tasks of one stream that have not ended. All methods run on the event loop."""

    def __init__(self, stream_id: str, caller: str, watch: GrowingWatch) -> None:
        self.id = stream_id
        self.caller = caller
        self.tasks: dict[int, None] = {}
        """Those that were not read for the longest time are first."""
        self._watch = watch
        self._ended: set[int] = set()
        """What was notified and was not read since."""
        self._due: set[int] = set()
        """What must be read after that, because its end may have been missed."""
        self._depends: dict[object, set[int]] = {}
        """The tasks whose ends depend on another key than their own, by that key."""

    def add(self, task_ids: Collection[int]) -> None:
        """Watch tasks that exist, and read what has happened to them so far."""
        self.tasks.update(dict.fromkeys(task_ids))
        self._watch.add(task_ids)
        self._due.update(task_ids)
        self._watch.wake()

    @contextmanager
    def expecting(self, task_ids: Collection[int]) -> Iterator[None]:
        """Watch tasks that are stored in this block; ``confirm`` follows, unless it fails."""
        self._watch.add(task_ids)
        try:
            yield
        except BaseException:
            self.drop(task_ids)
            raise

    def confirm(self, task_ids: Collection[int]) -> None:
        """Tasks that were expected are stored. Those that are not watched any more have ended meanwhile."""
        self.tasks.update(dict.fromkeys(task_ids))
        self._ended |= self._watch.add(task_ids)
        self._watch.wake()

    def drop(self, task_ids: Iterable[int]) -> None:
        for task_id in task_ids:
            self.tasks.pop(task_id, None)
        self._watch.discard(task_ids)

    def close(self) -> None:
        self._watch.close()

    async def next(self, n: int, seconds: float) -> list[int]:
        """Up to n tasks to read, those first that have ended; waits for the first one, and may return none."""
        for key in await self._watch.wait(0.0 if self._ended or self._due else seconds):
            self._ended |= self._depends.pop(key, set())
            if key in self.tasks:
                self._ended.add(key)
        chosen = self._ended or self._due
        chunk = list(islice(chosen, n))
        chosen.difference_update(chunk)
        return [task_id for task_id in chunk if task_id in self.tasks]

    def recheck(self, n: int) -> None:
        """Read n tasks again, because notifications may have been missed."""
        for task_id in list(islice(self.tasks, n)):
            self._due.add(task_id)
            self.tasks[task_id] = self.tasks.pop(task_id)

    def note(self, read: Sequence[int], over: Iterable[int], awaited: Mapping[int, Sequence[object]]) -> None:
        """Drop the tasks that are over, and watch what decides about the others that were read.

        What was not watched while it was read must be read again.
        """
        self.drop(over)
        self._ended |= self._watch.add([task_id for task_id in read if task_id in self.tasks])
        for task_id, keys in awaited.items():
            for key in keys:
                self._depends.setdefault(key, set()).add(task_id)
            if self._watch.add(keys):
                self._ended.add(task_id)
