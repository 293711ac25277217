"""The Hub's lines on the page about data, run as they stand there against the stand-in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hub_stand_in import TOKEN, stand_in

from cope_gym import trajectory
from cope_gym.skills.bank import SkillBank
from cope_gym.skills.skill import Skill
from cope_gym.trajectory import Trajectory, Turn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
_OURS = re.compile(r"<!-- not run: [^>]*test_data_page\.py[^>]* -->\n```(\w+)\n(.*?)```", re.DOTALL)


def test_the_lines_for_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the `data` extra is not installed")
    (language, shell), (other, program) = _OURS.findall(PAGE.read_text(encoding="utf-8"))
    assert (language, other) == ("bash", "python")
    said = [{"role": "user", "content": "A lab."}, {"role": "assistant", "content": "Action: look around"}]
    episode = Trajectory("sciworld", "boil/0", "train", messages=said, turns=[Turn(0, 1, "look around", (8, 19))])
    trajectory.write(tmp_path / "experts" / "easy" / "experts.jsonl", [episode])
    SkillBank(tmp_path / "skills.sqlite").add("sciworld", "boil/0", Skill("Look", "Look around first."), "Boil water")
    with stand_in() as hub:
        env = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
        }
        for command in (["bash", "-euo", "pipefail", "-c", shell], [sys.executable, "-c", program]):
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
            assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "boil/0 ['look around']"
    assert list(trajectory.read(tmp_path / "data" / "sciworld_train.jsonl")) == [episode]
    assert [item.skill.name for item in SkillBank(tmp_path / "other.sqlite").skills()] == ["Look"]
