"""The class of the page on TRL's `environment_factory` trains in TRL's own loop, with a random model."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

pytestmark = [pytest.mark.train, pytest.mark.engine, pytest.mark.slow]


def test_trl_trains_on_the_environment_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl", reason="the `train` extra is not installed")
    pytest.importorskip("fastapi", reason="the `server` extra is not installed")
    datasets = pytest.importorskip("datasets", reason="the `data` extra is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "train"))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    toy = importlib.import_module("toy")
    subprocess.run([sys.executable, "-m", "cope_gym", "install", "sciworld"], check=True)
    [source] = [b.text for b in blocks(ROOT / "docs/howto/openenv-trl.md") if b.word == "file"]
    names: dict[str, type] = {}
    exec(source, names)
    made: list[object] = []

    class Watched(names["ScienceWorld"]):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    template = Path(trl.__file__).with_name("chat_templates") / "qwen3.jinja"
    tokenizer = toy.make_tokenizer(template.read_text(encoding="utf-8"))
    row = {"prompt": [{"role": "user", "content": "Do the task."}], "task_id": "find-non-living-thing/0"}
    trainer = trl.GRPOTrainer(
        toy.make_model(tokenizer, max_position_embeddings=8192),
        args=trl.GRPOConfig(
            str(tmp_path),
            num_generations=2,
            per_device_train_batch_size=2,
            max_completion_length=8,
            max_steps=1,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=datasets.Dataset.from_list([row] * 2),
        processing_class=tokenizer,
        environment_factory=Watched,
    )
    trainer.train()
    assert trainer.state.global_step == 1
    [tool] = {tool.__name__ for tool in trainer.tools}
    assert tool == "act"
    first, second = made[:2]
    assert first.get_reward() == second.get_reward() < 1  # the same task, and a model that does nothing
    assert "find" in first.reset("find-non-living-thing/0") and first.act("look around")
    assert any("rewards" in name for row in trainer.state.log_history for name in row)
