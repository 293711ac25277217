"""What a run needs before it starts, each with a sentence of its own that says how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.specifiers import SpecifierSet

from cope_gym.errors import InputError
from cope_gym.server import installed, require_server_extra
from cope_train.config import CoPEConfig
from cope_train.models import resolve

VLLM = SpecifierSet(">=0.22,<=0.31.0")  # what TRL 1.16 is tested with


def check(args: CoPEConfig, model: str | None, processes: int, accelerate: Path | None, secrets: Path) -> None:
    """Checks all of them.

    Raises:
        InputError: The first that is missing.
    """
    _model(model)
    _environment(args)
    _devices(args, processes, accelerate)
    if args.use_vllm:
        _vllm(args)
    _loggers(args)
    _customer(args, secrets)


def tmux() -> str:
    """Returns tmux's path."""
    found = shutil.which("tmux")
    if found is None:
        raise _missing("--tmux needs tmux: install it (`apt install tmux`), or leave --tmux out")
    return found


def read_secrets(folder: Path) -> dict[str, str]:
    """Reads secrets: a file `openai_api_key` becomes `OPENAI_API_KEY`, unless that is set already.

    Raises:
        InputError: A file that others may read.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_file() and not path.name.startswith("."):
            if path.stat().st_mode & 0o077:
                raise _missing(f"{path} can be read by others: run `chmod 600 {path}`")
            found[path.name.upper().replace("-", "_")] = path.read_text(encoding="utf-8").strip()
    return {name: value for name, value in found.items() if name not in os.environ}


def _model(name: str | None) -> None:
    if not name:
        raise _missing("model_name_or_path: name a model: `quickstart`, a path or a Hub id")
    known = resolve(name)
    offline = any(os.environ.get(flag, "") in ("1", "true") for flag in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    if offline and not Path(known).is_dir() and not _cached(known):
        raise _missing(
            f"'{name}' is not in the Hub's cache and this machine is offline: name a local folder in "
            "model_name_or_path, or unset HF_HUB_OFFLINE"
        )


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _environment(args: CoPEConfig) -> None:
    if args.base_url or os.environ.get("COPE_BASE_URL"):
        return
    require_server_extra()
    if not args.adapter and not installed(args.environment):
        raise _missing(f"{args.environment} is not installed here: run `cope install {args.environment}`")


def _devices(args: CoPEConfig, processes: int, accelerate: Path | None) -> None:
    import torch

    there = torch.cuda.device_count()
    if not args.use_cpu and processes > there:
        raise _missing(f"{processes} processes need {processes} GPUs, there are {there}: lower --processes")
    if args.use_vllm and there == 0:
        raise _missing("use_vllm needs a GPU, there is none: set use_vllm=false")
    if accelerate and "DEEPSPEED" in accelerate.read_text(encoding="utf-8") and not _has("deepspeed"):
        raise _missing(f"{accelerate.name} needs DeepSpeed: run `pip install deepspeed`, or take --accelerate fsdp2")


def _vllm(args: CoPEConfig) -> None:
    try:
        found = version("vllm")
    except PackageNotFoundError:
        if args.vllm_mode == "server":
            return  # it runs elsewhere
        raise _missing("use_vllm needs vLLM: run `pip install 'cope-gym[vllm]'`, or set use_vllm=false") from None
    if found not in VLLM:
        raise _missing(f"vLLM {found} is not one of {VLLM}, which this TRL is tested with: pip install 'vllm{VLLM}'")


def _loggers(args: CoPEConfig) -> None:
    for name in [args.report_to] if isinstance(args.report_to, str) else args.report_to:
        if name in ("wandb", "trackio", "tensorboard") and not _has(name):
            raise _missing(f"report_to={name} needs it: run `pip install {name}`, or set report_to=none")


def _customer(args: CoPEConfig, secrets: Path) -> None:
    settings = dict(args.server_settings or {})
    url = str(settings.get("user_base_url", ""))
    key = str(settings.get("user_key_env", "OPENAI_API_KEY"))
    if url.startswith("https://") and key not in os.environ and key not in read_secrets(secrets):
        raise _missing(
            f"the customer at {url} needs a key: write it to {secrets / key.lower()} (chmod 600), or set {key}"
        )


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _missing(sentence: str) -> InputError:
    return InputError(sentence, type="prerequisite")
