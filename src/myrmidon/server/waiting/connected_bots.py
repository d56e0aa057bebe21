"""The connected bots in memory: their state, which queues they serve, which of them wait, and why a held poll ends.

``wait_hub`` decides which polls end, and when.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum, auto
from threading import Lock
from typing import NamedTuple

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.model.task_to_run import Accepts
from myrmidon.scheduler.claim import Claimed


class WakeReason(Enum):
    """Why a held poll ends."""

    TIMED_OUT = auto()
    """Its time is up, the server stops, or another poll of the same bot replaces it."""
    RECHECK = auto()
    """Something about the bot or its runs has changed: read the database again."""
    WORK = auto()
    """A queue of the bot may have tasks: claim."""
    CLAIMED = auto()
    """A submit has claimed tasks for the bot."""


class Wakeup(Struct, frozen=True):
    """The result of waiting in a held poll."""

    reason: WakeReason
    queue: int = 0
    """The queue that has tasks; 0 if it is not known which one."""
    forward_count: int = 0
    """How many bots were woken for these tasks before and could not take them."""
    claim: tuple[list[Claimed], bool] | None = None
    """With ``CLAIMED``: the runs, and whether there may be more for this bot."""


TIMED_OUT = Wakeup(WakeReason.TIMED_OUT)
RECHECK = Wakeup(WakeReason.RECHECK)


class ClaimRequest(NamedTuple):
    """The claim of a held poll: up to ``n`` tasks of the kinds that it accepts."""

    nonce: int = 0
    n: int = 0
    accepts: Accepts = Accepts.ANY


class WaitingBots:
    """The bots that serve exactly the same queues; those whose poll is held, in the order of their arrival.

    They are kept by what their polls accept, so that a task is only offered to a poll that can take it.
    """

    __slots__ = ("_waiting", "num_connected", "queues")

    def __init__(self, queues: frozenset[int]) -> None:
        self.queues = queues
        self.num_connected = 0
        self._waiting: dict[Accepts, dict[ConnectedBot, None]] = {accepts: {} for accepts in Accepts}

    def add(self, bot: ConnectedBot) -> None:
        self._waiting[bot.claim_request.accepts][bot] = None

    def discard(self, bot: ConnectedBot) -> bool:
        """Remove a bot; whether it was here."""
        waiting = self._waiting[bot.claim_request.accepts]
        if bot not in waiting:
            return False
        del waiting[bot]
        return True

    def first(self, accepts: Accepts) -> ConnectedBot | None:
        """The bot that has waited longest with a poll of exactly this kind."""
        return next(iter(self._waiting[accepts]), None)

    def waiting(self, *, functions: bool) -> list[ConnectedBot]:
        """The waiting bots that would take a function, or a command."""
        kinds = [bots for accepts, bots in self._waiting.items() if accepts.includes(functions=functions)]
        return [bot for bots in kinds for bot in bots]

    def count(self, *, functions: bool) -> int:
        """How many waiting bots would take a function, or a command."""
        return sum(len(bots) for accepts, bots in self._waiting.items() if accepts.includes(functions=functions))

    def count_rivals(self, accepts: Accepts) -> int:
        """How many waiting bots would take something that a poll with ``accepts`` takes too."""
        if accepts is Accepts.ANY:
            return sum(map(len, self._waiting.values()))
        return self.count(functions=accepts is Accepts.FUNCTIONS)


class ConnectedBot:
    """What this server remembers of a bot's session, so that an idle poll needs no database access."""

    __slots__ = (
        "address",
        "bot_id",
        "cache_sizes",
        "claim_request",
        "config",
        "directive",
        "directive_sends",
        "directive_sent_at",
        "directive_target",
        "epoch",
        "first_seen_at",
        "flushed_at",
        "future",
        "health_reasons",
        "latest_nonce",
        "latest_received",
        "loaded_at",
        "mean_run_s",
        "nonce",
        "os_family",
        "outdated",
        "peers",
        "reserved",
        "seen_at",
        "session",
        "slots",
        "state_written_at",
        "version",
        "wait_number",
    )

    def __init__(self, bot_id: str, session: int, peers: WaitingBots) -> None:
        self.bot_id = bot_id
        self.session = session
        self.peers = peers
        self.version = ""
        self.address = ""
        """The address of its machine, as the server saw it at the handshake."""
        self.config: str | None = None
        """The version of the group configuration that the bot has; None for a bot that does not support groups."""
        self.health_reasons: tuple[str | None, str | None] | None = None
        """Why the bot reports itself quarantined and in maintenance; None until this server has received that."""
        self.cache_sizes: dict[str, int] | None = None
        """Sizes of named caches after its last runs."""
        self.slots = 1
        """How many of the tasks that it expects the bot runs at a time, by its last claim."""
        self.os_family = ""
        self.epoch = 0
        """The epoch of the bot's valid credentials, as last read."""
        self.directive: str | None = None
        """A directive from the database, which goes into every response: ``terminate``."""
        self.outdated = False
        """The database has changed: the next poll reads the bot again."""
        self.loaded_at: Micros = 0
        """When the bot was last read from the database."""
        self.first_seen_at: Micros = 0
        """When this server first saw this session."""
        self.seen_at: Micros = 0
        """The last request of the bot."""
        self.flushed_at: Micros = 0
        """The last heartbeat that was written to the database."""
        self.directive_target = ""
        """What the last update or restart directive was for: the digest of a zip, or a group configuration."""
        self.directive_sent_at: Micros = 0
        self.directive_sends = 0
        """How often that directive was sent, with the same target."""
        self.state_written_at: Micros = 0
        self.nonce = 0
        """The nonce of the last claim known to have returned runs; a poll that repeats it gets the same runs."""
        self.latest_nonce = 0
        """The nonce of the last request."""
        self.latest_received = 0
        """The nonce of the last claim whose runs had reached the bot when it made that request."""
        self.mean_run_s = 0.0
        """Moving mean of the durations of this bot's runs; 0 while there is none."""
        self.future: asyncio.Future[Wakeup] | None = None
        """Ends the held poll."""
        self.wait_number = 0
        """Grows with each held poll: the smallest number has waited longest."""
        self.claim_request = ClaimRequest()
        """The claim of the held poll."""
        self.reserved = False
        """A submit is claiming for this bot: the poll must not end before that is decided."""

    def has_given_up(self, nonce: int) -> bool:
        """Whether the bot waits no longer for the runs of a claim, and has not received them either.

        It may have got them by another copy of the call: networks repeat calls, and so do bots.
        """
        return self.latest_received < nonce < self.latest_nonce


