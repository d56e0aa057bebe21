"""Simulated bots: state machines that shake hands, poll, run and report over a network that errs.

A bot remembers two things across its death: how often it was started, and, where its journal survived, the runs it
had begun. It starts to work on a run only when the server has taken its Start; it repeats every call, with the same
nonce or report, until it hears an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from myrmidon.model.bot import Handshake
from myrmidon.model.errors import MyrmidonError, NotFound, WrongState
from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Fault, Finish, GiveBack, PerformanceStats, Start
from myrmidon.model.value import OutputValue
from myrmidon.scheduler import bots, claim, report
from myrmidon.scheduler.claim import Claimed, Poll
from myrmidon.scheduler.report import LogBytes, Outcome
from tests.sim.ledger import Ledger
from tests.sim.world import Actor, Server, Violation, World

TOKEN_KEY = b"simulated servers share this"


class Held:
    """A run that a bot has got, and what the simulation has in mind for it."""

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.key = (claimed.task_id, claimed.run)
        self.begun = False
        self.unsent = 0
        self.last_word: Any = None


class Bot(Actor):
    """One bot with a few slots."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        dimensions: dict[str, list[str]],
        spawn: Callable[..., None],
        pauses: tuple[float, float],
    ) -> None:
        super().__init__(name)
        self.world = world
        self.ledger = ledger
        self.dimensions = {"id": [name], **dimensions}
        self.address = f"10.0.0.{world.rng.randrange(4)}"
        self.slots = world.rng.choice((1, 2, 2, 4))
        self.spawn = spawn
        self.poll_after, self.beat_every = pauses
        self.session = 0
        self.nonce = 0
        self.polling = False
        self.asked = 0
        self.ticket = 0
        self.pause = self.poll_after
        self.alive = False
        self.held: dict[tuple[int, int], Held] = {}

    # -- life and death

    def start(self) -> None:
        """The process starts; a journal, if it has one, is what is held already."""
        if self.alive:
            return
        self.alive = True
        self.epoch += 1
        self.session += 1
        self.ledger.sessions[self.name] = self.session
        self.nonce = 0
        self.polling = False
        self.pause = self.poll_after
        self._shake()

    def kill(self, *, journal: bool, for_good: bool = False) -> None:
        if not self.alive:
            return
        self.alive = False
        self.epoch += 1
        self.frozen_until = 0
        self.held = {key: run for key, run in self.held.items() if run.begun} if journal else {}
        self.world.tell(f"{self.name} killed")
        if not for_good:
            self.world.after(2 + 60 * self.world.rng.random(), self.start)

    def freeze(self, seconds: float) -> None:
        """All that it was about to do happens when it thaws, with no idea of the time that has passed."""
        if self.alive:
            self.frozen_until = self.world.now + int(seconds * 1_000_000)
            self.world.tell(f"{self.name} frozen for {seconds:.0f} s")

    def later(self, seconds: float, fn: Callable[..., None], *args: Any) -> None:
        self.world.after(seconds, self._wake, self.epoch, fn, args)

    def _wake(self, epoch: int, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        if epoch != self.epoch:
            return
        if self.frozen_until > self.world.now:
            self.world.at(self.frozen_until, self._wake, epoch, fn, args)
            return
        fn(*args)

    # -- handshake

    def _shake(self) -> None:
        hello = Handshake(
            bot_id=self.name,
            session=self.session,
            dimensions=self.dimensions,
            address=self.address,
            boot_id=f"boot-{self.session}",
            version="1",
            holds=sorted(self.held),
        )
        self.world.call(
            self,
            "handshake",
            lambda s: s.write(lambda tx, **given: bots.handshake(tx, hello, **given)),
            self._welcomed,
        )

    def _welcomed(self, reply: Any) -> None:
        if isinstance(reply, MyrmidonError):
            raise Violation(f"{self.name}: its own handshake was refused: {reply}")
        self.world.tell(f"{self.name} welcome {reply.session} keeps {len(reply.keep)}")
        for key in list(self.held):
            if key not in reply.keep:
                self._drop(key)
        for run in self.held.values():
            run.unsent = 0
            self._resume(run)
        self.later(self.beat_every * self.world.rng.random(), self._beat)
        self._poll()

    def _again(self) -> None:
        """The server does not know this session any more: a new one, with all that is at work."""
        self.alive = False
        self.held = {key: run for key, run in self.held.items() if run.begun}
        self.epoch += 1
        self.start()

    # -- polling

    def _poll_in(self, seconds: float) -> None:
        """One poll, however many reasons there are for it; the last one says when."""
        self.ticket += 1
        self.later(seconds, self._poll_now, self.ticket)

    def _poll_now(self, ticket: int) -> None:
        if ticket == self.ticket:
            self._poll()

    def _poll(self) -> None:
        if self.polling:
            return
        n = self.slots - len(self.held)
        if n < 1:
            return
        self.polling = True
        self.asked = n
        self.nonce += 1
        poll = Poll(bot_id=self.name, session=self.session, nonce=self.nonce, n=n, token_key=TOKEN_KEY)
        self.world.call(self, "claim", lambda s: self._claim(s, poll), self._polled)

    def _claim(self, server: Server, poll: Poll) -> list[Claimed]:
        got: list[Claimed] = server.write(lambda tx, **given: claim.claim(tx, poll, **given))
        self.ledger.handed_out(server, poll, got)
        return got

    def _polled(self, reply: Any) -> None:
        self.polling = False
        if isinstance(reply, (WrongState, NotFound)):
            self._again()
            return
        if isinstance(reply, MyrmidonError):
            raise Violation(f"{self.name}: a poll was refused: {reply}")
        started = [run for claimed in reply if (run := self._got(claimed)) is not None]
        if started:
            self._begin(started)
        if reply:
            self.pause = self.poll_after
            self._poll_in(2.0 if len(reply) == self.asked else self.poll_after)  # fewer than asked were all there are
        else:
            self._poll_in(self.pause * (0.5 + self.world.rng.random()))
            self.pause = min(self.pause * 3, 50.0)

    def _got(self, claimed: Claimed) -> Held | None:
        """A new run, if it is to be begun at once."""
        key = (claimed.task_id, claimed.run)
        if key in self.held:
            return None
        self.held[key] = run = Held(claimed)
        rng = self.world.rng
        if rng.random() < 0.03:
            self._say(run, GiveBack(claimed.task_id, claimed.run, claimed.token), self._gone)
            return None
        if rng.random() < 0.02:
            self.later(40 * rng.random(), self._begin, [run])
            return None
        return run

    # -- running

    def _begin(self, runs: list[Held]) -> None:
        """Say that runs begin. One that may be tried again may begin, and even end, before that was heard."""
        items: list[Any] = []
        then: list[tuple[Held, Callable[[Held, report.Reply], None]]] = []
        for run in runs:
            if self.held.get(run.key) is not run:
                continue
            c = run.claimed
            items.append(Start(c.task_id, c.run, c.token))
            if c.work.retries and self.world.rng.random() < 0.15:
                run.begun = True
                then += [(run, self._ignored), (run, self._ended_one)]
                items.append(self._end(run))
            else:
                then.append((run, self._begun))
        if items:
            self._report(items, then)

    def _ignored(self, run: Held, reply: report.Reply) -> None:
        pass

    def _begun(self, run: Held, reply: report.Reply) -> None:
        if reply.stop and reply.outcome in (Outcome.ACCEPTED, Outcome.REPEATED):
            self._killed(run)
            return
        if reply.stop:
            self._drop(run.key)
            return
        run.begun = True
        self._resume(run)

    def _resume(self, run: Held) -> None:
        """Go on with a run that has begun: more of its output, then its end."""
        if run.last_word is not None:
            self._say(run, run.last_word, self._ended_one)
            return
        rng = self.world.rng
        task = run.claimed.work
        seconds = self.ledger.seconds_of(task.name, rng)
        if rng.random() < 0.3:
            for _ in range(rng.choice((1, 2, 2))):
                self.later(seconds * rng.random(), self._log, run.key)
        if rng.random() < 0.04:
            self.later(seconds * rng.random(), self._trigger, run.key)
        self.later(seconds, self._finish, run.key)

    def _trigger(self, key: tuple[int, int]) -> None:
        if key in self.held:
            self.spawn(self, key)

    def _log(self, key: tuple[int, int]) -> None:
        run = self.held.get(key)
        if run is None or run.last_word is not None:
            return
        offset, content = self.ledger.writes(key, self.world.rng)
        c = run.claimed
        item = LogBytes(task_id=c.task_id, run=c.run, token=c.token, stream=0, offset=offset, content=content)
        run.unsent += 1

        def kept(reply: Any) -> None:
            run.unsent -= 1
            if isinstance(reply, MyrmidonError):
                raise Violation(f"{self.name}: bytes of a log were refused: {reply}")
            if reply:
                self.ledger.kept(key, offset, content)
            else:
                self.ledger.refused_logs.add(key)

        self.world.call(self, "log", lambda s: self._append(s, item), kept)

    def _append(self, server: Server, item: LogBytes) -> bool:
        if not server.db.read(lambda tx: report.check_log(tx, self.name, item)):
            return False
        server.db.write(lambda tx: report.append_log(tx, item, self.world.rules))
        return True

    def _finish(self, key: tuple[int, int]) -> None:
        run = self.held.get(key)
        if run is None or run.last_word is not None:
            return
        if run.unsent:
            self.later(0.5, self._finish, key)
            return
        self._say(run, self._end(run), self._ended_one)

    def _end(self, run: Held) -> Any:
        """How it ends: drawn once, said as often as it takes."""
        rng = self.world.rng
        c = run.claimed
        where: dict[str, Any] = {"task_id": c.task_id, "run": c.run, "token": c.token}
        draw = rng.random()
        if draw < 0.04:
            kind = rng.choice(("bot_error", "upload_failed", "shutdown", "client_error", "disk_full"))
            run.last_word = Fault(**where, kind=kind, message="simulated")
        elif draw < 0.06:
            run.last_word = Finish(**where, hard_timeout=True, duration=rng.random())
        elif draw < self.ledger.failures_of(c.work.name):
            run.last_word = Finish(**where, exit_code=rng.choice((1, 1, 2, -9)), duration=rng.random())
        else:
            run.last_word = Finish(
                **where,
                exit_code=0,
                duration=rng.random(),
                outputs=self._outputs(run),
                cost_usd=0.01,
                stats=PerformanceStats(bot_overhead=0.5) if rng.random() < 0.3 else None,
            )
        return run.last_word

    def _outputs(self, run: Held) -> list[OutputValue]:
        """Every output tells which run wrote it, so that readers can say whether it was the winner."""
        name = run.claimed.work.func_name
        if name is None:
            return []
        text = f"{run.key[0]}.{run.key[1]}".encode()
        return [OutputValue("bytes", Payload(inline=text, size=len(text)))] * int(name[1:])

    # -- reporting

    def _say(self, run: Held, item: Any, then: Callable[[Held, report.Reply], None]) -> None:
        self._report([item], [(run, then)])

    def _report(self, items: list[Any], then: list[tuple[Held, Callable[[Held, report.Reply], None]]]) -> None:
        session = self.session

        def do(server: Server) -> list[report.Reply]:
            replies = server.write(lambda tx, **given: report.report(tx, self.name, items, session=session, **given))
            self.ledger.reported(self.name, items, replies)
            return replies

        def heard(replies: Any) -> None:
            if isinstance(replies, MyrmidonError):
                raise Violation(f"{self.name}: a report was refused: {replies}")
            for (run, what), reply in zip(then, replies, strict=True):
                if self.held.get(run.key) is run:
                    what(run, reply)

        self.world.call(self, "report", do, heard)

    def _gone(self, run: Held, reply: report.Reply) -> None:
        self._drop(run.key)

    def _ended_one(self, run: Held, reply: report.Reply) -> None:
        if reply.outcome in (Outcome.STALE, Outcome.UNKNOWN):
            self.world.faults.note("stale report")
        if reply.outcome == Outcome.CONFLICT:
            raise Violation(f"{self.name}: its one last word on {run.key} is said to contradict itself")
        self._drop(run.key)

    def _drop(self, key: tuple[int, int]) -> None:
        if self.held.pop(key, None) is not None and not self.polling:
            self.pause = self.poll_after
            self._poll_in(0.05)

    # -- heartbeats

    def _beat(self) -> None:
        self.later(self.beat_every, self._beat)
        if not self.held:
            return
        holds = [(*key, run.claimed.token) for key, run in sorted(self.held.items()) if run.begun]
        session = self.session

        def do(server: Server) -> Any:
            now = server.now
            return server.db.write(lambda tx: report.heartbeat(tx, self.name, holds, session=session, now=now))

        self.world.call(self, "heartbeat", do, self._heard)

    def _heard(self, reply: Any) -> None:
        if isinstance(reply, (WrongState, NotFound)):
            self._again()
            return
        if isinstance(reply, MyrmidonError):
            raise Violation(f"{self.name}: a heartbeat was refused: {reply}")
        for key in reply:
            run = self.held.get(key)
            if run is not None and run.last_word is None:
                self._killed(run)

    def _killed(self, run: Held) -> None:
        """Told to stop a run that is still its own, a bot stops it and says so: nobody else can."""
        c = run.claimed
        run.begun = True
        run.last_word = Finish(task_id=c.task_id, run=c.run, token=c.token, killed=True, exit_code=-15)
        self._say(run, run.last_word, self._ended_one)
