"""Metrics for Prometheus. Counters and histograms are updated as things happen, gauges when the page is requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from myrmidon.model.ids import Micros
from myrmidon.scheduler.maintenance import OTHER_KINDS, VITAL, Step
from myrmidon.scheduler.policy import SECOND
from myrmidon.store.views.metrics import Gauges

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DURATION_S = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 86_400.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in a registry of its own: tests run several servers in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        histogram, gauge = partial(Histogram, registry=self.registry), partial(Gauge, registry=self.registry)
        self._requests = histogram(
            "myrmidon_request_seconds",
            "Time to answer a request, without long polls and streams.",
            ["method", "path", "status"],
            buckets=_LATENCY_S,
        )
        self.write_started = histogram(
            "myrmidon_writer_wait_seconds", "Time from a request for a write to its start.", buckets=_LATENCY_S
        ).observe
        self.committed = histogram("myrmidon_commit_batch_size", "Writes per commit.", buckets=_SIZES).observe
        self.claimed = histogram(
            "myrmidon_pending_seconds", "Time from the submission of a task to its first claim.", buckets=_DURATION_S
        ).observe
        self._runs = histogram(
            "myrmidon_run_seconds",
            "Duration of a run, by outcome: succeeded, failed, timed_out, killed.",
            ["outcome"],
            buckets=_DURATION_S,
        )
        self._depth = gauge("myrmidon_queue_depth", "Tasks that wait for a bot, by pool.", ["pool"])
        self._age = gauge(
            "myrmidon_queue_age_seconds", "Time since the submission of the oldest waiting task, by pool.", ["pool"]
        )
        self._tasks = gauge("myrmidon_tasks_unfinished", "Tasks that wait for a bot or run, by state.", ["state"])
        self._bots = gauge("myrmidon_bots", "Bots, by state; a bot can be in several.", ["state"])
        self._overdue = gauge(
            "myrmidon_maintenance_overdue_seconds",
            "How long the oldest row of a kind of maintenance is overdue; 0 if none is.",
            ["kind"],
        )
        self._outbox_age = gauge(
            "myrmidon_outbox_age_seconds",
            "Age of the oldest event that streams cannot deliver yet; 0 if there is none.",
        )
        self._sink_lag = gauge(
            "myrmidon_sink_lag_seconds", "Age of the oldest event that a sink has not confirmed, by sink.", ["sink"]
        )
        self._webhook_backlog = gauge("myrmidon_webhook_backlog", "Messages that wait for webhooks.")
        self._webhook_dropped = gauge(
            "myrmidon_webhook_dropped", "Messages that existing webhooks did not get because too many waited."
        )
        self._sink_events = gauge(
            "myrmidon_sink_lag_events", "Events that a sink has not confirmed, by sink.", ["sink"]
        )
        self._skew = gauge(
            "myrmidon_clock_skew_seconds", "This server's time minus the database's, or on SQLite the machine's."
        )
        self._retention_wait = gauge(
            "myrmidon_retention_wait_seconds",
            "Time until old tasks are deleted again after a long gap in time; 0 without such a gap.",
        )
        self._in_progress = gauge(
            "myrmidon_calls_in_progress", "Calls being answered now, without long polls and streams."
        )
        self._bodies = gauge("myrmidon_bodies_arriving", "Calls whose request body is arriving now.")
        self._waiting = gauge("myrmidon_bots_waiting", "Bots whose long polls this server holds.")
        counter = partial(Counter, registry=self.registry)
        self._call_errors = counter("myrmidon_call_errors", "Calls answered with an error, by error code.", ["code"])
        self._config_rejected = counter("myrmidon_config_rejected", "Invalid versions of the configuration folder.")
        self._release_failures = counter("myrmidon_release_failures", "Reports of bots that rejected a release.")
        self._reverted = counter("myrmidon_releases_reverted", "Bot releases that were reverted.")
        self._expiry_lag = histogram(
            "myrmidon_expiry_detection_lag_seconds",
            "How late the server detected that a slice or task had waited too long,"
            " by outcome: expired, next_slice, deadline.",
            ["outcome"],
            buckets=_LATENCY_S,
        )
        self._lost = histogram(
            "myrmidon_run_lost_seconds",
            "How long a lost run had been silent when the server detected it, by reason: bot_lost, not_started.",
            ["reason"],
            buckets=_DURATION_S,
        )
        self._handled = counter("myrmidon_maintenance_handled", "Rows and chunks handled by maintenance.", ["kind"])
        self._work_s = counter("myrmidon_maintenance_seconds", "Time spent on maintenance.", ["kind"])
        self._skipped = counter(
            "myrmidon_maintenance_skipped", "Steps of maintenance that met a lock and were left for later.", ["kind"]
        )
        self._failed = counter("myrmidon_maintenance_failures", "Steps of maintenance that failed.", ["kind"])
        self._relayed = counter("myrmidon_relayed", "Messages that a sink has confirmed, by sink.", ["sink"])
        self._relay_failures = counter("myrmidon_relay_failures", "Failed deliveries to a sink, by sink.", ["sink"])
        self._no_resource = counter("myrmidon_no_resource", "Tasks that ended because no bot could run them.")

    # -- counters and histograms

    def requests(self, method: str, path: str, status: int) -> Callable[[float], None]:
        """Takes the seconds of each request of a route with this status."""
        observe: Callable[[float], None] = self._requests.labels(method, path, str(status)).observe
        return observe

    def call_failed(self, code: str) -> None:
        self._call_errors.labels(code).inc()

    def config_rejected(self) -> None:
        self._config_rejected.inc()

    def release_failed(self) -> None:
        self._release_failures.inc()

    def release_reverted(self) -> None:
        self._reverted.inc()

    def maintained(self, step: Step, seconds: float) -> None:
        """Record a step of maintenance, how long it took, and how late it has detected what."""
        self._handled.labels(step.kind).inc(step.n)
        self._work_s.labels(step.kind).inc(seconds)
        self._skipped.labels(step.kind).inc(step.skipped)
        self._failed.labels(step.kind).inc(step.error is not None)
        for what, delay in step.delays:
            histogram = self._lost if step.kind == "runs" else self._expiry_lag
            histogram.labels(what).observe(delay / SECOND)

    def no_resource(self, count: int) -> None:
        self._no_resource.inc(count)

    def relayed(self, sink: str, count: int) -> None:
        self._relayed.labels(sink).inc(count)

    def relay_failed(self, sink: str) -> None:
        self._relay_failures.labels(sink).inc()

    def run_ended(self, outcome: str, duration_s: float) -> None:
        """Record a finished run: succeeded, failed, timed_out or killed."""
        self._runs.labels(outcome).observe(duration_s)

    def set_in_progress(self, calls: int, *, waiting: int, bodies: int) -> None:
        self._in_progress.set(calls)
        self._bodies.set(bodies)
        self._waiting.set(waiting)

    # -- gauges

    def render(
        self,
        values: Gauges,
        *,
        now: Micros,
        skew: Micros,
        overdue: Mapping[str, Micros] | None = None,
        retention_waits_until: Micros | None = None,
    ) -> bytes:
        """The page for Prometheus, with gauges set to the given values."""
        for gauge in (self._depth, self._age, self._tasks, self._bots, self._sink_lag, self._sink_events):
            gauge.clear()
        for pool, depth, oldest in values.pools:
            self._depth.labels(pool).set(depth)
            self._age.labels(pool).set(_age(oldest, now))
        for state, count in values.tasks:
            self._tasks.labels(state).set(count)
        for state, count in values.bots:
            self._bots.labels(state).set(count)
        for sink in values.sinks:
            self._sink_lag.labels(sink.name).set(_age(sink.oldest_at, now))
            self._sink_events.labels(sink.name).set(sink.num_events)
        self._webhook_backlog.set(values.webhook_backlog[0])
        self._webhook_dropped.set(values.webhook_backlog[1])
        for kind in VITAL + OTHER_KINDS:
            self._overdue.labels(kind).set(_age((overdue or {}).get(kind), now))
        self._outbox_age.set(_age(values.oldest_event, now))
        self._skew.set(skew / SECOND)
        self._retention_wait.set(max(0, (retention_waits_until or now) - now) / SECOND)
        return generate_latest(self.registry)


def _age(since: Micros | None, now: Micros) -> float:
    return max(0, now - since) / SECOND if since is not None else 0.0
