"""Runs the app on uvicorn: one process, its own socket, graceful drain, optional end when idle."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import resource
import socket
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from env_servers.errors import ServiceError
from env_servers.front.app import build_app
from env_servers.front.service import Service
from env_servers.front.settings import FrontSettings
from env_servers.pool.base import WorkerDiedError
from env_servers.pool.local import LocalLauncher
from env_servers.pool.managed import Launcher, ManagedPool

log = logging.getLogger(__name__)

# Longer than any client keeps an unused connection, so that it is the client who closes (no race with a request).
_KEEP_ALIVE = 120
_BACKLOG = 8192
_SHUTDOWN = 10


class StartError(Exception):
    """The server cannot start; the message says how to mend it."""


@dataclass(frozen=True)
class Listen:
    """Where and how to listen.

    Attributes:
        host: Address or name.
        port: Port, 0 for any free one.
        port_file: Where to write the port once requests are accepted.
        certificate: TLS certificate chain.
        key: TLS key.
    """

    host: str = "127.0.0.1"
    port: int = 8420
    port_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """Drains at the first signal and ends at once at the second."""

    def __init__(self, config: uvicorn.Config, service: Service, port_file: Path | None) -> None:
        super().__init__(config)
        self._service = service
        self._port_file = port_file
        self._draining = False
        self._drain_task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves from the start of the workers to their end.

        Raises:
            StartError: A benchmark could not be started.
        """
        try:
            await self._service.start()
            await super().serve(sockets)
        except (ServiceError, WorkerDiedError) as error:
            raise StartError(str(error)) from error
        finally:
            await self._service.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, then tells the port."""
        self._loop = asyncio.get_running_loop()
        _collect_less()
        await super().startup(sockets)
        if self.started and self._port_file is not None and sockets:
            _write_whole(self._port_file, f"{sockets[0].getsockname()[1]}\n")

    async def on_tick(self, counter: int) -> bool:
        """Also ends a server that nobody uses."""
        idle = self._service.settings.idle_exit
        if idle is not None and self._service.idle_seconds > idle:
            log.info("nobody is left, ending")
            return True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT."""
        if not self._draining and self._loop is not None and self.started:
            self._draining = True
            self._loop.call_soon_threadsafe(self._begin_drain)
        else:
            super().handle_exit(sig, frame)

    def _begin_drain(self) -> None:
        self._drain_task = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        log.info("draining", extra={"live": self._service.live})
        await self._service.drain()
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Returns a bound socket.

    Raises:
        StartError: The address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"Port {port} on {host} is in use; choose another with --port, or 0 for any.") from None
        raise StartError(f"Cannot listen on {host}, port {port}: {error.strerror}; choose another --host.") from None
    return listener


def serve(settings: FrontSettings, listen: Listen) -> None:
    """Serves until a signal, or until nobody is left.

    Raises:
        StartError: With the one sentence that mends it.
    """
    if settings.token is None and not is_loopback(listen.host):
        raise StartError(
            f"{listen.host} can be reached from other machines: set COPE_TOKEN or --token-file, or keep 127.0.0.1."
        )
    _raise_file_limit()
    listener = bind(listen.host, listen.port)
    port = listener.getsockname()[1]
    service = Service(settings, ManagedPool(settings.specs, settings.pool, _launcher(settings)))
    config = uvicorn.Config(
        build_app(service),
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the rate limit counts by the address that connects
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_SHUTDOWN,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
    )
    server = _Server(config, service, listen.port_file)
    try:
        server.run(sockets=[listener])
    finally:
        if listen.port_file is not None:
            _forget(listen.port_file, port)


def _launcher(settings: FrontSettings) -> Launcher:
    if settings.engine == "local":
        return LocalLauncher()
    try:
        from env_servers.pool.ray_engine import RayLauncher
    except ModuleNotFoundError as error:
        raise StartError(f"The engine `ray` needs {error.name}: run `pip install 'cope-gym[ray]'`.") from error
    return RayLauncher(settings.ray_address)


def _collect_less() -> None:
    """Spares the cyclic collector the modules, and most of its walks over thousands of sessions."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _forget(port_file: Path, port: int) -> None:
    """Removes the port file, unless it is by now that of the server that was started after this one."""
    with contextlib.suppress(FileNotFoundError):
        if port_file.read_text().strip() == str(port):
            port_file.unlink()


def _write_whole(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_text(text)
    aside.rename(path)
