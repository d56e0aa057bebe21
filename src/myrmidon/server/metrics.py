"""What Prometheus is told. Counters are kept as things happen; gauges are read when somebody asks."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from myrmidon.model.ids import Micros
from myrmidon.scheduler.policy import SECOND
from myrmidon.store.views.metrics import Gauges

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DURATION_S = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 86_400.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """One registry per server, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        histogram, gauge = partial(Histogram, registry=self.registry), partial(Gauge, registry=self.registry)
        self._requests = histogram(
            "myrmidon_request_seconds",
            "Time to answer a request; long polls and streams are not in it.",
            ["method", "path", "status"],
            buckets=_LATENCY_S,
        )
        self._writer_wait = histogram(
            "myrmidon_writer_wait_seconds", "Time a write waits for its turn.", buckets=_LATENCY_S
        )
        self._commits = histogram("myrmidon_commit_batch_size", "Writes in one commit.", buckets=_SIZES)
        self._pending = histogram("myrmidon_pending_seconds", "Age of a task when a bot takes it.", buckets=_DURATION_S)
        self._runs = histogram("myrmidon_run_seconds", "Duration of a run, by its end.", ["end"], buckets=_DURATION_S)
        self._depth = gauge("myrmidon_queue_depth", "Tasks ready to run, by pool.", ["pool"])
        self._age = gauge("myrmidon_queue_age_seconds", "How long the oldest of them waits, by pool.", ["pool"])
        self._tasks = gauge("myrmidon_tasks_unfinished", "Tasks that wait for bots or run, by state.", ["state"])
        self._bots = gauge("myrmidon_bots", "Bots by state.", ["state"])
        self._sweep_lag = gauge("myrmidon_sweep_lag_seconds", "Age of the oldest thing that is due.")
        self._outbox_age = gauge("myrmidon_outbox_age_seconds", "Age of the oldest event without a number.")
        self._skew = gauge("myrmidon_clock_skew_seconds", "This server's clock minus the database's.")
        self._at_work = gauge("myrmidon_calls_at_work", "Calls being answered now; waiting ones are not in it.")
        self._waiting = gauge("myrmidon_bots_waiting", "Bots whose polls this server holds.")
        counter = partial(Counter, registry=self.registry)
        self._refused = counter("myrmidon_calls_refused", "Calls turned away.", ["code"])
        self._config_refused = counter("myrmidon_config_refused", "Edits of the settings folder that were wrong.")
        self._release_failures = counter("myrmidon_release_failures", "Bots that could not live with a release.")
        self._reverted = counter("myrmidon_releases_reverted", "Releases of the bot that were taken back.")
        self._gave_up = histogram(
            "myrmidon_waited_in_vain_seconds",
            "How late the end of waiting was noticed, by what came of it: expired, next_slice, deadline.",
            ["end"],
            buckets=_LATENCY_S,
        )
        self._lost = histogram(
            "myrmidon_run_lost_seconds",
            "How long a lost run was silent before it was noticed, by why: bot_lost, not_started.",
            ["why"],
            buckets=_DURATION_S,
        )
        self._no_resource = counter("myrmidon_no_resource", "Tasks given up because no bot could run them.")

    # -- as things happen

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        self._requests.labels(method, path, str(status)).observe(seconds)

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def config_refused(self) -> None:
        self._config_refused.inc()

    def release_failed(self) -> None:
        self._release_failures.inc()

    def release_reverted(self) -> None:
        self._reverted.inc()

    def gave_up(self, end: str, late_s: float) -> None:
        """A slice or a task has waited long enough; that was noticed so late."""
        self._gave_up.labels(end).observe(late_s)

    def lost(self, why: str, silent_s: float) -> None:
        """A run was given up, so long after the last sign of life of it."""
        self._lost.labels(why).observe(silent_s)

    def no_resource(self, count: int) -> None:
        self._no_resource.inc(count)

    def wrote(self, waited_s: float) -> None:
        self._writer_wait.observe(waited_s)

    def committed(self, size: int) -> None:
        self._commits.observe(size)

    def claimed(self, pending_s: float) -> None:
        """A run was handed to a bot; its task had been submitted so long ago."""
        self._pending.observe(pending_s)

    def ended(self, end: str, duration_s: float) -> None:
        """A run has ended: succeeded, failed, timed_out or killed."""
        self._runs.labels(end).observe(duration_s)

    def at_work(self, calls: int, waiting: int) -> None:
        self._at_work.set(calls)
        self._waiting.set(waiting)

    # -- when somebody asks

    def show(self, numbers: Gauges, *, now: Micros, skew: Micros) -> bytes:
        """The whole page, with gauges as the database has them now."""
        for gauge in (self._depth, self._age, self._tasks, self._bots):
            gauge.clear()
        for pool, depth, oldest in numbers.pools:
            self._depth.labels(pool).set(depth)
            self._age.labels(pool).set(_age(oldest, now))
        for state, count in numbers.tasks:
            self._tasks.labels(state).set(count)
        for state, count in numbers.bots:
            self._bots.labels(state).set(count)
        self._sweep_lag.set(_age(numbers.oldest_due, now))
        self._outbox_age.set(_age(numbers.oldest_event, now))
        self._skew.set(skew / SECOND)
        return generate_latest(self.registry)


def _age(since: Micros | None, now: Micros) -> float:
    return max(0, now - since) / SECOND if since is not None else 0.0
