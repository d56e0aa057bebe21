"""The state of the link to the server, and the facts about the bot's work from which the next call is decided.

`LinkState` is changed only by the session thread, through its methods. `Work` is a snapshot that the session loop takes
before each decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    from myrmidon.bot.link.exchange import ExchangeRequest

ANY, FUNCTIONS, COMMANDS = "any", "functions", "commands"
"""Which kinds of tasks a claim accepts."""
CLAIMS = frozenset([ANY, FUNCTIONS, COMMANDS])

Health = Tuple[Optional[str], Optional[str]]
"""Why the bot is quarantined and why it is in maintenance; None where it is not."""


class Work(NamedTuple):
    """What the bot has to do, as read just before a decision.

    ``run`` is the running command, empty if there is none, and ``begun`` its start. ``queued``, ``finished``,
    ``returned``: the number of claimed commands, of results to report, and of tasks to give back. ``log_bytes``:
    undelivered output of ``log_run``, which goes on. ``unsent_log``: a run that has ended, whose log must be delivered
    before its result. ``directive``: update, restart, terminate or reboot is pending. ``health_changed``: the server
    does not know the health of this bot yet.

    ``has_slots``: the bot runs functions. ``functions``: the number of function runs that it has, and
    ``long_functions`` of those that take long; ``wanted``: how many more it could take; ``command_size``: how many
    commands to claim, if only commands are claimed; ``stuck_functions``: some wait behind long ones. ``unreported``:
    the server does not know yet that a long run has begun, or one whose log is ``unsent_log``. ``progress_due``: the
    progress of a function is to be reported.
    """

    run: str = ""
    begun: float = 0.0
    queued: int = 0
    finished: int = 0
    finished_at: float = 0.0
    returned: int = 0
    log_bytes: int = 0
    unsent_log: str = ""
    has_events: bool = False
    directive: bool = False
    signals: int = 0
    signal_at: float = 0.0
    claim_size: int = 1
    command_size: int = 1
    refill_threshold: int = 0
    health_changed: bool = False
    quarantined: bool = False
    has_slots: bool = True
    functions: int = 0
    long_functions: int = 0
    wanted: int = 1
    stuck_functions: bool = False
    unreported: bool = False
    log_run: str = ""
    progress_due: bool = False

    @property
    def has_short_functions(self) -> bool:
        """Whether functions run, or are about to, that are not known to take long."""
        return self.functions > self.long_functions

    @property
    def is_idle(self) -> bool:
        return not (self.run or self.queued or self.functions)

    @property
    def may_claim(self) -> bool:
        return not (self.directive or self.signals)


class LinkState:
    """``has_session``: the handshake was accepted. ``reported_health``: what it has said about the health of the bot.

    ``pending``: the exchange that is not answered. One that reports or claims something is repeated until it is.
    ``contact_at``: the server's last answer to a handshake, exchange or heartbeat; ``silent_s``: the time between the
    last two. ``failures``: failed calls since the last successful one; the next call is made ``retry_s`` after
    ``failed_at``. ``unreachable``: the server cannot take output now.

    ``drained``: for which kinds of claims the last one has found no more tasks. ``received``: the nonce of the last
    claim whose tasks were received; the server gives back the tasks of later ones. ``active_at``: when tasks were last
    received. ``poll_after``: no request waits for a stop before this time, because the server has answered the last one
    early and without news.

    ``log_sent_at``: the last upload of output; ``log_resume_at``: until then the server has asked to pause uploads of a
    running command; ``log_stream``: the stream whose turn it is. ``inline_logs``: output may be part of an exchange.
    ``events_after``: events could not be sent and are tried again then.
    """

    def __init__(self, now: float) -> None:
        self.has_session = False
        self.reported_health: Health = (None, None)
        self.poll_s = 30.0
        self.heartbeat_s = 10.0
        self.nonce = 0
        self.pending: ExchangeRequest | None = None
        self.contact_at = self.active_at = self.failed_at = now
        self.silent_s = 0.0
        self.failures = 0
        self.retry_s = 0.0
        self.unreachable = False
        self.drained: frozenset[str] = frozenset()
        self.received = 0
        self.poll_after = 0.0
        self.log_sent_at = 0.0
        self.log_resume_at = 0.0
        self.log_stream = 0
        self.inline_logs = True
        self.events_after = 0.0

    # ---------------------------------------------------------------- calls

    def session_begun(self, now: float, poll_s: float, heartbeat_s: float, health: Health = (None, None)) -> None:
        """A handshake was accepted. This does not end a series of failures: the next call may be rejected again."""
        self.has_session = True
        self.reported_health = health
        self.inline_logs = True
        self.poll_s = poll_s
        self.heartbeat_s = heartbeat_s
        self._record_contact(now)

    def answered(self, now: float) -> None:
        """An exchange or a heartbeat was answered."""
        self.succeeded()
        self._record_contact(now)

    def succeeded(self) -> None:
        """A call was answered."""
        self.failures = 0
        self.unreachable = False

    def failed(self, now: float) -> int:
        """A call has failed; the number of failures since the last success. The next call is made after ``retry_s``."""
        self.failures += 1
        self.failed_at = now
        self.drop_unneeded()
        return self.failures

    def drop_unneeded(self) -> None:
        """Forget a request that was not answered and that changes nothing: by now there may be more to send."""
        if self.pending is not None and not self.pending.must_repeat:
            self.pending = None

    def interrupted(self) -> None:
        """The pending request was given up, because there is something else to send.

        Reports must be repeated. The server gives back what a claim has taken whose answer was not received.
        """
        pending = self.pending
        if pending is None:
            return
        if pending.message.reports:
            pending.stop_waiting()
        else:
            self.pending = None

    def _record_contact(self, now: float) -> None:
        self.silent_s = now - self.contact_at
        self.contact_at = now

    def claim_answered(self, accepts: str, *, has_more: bool) -> None:
        """A claim was answered. If one that accepts everything finds nothing more, there is nothing of each kind."""
        if has_more:
            self.drained -= {accepts}
        else:
            self.drained |= CLAIMS if accepts == ANY else {accepts}

    # ---------------------------------------------------------------- output

    def log_sent(self, now: float) -> None:
        self.log_sent_at = now

    def piece_sent(self, now: float, stream: int, pause_s: float) -> None:
        """A piece of a log was uploaded; the next one is of the other stream, if that has output."""
        self.succeeded()
        self.log_sent_at = now
        self.log_stream = 1 - stream
        if pause_s:
            self.log_resume_at = now + pause_s