class ServedQueues:
    """Bots that serve the same queues share one ``WaitingBots``.

    Changed on the event loop; ``lock`` is that of the hub and protects what a writer's thread reads meanwhile.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._peer_sets: dict[frozenset[int], WaitingBots] = {}
        self._peers_by_queue: defaultdict[int, dict[WaitingBots, None]] = defaultdict(dict)
        self._function_queues: set[int] = set()

    # ------------------------------------------------------------ bots

    def add_function_queues(self, queues: Iterable[int]) -> None:
        """Record that these queues hold functions; all others hold commands."""
        self._function_queues.update(queues)

    def peers_for(self, queues: frozenset[int]) -> WaitingBots:
        peers = self._peer_sets.get(queues)
        if peers is None:
            with self._lock:
                peers = self._peer_sets[queues] = WaitingBots(queues)
                for queue in queues:
                    self._peers_by_queue[queue][peers] = None
        return peers

    def move(self, bot: ConnectedBot, peers: WaitingBots) -> None:
        """Give a bot other peers, because it serves other queues now."""
        before = bot.peers
        if before is peers:
            return
        with self._lock:  # both at once, or a reservation would look for the bot among its former peers
            if before.discard(bot):
                peers.add(bot)
            bot.peers = peers
        peers.num_connected += 1
        self.leave(before)

    def leave(self, peers: WaitingBots) -> None:
        """Count a bot out; drop empty peers, or every bot with a queue of its own would leave some behind."""
        peers.num_connected -= 1
        if peers.num_connected == 0:
            with self._lock:
                self._peer_sets.pop(peers.queues, None)
                for queue in peers.queues:
                    self._peers_by_queue[queue].pop(peers, None)
                    if not self._peers_by_queue[queue]:
                        del self._peers_by_queue[queue]

    # ------------------------------------------------------------ what a poll accepts

    def serves(self, bot: ConnectedBot, queue: int, accepts: Accepts) -> bool:
        """Whether a poll of the bot that accepts this can take tasks of a queue."""
        return queue in bot.peers.queues and accepts.includes(functions=queue in self._function_queues)

    def accepted(self, bot: ConnectedBot, accepts: Accepts) -> Iterable[int]:
        """The queues from which a poll of the bot that accepts this can take tasks."""
        if accepts is Accepts.ANY:
            return bot.peers.queues
        return [queue for queue in bot.peers.queues if self.serves(bot, queue, accepts)]

    # ------------------------------------------------------------ bots that wait

    def longest_waiting(self, queue: int) -> ConnectedBot | None:
        """The bot to wake for a task; one that is busy with tasks of the other kind only if no other bot waits."""
        all_peers = self._peers_by_queue.get(queue)
        if not all_peers:
            return None
        limited = Accepts.FUNCTIONS if queue in self._function_queues else Accepts.COMMANDS
        for accepts in (Accepts.ANY, limited):
            found = None
            for peers in all_peers:
                first = peers.first(accepts)
                if first is not None and (found is None or first.wait_number < found.wait_number):
                    found = first
            if found is not None:
                return found
        return None

    def next_waiting(self, queue: int, addresses: frozenset[str]) -> ConnectedBot | None:
        """The bot to wake for a task: one that waits at these addresses, where its data is, before all others."""
        if not addresses:
            return self.longest_waiting(queue)
        near = self._waiting_at(queue, addresses)
        return min(near, key=_wait_number, default=None) or self.longest_waiting(queue)

    def _waiting_at(self, queue: int, addresses: frozenset[str]) -> list[ConnectedBot]:
        functions = queue in self._function_queues
        waiting = [bot for peers in self._peers_by_queue.get(queue, ()) for bot in peers.waiting(functions=functions)]
        return [bot for bot in waiting if bot.address in addresses]

    def capacity_at(self, queue: int, addresses: frozenset[str]) -> int:
        """How many tasks of a queue the waiting bots at these addresses would take."""
        with self._lock:
            return sum(bot.claim_request.n for bot in self._waiting_at(queue, addresses))

    def num_waiting(self, queue: int) -> int:
        """The number of waiting bots that would take a task of a queue."""
        functions = queue in self._function_queues
        return sum(peers.count(functions=functions) for peers in self._peers_by_queue.get(queue, ()))

    def waited_for(self) -> list[int]:
        """The queues whose tasks a waiting bot would take."""
        with self._lock:
            return sorted(queue for queue in self._peers_by_queue if self.num_waiting(queue))


def _wait_number(bot: ConnectedBot) -> int:
    return bot.wait_number
