"""What hostile code in a step can reach. AppWorld's own guard is passed by on purpose: it is not what contains."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from adapter_kit import AdapterWorker

import env_servers

pytestmark = pytest.mark.engine

# The guard forbids names and words; this fetches them in another way.
TOOLS = """
from pathlib import Path
system = __import__("o" + "s")
posix = system.sys.modules["po" + "six"]
native = __import__("ctyp" + "es").CDLL(None, use_errno=True)
def names(folder):
    return sorted(one.name for one in posix.scandir(folder))
def attempt(work):
    try:
        print("REACHED", work())
    except Exception as error:
        print("STOPPED", type(error).__name__)
"""


@pytest.fixture(scope="module")
def attack(worker: AdapterWorker) -> Any:
    """Runs code with `TOOLS` in one session and returns what it printed."""
    worker.start("attack", "pin_1")
    assert worker.step("attack", TOOLS)["text"] == "Execution successful."
    yield lambda code: worker.step("attack", code)["text"].strip()
    worker.end("attack")


def test_the_ground_truth_and_other_tasks_are_not_there(attack: Any) -> None:
    tasks = 'Path(system.environ["APPWORLD_ROOT"] + "/data/tasks")'
    assert attack(f"builtins.print(names({tasks}))") == "['pin_1']"
    assert attack(f"builtins.print(names({tasks} / 'pin_1'))") == "['dbs', 'specs.json']"
    assert attack(f'attempt(lambda: ({tasks} / "pin_1" / "ground_truth" / "answer.json").read_text())').startswith(
        "STOPPED"
    )
    assert attack(f'attempt(lambda: ({tasks} / "pin_2" / "specs.json").read_text())').startswith("STOPPED")


def test_the_solutions_of_the_self_made_world_are_not_there(attack: Any) -> None:
    source = Path(env_servers.__file__).parent / "appworld" / "world" / "intents.py"
    assert source.is_file()
    assert attack(f"attempt(lambda: Path({str(source)!r}).read_text())").startswith("STOPPED")


def test_what_hides_them_cannot_be_taken_away(attack: Any) -> None:
    tasks = 'system.fsencode(system.environ["APPWORLD_ROOT"] + "/data/tasks")'
    assert attack(f"attempt(lambda: native.umount2({tasks}, 2))") == "REACHED -1"
    assert attack("attempt(lambda: native.mount(b'tmpfs', b'/mnt', b'tmpfs', 0, None))") == "REACHED -1"


def test_there_is_no_network(attack: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f'attempt(lambda: __import__("sock" + "et").create_connection(("127.0.0.1", {port}), 2))'
        server.settimeout(1.0)
        assert "REACHED" not in attack(code)
        with pytest.raises(TimeoutError):
            server.accept()


def test_other_processes_cannot_be_seen_or_killed(attack: Any) -> None:
    numbers = attack("builtins.print([name for name in names('/proc') if name.isdigit()])")
    assert numbers == "['1']"
    attack(f"attempt(lambda: system.kill({os.getpid()}, 9))")
    assert attack("builtins.print(6 * 7)") == "42"


def test_it_is_nobody_and_stays_so(attack: Any) -> None:
    uid = int(attack("builtins.print(native.getuid())"))
    assert uid != 0
    assert attack("builtins.print(native.setuid(0))") == "-1"
    if os.geteuid() == 0:
        assert uid != int(os.geteuid()) and uid >= 61_000


def test_environment_and_home_hold_nothing(attack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = attack("builtins.print(sorted(system.environ))")
    assert set(eval(names)) <= {"APPWORLD_CACHE", "APPWORLD_ROOT", "HOME", "IPYTHONDIR", "LANG", "PATH", "LC_CTYPE"}
    secret = Path.home() / ".ssh"
    assert attack(f"builtins.print(Path({str(secret)!r}).exists())") == "False"


def test_files_outside_cannot_be_written(attack: Any) -> None:
    for place in ("/etc/cope-test", str(Path(env_servers.__file__).parent / "cope-test"), "/usr/cope-test"):
        assert "REACHED" not in attack(f"attempt(lambda: posix.open({place!r}, posix.O_CREAT | posix.O_WRONLY))")
        assert not Path(place).exists()


def test_no_file_of_the_service_is_open(attack: Any) -> None:
    code = """
base = system.environ["APPWORLD_ROOT"] + "/data/base_dbs/"
known = {posix.stat(base + name).st_ino for name in names(base)}
strange = []
for number in range(3, 256):
    try:
        state = posix.fstat(number)
    except OSError:
        continue
    # Sockets and what event loops wait with are its own; the engine keeps the base databases open.
    if state.st_mode >> 12 not in (0o14, 0o0) and state.st_ino not in known:
        strange.append(number)
builtins.print(strange)
"""
    assert attack(code) == "[]"


def test_a_shell_finds_nothing_more(attack: Any) -> None:
    code = """
def shell():
    pid = system.posix_spawn("/bin/sh", ["sh", "-c", "cat /etc/shadow > /tmp/out; kill -9 -1"], {})
    return pid
attempt(shell)
"""
    attack(code)
    assert attack("builtins.print(Path('/tmp/out').exists() and Path('/tmp/out').read_text())") in (
        "False",
        "Execution successful.",
    )


@pytest.mark.slow
def test_memory_and_time_are_bounded(appworld_python: Path) -> None:
    with AdapterWorker(appworld_python, "appworld", timeout_seconds=10) as worker:
        worker.start("bomb", "pin_1")
        assert "MemoryError" in worker.step("bomb", "x = bytearray(8 * 2**30)")["text"]
        assert "timed out" in worker.step("bomb", "while True:\n    pass")["text"]
        # AppWorld's own limit is caught and ignored here; the kill is not.
        endless = (
            "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
        )
        reply = worker.step("bomb", endless)
        assert (reply["reward"], reply["terminated"], reply["info"]["success"]) == (0.0, True, False)
