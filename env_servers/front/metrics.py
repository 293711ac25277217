"""Prometheus metrics of one service, in a registry of its own."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from env_servers.pool.base import Pool

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)


class Metrics:
    """Counts and times what the service does; `text` also reads the pool's present state."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._opened = Counter("cope_sessions_opened", "Sessions started", ["env"], registry=self.registry)
        self._closed = Counter(
            "cope_sessions_closed", "Sessions ended, by reason", ["env", "reason"], registry=self.registry
        )
        self._live = Gauge("cope_sessions_live", "Sessions that can be stepped", registry=self.registry)
        self._known = Gauge("cope_sessions_known", "Sessions with a lease", registry=self.registry)
        self._steps = Histogram(
            "cope_step_seconds", "Execution of one step", ["env"], buckets=_SECONDS, registry=self.registry
        )
        self._requests = Histogram(
            "cope_request_seconds", "HTTP requests", ["method", "status"], buckets=_SECONDS, registry=self.registry
        )
        self._errors = Counter("cope_errors", "Problem documents, by type", ["type"], registry=self.registry)
        self._rebuilt = Counter("cope_sessions_rebuilt", "Sessions played again", ["env"], registry=self.registry)
        self._deaths = Gauge("cope_worker_deaths", "Workers that ended unasked", registry=self.registry)
        self._workers = Gauge("cope_workers", "Worker processes", ["env"], registry=self.registry)
        self._of_worker = {
            name: Gauge(f"cope_worker_{name}{unit}", text, ["env", "worker"], registry=self.registry)
            for name, unit, text in (
                ("rss", "_bytes", "Resident memory with children"),
                ("sessions", "", "Sessions with a place"),
                ("calls", "", "Calls in execution"),
                ("alone", "", "1 while reserved for the second try of a step"),
            )
        }

    def opened(self, env: str) -> None:
        """Counts a started session."""
        self._opened.labels(env).inc()

    def closed(self, env: str, reason: str) -> None:
        """Counts an ended session."""
        self._closed.labels(env, reason).inc()

    def error(self, type: str) -> None:
        """Counts a problem document."""
        self._errors.labels(type).inc()

    def rebuilt(self, env: str) -> None:
        """Counts a session that was played again."""
        self._rebuilt.labels(env).inc()

    def request(self, method: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self._requests.labels(method, str(status)).observe(seconds)

    @contextmanager
    def step_seconds(self, env: str) -> Generator[None]:
        """Times a step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._steps.labels(env).observe(time.perf_counter() - began)

    def text(self, pool: Pool, live: int, known: int) -> bytes:
        """Returns everything in Prometheus' text form."""
        self._live.set(live)
        self._known.set(known)
        self._deaths.set(pool.deaths)
        self._workers.clear()
        for gauge in self._of_worker.values():
            gauge.clear()
        for worker in pool.stats():
            self._workers.labels(worker["env"]).inc()
            for name, gauge in self._of_worker.items():
                gauge.labels(worker["env"], worker["worker"]).set(worker[name])
        return generate_latest(self.registry)
