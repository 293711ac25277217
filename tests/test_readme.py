"""The README's Python runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.engine
def test_the_ten_lines_play_an_episode() -> None:
    pytest.importorskip("fastapi", reason="the `server` extra is not installed")
    subprocess.run([sys.executable, "-m", "cope_gym", "install", "sciworld"], check=True)
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1.0 True"


def test_what_the_readme_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README.read_text(encoding="utf-8"))
    assert len(links) >= 8
    assert [link for link in links if not (README.parent / link).exists()] == []
