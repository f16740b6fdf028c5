"""The metrics of the service, as Prometheus reads them. docs/operating.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

MEDIA_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Gauges = Mapping[str, Mapping[str, float]]
"""Gauges at one moment: the name of each, such as `jobs`, and its value by label."""

_GAUGES = {
    "queue_depth": ("queue", "Requests and jobs that wait for a worker"),
    "queue_oldest_seconds": ("queue", "How long the oldest of them has waited"),
    "workers": ("state", "Worker processes, by state"),
    "jobs": ("state", "Jobs, by state"),
}


class Metrics:
    """The metrics of one application, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._requests = Counter("relayout_requests", "Answers", ("method", "route", "status"), registry=self._registry)
        self._seconds = Histogram(
            "relayout_request_seconds",
            "Seconds from the request line to the end of the answer",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._bytes = Counter("relayout_body_bytes", "Bytes of bodies", ("direction",), registry=self._registry)
        self._stages = Histogram(
            "relayout_stage_seconds",
            "Seconds of each stage of the work",
            ("stage",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._solves = Counter("relayout_solves", "Reports, by status", ("status",), registry=self._registry)
        about = "Workers that were replaced, by cause"
        self._restarts = Counter("relayout_worker_restarts", about, ("cause",), registry=self._registry)
        for cause in ("died", "stopped", "renewed"):
            # A rate counts from a value that was there before.
            self._restarts.labels(cause)

    def watch(self, *states: Callable[[], Gauges]) -> None:
        """Ask for these gauges each time that the metrics are read."""
        self._registry.register(_Watcher(states))

    def answered(self, method: str, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        """Count one answer; bytes are those of the bodies."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        self._bytes.labels("in").inc(received)
        self._bytes.labels("out").inc(sent)

    def worked(self, status: str, stages: Mapping[str, float]) -> None:
        """Count one report with the seconds of its stages."""
        self._solves.labels(status).inc()
        for stage, seconds in stages.items():
            self._stages.labels(stage).observe(seconds)

    def restarted(self, cause: str) -> None:
        """Count one worker that ended for this cause and is replaced."""
        self._restarts.labels(cause).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus's text format, of the media type MEDIA_TYPE."""
        return generate_latest(self._registry)


class _Watcher(Collector):
    def __init__(self, states: Sequence[Callable[[], Gauges]]) -> None:
        self._states = states

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The names alone, so that registering does not ask for values."""
        return [GaugeMetricFamily(f"relayout_{name}", about) for name, (_, about) in _GAUGES.items()]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        found = [state() for state in self._states]
        for name, (label, about) in _GAUGES.items():
            family = GaugeMetricFamily(f"relayout_{name}", about, labels=(label,))
            for state in found:
                for value, number in state.get(name, {}).items():
                    family.add_metric((value,), number)
            yield family
