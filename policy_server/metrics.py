"""Metrics for Prometheus, served at `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # upper bounds
SIZES = (1, 2, 4, 8, 16, 32, 64)  # jobs of a batch


class Metrics:
    """The server's counters and histograms, in a registry of their own, with the process's memory and CPU time."""

    CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        # A registry of its own: the library's global one would refuse a second server in this process, as tests make.
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # process_resident_memory_bytes, process_cpu_seconds_total, …
        self.requests = Counter(
            "policy_requests",
            "Requests for an action by transport and status",
            ("transport", "status"),
            registry=registry,
        )
        self.refusals = Counter("policy_refused", "Refused requests by reason", ("code",), registry=registry)
        # Stages of a request (decode, queue, model, total), and `batch`, a whole model call.
        self.stages = Histogram("policy_stage_seconds", "Time by stage", ("stage",), buckets=SECONDS, registry=registry)
        self.batches = Histogram("policy_batch_size", "Requests in a model call", buckets=SIZES, registry=registry)
        self.cache = Counter("policy_cache", "Look-ups of identical observations", ("result",), registry=registry)
        self._loads = Counter("policy_model_loads", "Models loaded and unloaded", ("model", "what"), registry=registry)
        self._bytes = Gauge("policy_models_bytes", "Memory of the loaded models", registry=registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read at each request of `/metrics`."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def model(self, name: str, what: str, total_bytes: int) -> None:
        """Count that a model was `loaded` or `unloaded` (`what`); all loaded models have `total_bytes`."""
        self._loads.labels(name, what).inc()
        self._bytes.set(total_bytes)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
