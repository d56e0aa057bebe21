"""Histograms that cost little enough to be fed with every task, in the shape that Prometheus collects.

Those of the client library take a lock and a walk over the buckets for every value. These are fed by one thread each,
or may miss a value when two threads meet; a page is made from them when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily


class Histogram:
    """How often a value fell between two bounds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        so_far, buckets = 0, []
        for bound, count in zip([*map(str, map(float, self._bounds)), "+Inf"], self._counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)


class Histograms:
    """One family of a page: a histogram for each mix of labels that was seen."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> None:
        self._about = name, text, labels
        self._bounds = buckets
        self._seen: dict[tuple[str, ...], Histogram] = {} if labels else {(): Histogram(buckets)}

    def of(self, *labels: str) -> Histogram:
        found = self._seen.get(labels)
        if found is None:
            found = self._seen.setdefault(labels, Histogram(self._bounds))
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        name, text, labels = self._about
        family = HistogramMetricFamily(name, text, labels=labels)
        for labels_seen, histogram in list(self._seen.items()):
            histogram.add_to(family, labels_seen)
        yield family
