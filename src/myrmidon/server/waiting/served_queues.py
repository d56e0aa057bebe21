"""Which queues the connected bots serve, of which kind these queues are, and which of the bots wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from threading import Lock

from myrmidon.model.task_to_run import Accepts
from myrmidon.server.waiting.connected_bot import ConnectedBot, WaitingBots


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
