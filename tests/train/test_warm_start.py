"""From the experts of a real service to a cloned adapter to reinforcement learning that goes on from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from toy import make_model, make_tokenizer
from trl import SFTConfig

from cope_gym import trajectory
from cope_gym.cli import main
from cope_gym.errors import InputError
from cope_gym.evaluate.panels import Panel
from cope_gym.server import LocalClient, LocalServer
from cope_gym.trajectory import Trajectory, Turn
from cope_train import train
from cope_train.rollout.template import ChatTemplate
from cope_train.run_folder import read_metrics
from cope_train.sft import buffer_of, clone
from cope_train.trainer import CoPETrainer

pytestmark = pytest.mark.train
ROOT = Path(__file__).resolve().parents[2]
CPU = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True}
LORA = {"use_peft": True, "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": ["all-linear"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("COPE_HOME", str(tmp_path_factory.mktemp("home")))
        with LocalClient(LocalServer("toy", adapter="tests.gym.toy:ToyAdapter", idle_exit=20)) as warm:
            warm.envs()
            yield warm.server


@pytest.fixture
def cope(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    address = server.address()
    monkeypatch.setenv("COPE_BASE_URL", address.url)
    monkeypatch.setenv("COPE_TOKEN", address.token)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["cope", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code

    return run


def write(name: str, **options: object) -> str:
    Path(name).write_text(yaml.safe_dump(options))
    return name


def _saves_and_is_interrupted(save: Callable[..., None]) -> Callable[..., None]:
    def saved(*args: Any, **kwargs: Any) -> None:
        save(*args, **kwargs)
        raise KeyboardInterrupt

    return saved


def test_experts_cloning_and_reinforcement_learning_from_the_adapter(
    cope: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    Path("prompt.txt").write_text("Walk.")
    cope("data", "experts", "toy", "--limit", "4", "--system-prompt", "prompt.txt", "--out", "experts")

    sft = write(
        "sft.yaml", model_name_or_path="tiny", trajectories="experts/experts.jsonl", output_dir="runs/warm",
        max_steps=4, learning_rate=1e-2, per_device_train_batch_size=2, save_strategy="no", **CPU, **LORA,
    )  # fmt: skip
    cope("train", sft, "--stage", "sft", "seed=7")
    before = load_file("runs/warm/adapter_model.safetensors")
    assert any(values.abs().sum() > 0 for name, values in before.items() if "lora_B" in name)
    card = Path("runs/warm/README.md").read_text()
    assert "**Cloned**: 4 episodes (16 turns) of toy, by gold." in card and '* adapter_version: `"1"`' in card
    assert (
        "**Base model**: tiny; trained: a LoRA adapter of it (rank 4, alpha 8)" in card
        and "One run with one seed (7)" in card
    )
    assert "This run evaluated nothing." in card and "Nothing is known of how well it plays." in card
    assert str(Path.cwd()) not in card

    Path("toy_panel.json").write_text(
        Panel("toy", "toy_panel", "train", ("hall/train-0", "hall/train-1")).sealed().to_json()
    )
    rl = write(
        "rl.yaml", stage="rl", model_name_or_path="runs/warm", output_dir="runs/rl", environment="toy",
        system_prompt="prompt.txt", train_panel="toy_panel.json", eval_panel="toy_panel.json", reward="score",
        max_turns=3, max_turn_tokens=8, num_generations=4, per_device_train_batch_size=4,
        gradient_accumulation_steps=1, max_steps=2, learning_rate=1e-2, beta=0.01, save_strategy="steps", save_steps=1,
        eval_strategy="steps", eval_steps=1, **CPU, **LORA,
    )  # fmt: skip
    start = train.build(*train.parse(["--config", rl]))
    state = start.model.state_dict()
    for name, values in before.items():
        where = name.replace(".weight", ".default.weight")
        assert torch.equal(state[where].float(), values.float()), name
    assert any(p.requires_grad for name, p in start.model.named_parameters() if ".default." in name)

    cope("train", rl)
    steps = [line for line in read_metrics(Path("runs/rl/metrics.jsonl")) if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2]
    after = load_file("runs/rl/adapter_model.safetensors")
    assert after.keys() == before.keys()  # the frozen reference adapter is not what is saved as the model
    for used in ("rl", "warm"):  # the cloned model, too
        with pytest.raises(InputError, match=rf"runs/{used} holds a run already .*resume_from_checkpoint=true"):
            train.train(["--config", *([rl] if used == "rl" else [sft, "--stage", "sft"])])
    monkeypatch.setattr(CoPETrainer, "_save_checkpoint", _saves_and_is_interrupted(CoPETrainer._save_checkpoint))
    with pytest.raises(KeyboardInterrupt):
        train.train(["--config", rl, "--output_dir", "runs/broken"])
    said = capsys.readouterr().err
    assert "Interrupted after step 1 of 2." in said and "goes on from runs/broken/checkpoint-1" in said
    [episode, *_] = trajectory.read("runs/rl/trajectories/step_000000.jsonl")
    assert episode.versions["adapter_version"] == "1" and episode.task_id in ("hall/train-0", "hall/train-1")
    result = json.loads(Path("runs/rl/evaluations/step_000002/result.json").read_text())
    assert result["versions"]["adapter_version"] == "1"
    card = Path("runs/rl/README.md").read_text()
    assert Path("runs/rl/checkpoint-2/README.md").is_file()
    assert "| step 000002 | toy_panel | 2 | 1 | 0.000 [" in card and "with so few the intervals are wide" in card
    assert "**Started from** the adapter warm." in card and "the split that it was trained on" in card
    assert "2 of toy, split train" in card and "reward: score" in card and "output_dir" not in card
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "peft"


def test_the_loss_is_on_the_agent_s_tokens_only(tmp_path: Path) -> None:
    """What the model is trained on is looked up in the batch that it gets."""
    tokenizer = make_tokenizer()
    said = ["open door", "take key"]
    messages = [{"role": "system", "content": "Play."}]
    for text in said:
        messages += [
            {"role": "user", "content": f"You see {text}."},
            {"role": "assistant", "content": f"Action: {text}"},
        ]
    episodes = [Trajectory("toy", "a", messages=messages[: 2 * n + 1], success=True) for n in (1, 2)]
    args = SFTConfig(str(tmp_path), max_steps=1, per_device_train_batch_size=2, save_strategy="no", **CPU)
    trainer = clone(make_model(tokenizer), tokenizer, episodes, args)
    [batch] = list(trainer.get_train_dataloader())
    learnt = [
        "".join(tokenizer.convert_ids_to_tokens(row[labels != -100]))
        for row, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    ]
    turns = [tokenizer.encode(f"Action: {text}") for text in said]
    wanted = {
        "".join(tokenizer.convert_ids_to_tokens([i for t in turns[:n] for i in [*t, tokenizer.eos_token_id]]))
        for n in (1, 2)
    }
    assert set(learnt) == wanted
    labels = batch["labels"]
    assert torch.equal(labels[labels != -100], batch["input_ids"][labels != -100])


def test_assistant_messages_before_the_first_turn_are_not_learnt() -> None:
    template = ChatTemplate(make_tokenizer())
    messages = [
        {"role": "user", "content": "Rules."},
        {"role": "assistant", "content": "OK."},
        {"role": "user", "content": "A door."},
        {"role": "assistant", "content": "Action: open door"},
    ]
    buffer = buffer_of(Trajectory("toy", "a", messages=messages, turns=[Turn(0, 3, "open door")]), template)
    learnt = template.tokenizer.decode([i for i, m in zip(buffer.ids, buffer.mask, strict=True) if m])
    assert learnt == "Action: open door<|im_end|>" and "OK." in template.tokenizer.decode(buffer.ids)


@pytest.mark.parametrize(
    ("options", "line", "sentence"),
    [
        ({}, ["--stage", "pretrain"], "stage is one of rl, sft, not 'pretrain'"),
        ({"stage": "sft"}, [], "name a model"),
        ({"stage": "sft", "model_name_or_path": "quickstart"}, [], "cope data experts"),
        ({"stage": "sft", "environment": "toy"}, [], "there is no option 'environment'"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], line: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write("x.yaml", output_dir="runs/x", **options, **CPU)
    with pytest.raises(InputError, match=sentence):
        train.train(["--config", path, *line])


def test_the_shipped_warm_start_is_valid() -> None:
    path = str(ROOT / "cope_train" / "configs" / "warm_start.yaml")
    assert train.stage_of(["--config", path]) == "sft"
    args, model = train.parse(["--config", path, "--bf16", "false", "--use_cpu", "true"], kind=train.CloneConfig)
    assert model.use_peft and args.only_success and args.max_length == 8192
