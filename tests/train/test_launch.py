"""`cope launch`: variables, prerequisites, agreement with the server, a whole run, and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy import make_model, make_tokenizer

from cope_gym.cli import main
from cope_gym.errors import InputError
from cope_train import prerequisites, variables
from cope_train.config import CoPEConfig
from cope_train.launch import Order, agreement, describe, plan
from cope_train.run_folder import read_metrics

pytestmark = pytest.mark.train
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    make_model(tokenizer, max_position_embeddings=4096).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write(folder: Path, model: Path, **options: Any) -> Path:
    settings: dict[str, Any] = {
        "model_name_or_path": str(model),
        "output_dir": str(folder / "run"),
        "environment": "toy",
        "adapter": "tests.gym.toy:ToyAdapter",
        "use_cpu": True,
        "bf16": False,
        "max_turns": 2,
        "max_turn_tokens": 4,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "num_generations": 2,
        "lr_scheduler_type": "constant",
        "max_steps": 2,
        "save_steps": 1,
        "report_to": "none",
        "max_failed_share": 1.0,
    }
    path = folder / "config.yaml"
    (folder / "prompt.md").write_text("Walk to the end.")
    settings["system_prompt"] = str(folder / "prompt.md")
    path.write_text(yaml.safe_dump(settings | options))
    return path


def test_the_variables_of_cope_are_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    found = variables.overrides(
        {
            "ACTION_FORECAST_ENABLE": "True",
            "ACTION_FORECAST_K": "4",
            "ACTION_FORECAST_GROUP_NORM": "True",
            "ACTION_FORECAST_NULL_TASKS_FILE": "",
            "PLAN_FORECAST_COEF": "0.02",
            "TE_ENABLE": "1",
            "TE_LAMBDA": "0.3",
            "TE_MIX": "fullvocab",
            "MODEL_PATH": "some/model",
            "ROLLOUT_N": "5",
            "HOME": "/home",
        }
    )
    assert found == {
        "forecast": "true",
        "forecast_horizon": "4",
        "forecast_weights": "cope",
        "forecast_coef": "0.02",
        "ensemble": "true",
        "ensemble_coef": "0.3",
        "model_name_or_path": "some/model",
        "num_generations": "5",
    }
    for option, _ in variables.OPTIONS.values():
        assert option in CoPEConfig.__dataclass_fields__ or option == "model_name_or_path"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TE_MIX", "token", "TE_MIX=token has no counterpart: only the full-vocabulary form"),
        ("ACTION_FORECAST_ENABLE", "maybe", "is not True or False"),
        ("ACTION_FORECAST_KK", "3", "there is no variable ACTION_FORECAST_KK"),
        ("GRPO_FILTER_DEGENERATE", "1", "set resample_budget"),
    ],
)
def test_a_variable_without_a_meaning_is_refused(name: str, value: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        variables.overrides({name: value})


def test_a_dry_run_prints_what_would_run(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_N", "4")
    monkeypatch.setenv("ACTION_FORECAST_COEF", "0.5")
    path = write(tmp_path, model, server_settings={"size": 3})
    found = plan(Order(str(path), ["--forecast_coef", "0.25", "--gradient_accumulation_steps", "4"], processes=2))
    shown = yaml.safe_load(describe(found))
    assert shown["run"]["episodes a rollout"] == 16 and shown["run"]["tasks a rollout"] == 4
    assert shown["options"]["num_generations"] == 4 and shown["options"]["forecast_coef"] == 0.25
    assert "--adapter toy=tests.gym.toy:ToyAdapter" in shown["run"]["server"]
    assert "--set toy.size=3" in shown["run"]["server"]
    assert "torch.distributed.run --standalone --nproc_per_node=2" in shown["run"]["training"]
    assert not found.folder.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model_name_or_path": None}, "name a model"),
        ({"adapter": None, "environment": "sciworld"}, "sciworld is not installed here: run `cope install sciworld`"),
        ({"use_vllm": True}, "use_vllm needs a GPU"),
        ({"report_to": "wandb"}, "pip install wandb"),
        ({"server_settings": {"user_base_url": "https://host/v1"}}, r"\.secrets/openai_api_key \(chmod 600\)"),
        ({"eval_panel": "nothing"}, "nothing"),
        ({"max_turn": 3}, "did you mean 'max_turns'"),
        ({"num_generations": 3}, "must be divisible by num_generations"),
    ],
)
def test_every_prerequisite_has_its_sentence(
    options: dict[str, Any], sentence: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPE_HOME", str(tmp_path))
    for name in ("COPE_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(prerequisites, "_has", lambda module: False)
    with pytest.raises(InputError, match=sentence) as error:
        plan(Order(str(write(tmp_path, model, **options)), []))
    assert "\n" not in str(error.value)


def test_secrets_come_from_private_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "openai_api_key").write_text("word\n")
    (tmp_path / "openai_api_key").chmod(0o600)
    assert prerequisites.read_secrets(tmp_path) == {"OPENAI_API_KEY": "word"}
    monkeypatch.setenv("OPENAI_API_KEY", "set already")
    assert prerequisites.read_secrets(tmp_path) == {}
    (tmp_path / "openai_api_key").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        prerequisites.read_secrets(tmp_path)


class Server:
    """What a server says of itself."""

    def __init__(self, **changes: Any) -> None:
        import cope_gym

        env = {"facts": {"splits": ["train", "test"]}, "data_digest": "abc"}
        self.says = {"version": cope_gym.__version__, "envs": {"toy": env}} | changes

    def metadata(self) -> dict[str, Any]:
        return self.says


def test_server_and_configuration_must_agree(tmp_path: Path) -> None:
    args = CoPEConfig(str(tmp_path), environment="toy", use_cpu=True, bf16=False)
    assert agreement(Server(), args)["split"] == "train"  # type: ignore[arg-type]
    args.split = "dev"
    with pytest.raises(InputError, match="toy has no split 'dev', it has train, test"):
        agreement(Server(), args)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the server is cope-gym 0\.0\.1"):
        agreement(Server(version="0.0.1"), args)  # type: ignore[arg-type]
    args.environment = "sciworld"
    with pytest.raises(InputError, match="no environment 'sciworld', it has toy"):
        agreement(Server(), args)  # type: ignore[arg-type]


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set that a launch reads, and its server finds the toy."""
    monkeypatch.chdir(ROOT)
    for key in os.environ:
        if key.startswith(("COPE_", "ROLLOUT")):
            monkeypatch.delenv(key)
    for key, value in {
        "COPE_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }.items():
        monkeypatch.setenv(key, value)


def cope_launch(*words: str) -> int:
    """Runs `cope launch` in this process, which has imported torch and trl already; returns its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cope", "launch", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code if isinstance(ended.value.code, int) else int(ended.value.code is not None)


def running(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


@pytest.mark.slow
def test_a_run_starts_its_server_trains_and_goes_on_by_name(
    clean: None, tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, model)
    run = tmp_path / "run"
    said = ""
    for steps in ("1", "2"):
        code = cope_launch(str(path), f"max_steps={steps}")
        said = capfd.readouterr().err
        assert code == 0, said[-3000:]
        assert "split train" in said
    assert "goes on from" in said and "checkpoint-1" in said
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if "loss" in row] == [1, 2]
    assert json.loads((run / "environment.json").read_text())["environment"] == "toy"
    assert not running(run) and not (run / "server.token").exists()

    facts = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps(facts | {"data_digest": "other"}))
    code = cope_launch(str(path), "max_steps=3")
    assert code == 2 and "the run began with data_digest 'other'" in capfd.readouterr().err
    assert not running(run)


@pytest.mark.slow
def test_ending_the_launcher_ends_everything(clean: None, tmp_path: Path, model: Path) -> None:
    run = tmp_path / "run"
    path = write(tmp_path, model, max_steps=100000, save_steps=1000)
    with (tmp_path / "said").open("wb") as said:
        line = [sys.executable, "-m", "cope_gym", "launch", str(path)]
        process = subprocess.Popen(line, stdout=said, stderr=said)
    try:
        wait_for(lambda: read_metrics(run / "metrics.jsonl"), process, tmp_path / "said")
        assert running(run)  # the server; training is the launcher itself, or a child
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert not running(run)
    finally:
        process.kill()


def wait_for(condition: Any, process: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()[-3000:]
        time.sleep(0.2)


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    found = shutil.which("tmux")
    if found is None:
        pytest.skip("tmux is not installed")
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    monkeypatch.delenv("TMUX", raising=False)
    yield found
    subprocess.run([found, "kill-server"], capture_output=True)


@pytest.mark.slow
def test_tmux_sessions_hold_the_same_run(
    clean: None,
    tmux: str,
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Up to its server, for the training that follows is that of the runs above; closing the session ends it all."""
    path = write(tmp_path, model)
    monkeypatch.setenv("ROLLOUT_N", "2")
    code = cope_launch(str(path), "--tmux", "max_steps=100000")
    said = capfd.readouterr()
    assert code == 0, said.err
    assert "tmux attach -t cope-run" in said.out
    windows = subprocess.run([tmux, "list-windows", "-t", "cope-run", "-F", "#W"], capture_output=True, text=True)
    assert windows.stdout.split() == ["training", "server"]
    forwarded = subprocess.run([tmux, "show-environment", "-t", "cope-run"], capture_output=True, text=True).stdout
    assert "ROLLOUT_N=2" in forwarded.splitlines()
    log = tmp_path / "run" / "training.log"
    deadline = time.monotonic() + 240
    while not log.exists() or f"run {tmp_path / 'run'}" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.5)
    assert "split train" in log.read_text()
    subprocess.run([tmux, "kill-server"], check=True)
    while running(tmp_path):
        assert time.monotonic() < deadline, "the session is closed, and what ran in it still runs"
        time.sleep(0.2)
