"""The local server that `gym.make` starts when it is given no address.

One server for each user, environment, version and settings: a lock file sees to it that ranks and processes share it.
It leaves some seconds after its last client. Started as a command, so that this package never imports the service.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import hashlib
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from cope_gym.client import Client, Session, addresses
from cope_gym.errors import CopeError, InfrastructureError, InputError, LostSession
from cope_gym.transport import Patience

IDLE_EXIT = 20.0
"""Seconds without a client after which a local server leaves."""
LEASE = 60.0
"""Seconds after which the sessions of a killed client are freed."""
START_TIMEOUT = 120.0


@dataclass(frozen=True)
class Address:
    """Where a local server listens."""

    url: str
    token: str
    pid: int


def cache_home() -> Path:
    """Returns the folder that environments are installed in: `$COPE_HOME`, else a system or user cache folder."""
    if named := os.environ.get("COPE_HOME"):
        return Path(named).expanduser().resolve()
    return Path("/var/cache/cope-gym") if os.geteuid() == 0 else Path.home() / ".cache" / "cope-gym"


def installed(env: str) -> bool:
    """Returns whether `cope install` has made an environment for a benchmark here."""
    return any((cache_home() / "envs" / env).glob("*/bin/python"))


@dataclass(frozen=True)
class LocalServer:
    """A server of this machine and user.

    Attributes:
        env: Short environment name.
        settings: Server settings of the benchmark, as `cope serve --set env.key=value` takes them.
        adapter: `module:Class` of a third-party adapter.
        idle_exit: Seconds without a client after which it leaves.
        lease: Seconds after which the sessions of a killed client are freed.
    """

    env: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    adapter: str | None = None
    idle_exit: float = IDLE_EXIT
    lease: float = LEASE

    def address(self) -> Address:
        """Returns where it listens, starting it where needed.

        Raises:
            InfrastructureError: It cannot be started; the message quotes its log.
        """
        found = self.running()
        if found is None:
            with self._locked():
                found = self.running() or self._start()
        return found

    def running(self) -> Address | None:
        """Returns where it listens, if it does."""
        try:
            found = Address(**json.loads(self._file("json").read_text()))
        except (OSError, ValueError, TypeError):
            return None
        # The server removes its port file when it leaves; the port may be somebody else's by now.
        return found if self._file("port").exists() and _alive(found.pid) and _listens(found.url) else None

    @property
    def log(self) -> Path:
        """Its log file."""
        return self._file("log")

    def _file(self, kind: str) -> Path:
        from cope_gym import __version__

        parts = [getpass.getuser(), __version__, sys.executable, *self._options()]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
        return cache_home() / "servers" / str(os.geteuid()) / f"{self.env}-{key}.{kind}"

    def _options(self) -> list[str]:
        options = ["--idle-exit", f"{self.idle_exit:g}", "--lease", f"{self.lease:g}"]
        options += ["--adapter", f"{self.env}={self.adapter}"] if self.adapter else ["--env", self.env]
        for name, value in sorted(self.settings.items()):
            options += ["--set", f"{self.env}.{name}={json.dumps(value)}"]
        return options

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        lock = self._file("lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = lock.open("w")
        except OSError as error:
            raise InfrastructureError(
                f"{lock.parent} cannot be written ({error.strerror}): set COPE_HOME to a folder of your own.",
                type="server_start",
            ) from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _start(self) -> Address:
        require_server_extra()
        port_file = self._file("port")
        port_file.unlink(missing_ok=True)
        token = secrets.token_urlsafe(32)
        _write_private(self._file("token"), token)
        command = [sys.executable, "-m", "env_servers.front", *self._options(), "--port", "0"]
        command += ["--port-file", str(port_file), "--token-file", str(self._file("token"))]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the client; others may use the server
            )
        url = f"http://127.0.0.1:{self._wait(process, port_file)}"
        process.returncode = 0  # it outlives us on purpose: no warning that it still runs
        _write_private(self._file("json"), json.dumps({"url": url, "token": token, "pid": process.pid}))
        return Address(url, token, process.pid)

    def _wait(self, process: subprocess.Popen[bytes], port_file: Path) -> int:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if port_file.exists():
                return int(port_file.read_text())
            if process.poll() is not None:
                raise self._failed(f"ended with status {process.returncode}")
            time.sleep(0.02)
        process.kill()
        raise self._failed(f"was not ready within {START_TIMEOUT:g} s")

    def _failed(self, what: str) -> CopeError:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        said = lines[-1] if lines else "nothing"
        if said.startswith("There is no environment"):
            return InputError(said, type="unknown_env")
        if said.endswith("`.") or "cope install" in said:  # the server's own sentence has the fix in it
            return InfrastructureError(said, type="not_installed" if "cope install" in said else "server_start")
        return InfrastructureError(
            f"The local server for {self.env} {what}; it said: {said} (its log: {self.log})", type="server_start"
        )


def _write_private(path: Path, text: str) -> None:
    aside = path.with_suffix(path.suffix + ".new")
    with open(aside, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as out:
        out.write(text)
    aside.rename(path)


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # an ended child of ours would else count as alive
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=1.0).close()
    except OSError:
        return False
    return True


def require_server_extra() -> None:
    """Refuses to go on where a server cannot run.

    Raises:
        InfrastructureError: The `server` extra is not installed.
    """
    missing = [name for name in ("env_servers", "fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InfrastructureError(
            "No server address was given and none can be started here: "
            "run `pip install 'cope-gym[server]'`, or name one with base_url= or COPE_BASE_URL.",
            type="no_server",
        )


class LocalClient(Client):
    """A client of a local server, which it starts when first needed and again when it has gone.

    Args:
        server: The server, or the short name of an environment.
        patience: How long calls wait.
    """

    def __init__(self, server: LocalServer | str, patience: Patience | None = None) -> None:
        require_server_extra()
        self.server = LocalServer(server) if isinstance(server, str) else server
        super().__init__("http://127.0.0.1", "", patience)

    def _open(self) -> None:
        self._warm = self.server.idle_exit / 4
        super()._open()
        self._transport.diagnose = self._diagnose

    def create(self, env: str, task_id: str | None = None, **kwargs: Any) -> Session:
        """Starts an episode; see `Client.create`."""
        try:
            return super().create(env, task_id, **kwargs)
        except LostSession:  # the server has left; `_servers` starts another
            return super().create(env, task_id, **kwargs)

    def _servers(self) -> list[str]:
        address = self.server.address()
        self._transport.token = address.token
        self._keeper.keep_warm(address.url)
        self.base_urls = [address.url]
        return self.base_urls

    def _diagnose(self, error: CopeError) -> CopeError:
        if error.type != "connection" or self.server.running() is not None:
            return error
        return LostSession(
            f"The local server of this episode has ended (its log: {self.server.log}); `reset` starts another.",
            type="unknown_session",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "server": self.server}


_shared: WeakValueDictionary[tuple[Any, ...], Client] = WeakValueDictionary()
_sharing = threading.Lock()
os.register_at_fork(before=_sharing.acquire, after_in_parent=_sharing.release, after_in_child=_sharing.release)


def connect(env: str | None, base_url: str | Sequence[str] | None = None, token: str | None = None) -> Client:
    """Returns this process's client for an address, made on first use.

    Args:
        env: Environment whose local server is meant where no address is given.
        base_url: A server or several; by default `$COPE_BASE_URL`, else the local server of `env`.
        token: Bearer token; by default `$COPE_TOKEN`.

    Raises:
        InfrastructureError: No address was given and no local server can be started.
    """
    named = base_url if base_url is not None else os.environ.get("COPE_BASE_URL")
    urls = tuple(addresses(named)) if named or env is None else ()
    token = token if token is not None else os.environ.get("COPE_TOKEN")
    key = (urls, token) if urls else (env, cache_home())
    with _sharing:
        client = _shared.get(key)
        if client is None:
            client = Client(urls, token) if urls or env is None else LocalClient(env)
            _shared[key] = client
    return client
