"""Where AppWorld's data is: the official download, or the self-made world, which is built at first use.

Run as a script it builds that world, into a folder if one is named: `cope install appworld` does so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "worker"))
    from main import bind_package  # pyright: ignore

    bind_package()

from env_servers.adapter import AdapterError

_HERE = Path(__file__).resolve().parent


def cache_home() -> Path:
    """Returns the folder for data; the same rule as that of `cope install`."""
    if named := os.environ.get("COPE_HOME"):
        return Path(named).expanduser().resolve()
    return Path("/var/cache/cope-gym") if os.geteuid() == 0 else Path.home() / ".cache" / "cope-gym"


def find(setting: str) -> tuple[Path, bool]:
    """Returns the folder that holds `data`, and whether it is the self-made world.

    Args:
        setting: A folder; empty for the official data in the cache folder if it is there, else the self-made world.

    Raises:
        AdapterError: The folder named holds no data.
    """
    if setting:
        root = Path(setting).expanduser().resolve()
        if not (root / "data" / "tasks").is_dir():
            raise AdapterError(
                "bad_option", f"{root} holds no AppWorld data: run `appworld download data --root {root}` first."
            )
        return root, _is_self_made(root)
    official = cache_home() / "data" / "appworld"
    if (official / "data" / "tasks").is_dir():
        return official, _is_self_made(official)
    return self_made(), True


def self_made() -> Path:
    """Returns the self-made world, built on first use, by one process, beside where it will be."""
    home = cache_home() / "data"
    target = home / f"appworld-self-made-{_source_digest()[:12]}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "appworld.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            aside = Path(tempfile.mkdtemp(prefix=".building-", dir=home))
            try:
                aside.chmod(0o755)
                subprocess.run([sys.executable, "-I", __file__, str(aside)], check=True, cwd=aside, umask=0o022)
                aside.rename(target)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
    return target


def digest(root: Path) -> str:
    """Returns a digest over the task lists, the databases and the tasks."""
    total = hashlib.sha256()
    for folder in ("datasets", "base_dbs", "tasks"):
        for path in sorted((root / "data" / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(str(path.relative_to(root)).encode())
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _is_self_made(root: Path) -> bool:
    version = root / "data" / "version.txt"
    return version.is_file() and version.read_text().strip() == "self-made"


def _source_digest() -> str:
    total = hashlib.sha256()
    for path in sorted((_HERE / "world").glob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()


def main() -> None:
    """Builds the self-made world."""
    if len(sys.argv) > 1:
        from env_servers.appworld.world.build import build

        build(Path(sys.argv[1]))
    else:
        self_made()


if __name__ == "__main__":
    main()
