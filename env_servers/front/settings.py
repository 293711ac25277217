"""All settings of a service, as data. Standard library only: the command line reads it before FastAPI is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from env_servers.pool.base import WorkerSpec
from env_servers.pool.managed import PoolLimits


@dataclass(frozen=True)
class FrontSettings:
    """What `cope serve` was told.

    Attributes:
        specs: The benchmarks to serve.
        token: Bearer token; `None` serves without one (loopback only).
        hosts: Host names that requests may name; `None` for any. Guards a loopback server without a token against web
            pages (DNS rebinding).
        max_sessions: Live sessions at a time; more are refused with 429.
        lease_seconds: How long a session lives without a request or heartbeat.
        max_body: Bytes of a request.
        max_action: Characters of an action's canonical JSON.
        rate_limit: Requests a second from one address, `None` for no limit.
        start_timeout: Seconds for the start of an episode.
        drain_seconds: How long live sessions may go on after SIGTERM.
        idle_exit: Seconds without a session or a request after which the service ends, `None` for never.
        state_dir: Where journals are kept, so that sessions outlive the service; `None` keeps them in memory.
        pool: Limits of the worker processes.
        engine: Where those run: `local`, on this machine, or `ray`, on a cluster.
        ray_address: The cluster, `None` for the one of this machine or of RAY_ADDRESS.
    """

    specs: tuple[WorkerSpec, ...]
    token: str | None = None
    hosts: frozenset[str] | None = None
    max_sessions: int = 256
    lease_seconds: float = 180.0
    max_body: int = 4 * 2**20
    max_action: int = 256 * 1024
    rate_limit: float | None = None
    start_timeout: float = 180.0
    drain_seconds: float = 0.0
    idle_exit: float | None = None
    state_dir: Path | None = None
    pool: PoolLimits = field(default_factory=PoolLimits)
    engine: str = "local"
    ray_address: str | None = None
