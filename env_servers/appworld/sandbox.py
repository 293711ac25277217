"""Takes a freshly forked child's rights away, with Linux namespaces, before it runs an agent's code.

AppWorld's own guard stops accidents, not intent: from inside a step one can read files, open sockets and start shells.
What stands here is what stops that. It runs in a single-threaded process that has just been forked, and fails loudly.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
)  # fmt: skip
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_SIGKILL = 9
_MB = 2**20

# Loaded before the fork: a child without rights may not be able to open libraries any more.
_libc: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


class SandboxError(Exception):
    """The kernel refuses to contain the child."""


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent dies."""
    _check(_call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl")


def enter_namespaces() -> None:
    """Leaves users (unless root), mounts, processes, network and IPC of the host behind; the next child is process 1.

    Raises:
        SandboxError: With what was refused.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = _NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS
    if uid != 0:
        flags |= _NEWUSER
    _check(_call("unshare", flags), "unshare")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def bind(source: Path, target: Path) -> None:
    """Shows a folder at another place as well."""
    _mount(str(source), str(target), None, _MS_BIND | _MS_REC)


def hide(folder: Path, keep: tuple[Path, ...] = (), mode: str = "755") -> None:
    """Covers a folder with an empty one, `keep`ing some files or folders below it."""
    kept = [(path, path.read_bytes()) for path in keep if path.is_file()]
    folders = [path for path in keep if path.is_dir()]
    aside = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in folders]
    _mount("tmpfs", str(folder), "tmpfs", _MS_NOSUID | _MS_NODEV, f"size=64m,mode={mode}")
    for path, content in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for path, descriptor in zip(folders, aside):  # noqa: B905 (as elsewhere in this package)
        path.mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{descriptor}", str(path), None, _MS_BIND | _MS_REC)
        os.close(descriptor)


def own_proc() -> None:
    """Shows process 1 of the namespace its own processes only."""
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV)


def give_up_rights(uid: int | None, memory_mb: int) -> None:
    """Becomes an ordinary user for good, with bounded memory, files and processes.

    Args:
        uid: Whom root becomes; `None` stays who it is and only drops the namespace's capabilities.
        memory_mb: Bound of the address space.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * _MB, memory_mb * _MB))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * _MB, 64 * _MB))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    for capability in range(64):
        if _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _drop_capabilities()
    _check(_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _check(_call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
    # A change of user clears it.
    die_with_parent()


def close_all_but(keep: set[int]) -> None:
    """Closes every inherited descriptor except `keep`, and points the standard ones nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        if standard not in keep:
            os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of the listing itself


def clear_environment(keep: tuple[str, ...], **different: str) -> None:
    """Leaves only the named variables, and `different` ones."""
    for name in set(os.environ) - set(keep):
        del os.environ[name]
    os.environ.update(different)


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    _check(_call("capset", header, data), "capset")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_call("mount", arguments[0], arguments[1], arguments[2], ctypes.c_ulong(flags), arguments[3]), "mount")


def _call(name: str, *arguments: object) -> int:
    if _libc is None:
        raise SandboxError("agents' code can be contained on Linux only")
    return int(getattr(_libc, name)(*arguments))


def _check(result: int, what: str) -> None:
    if result != 0:
        raise SandboxError(f"the kernel refuses {what}: {os.strerror(ctypes.get_errno())}")
