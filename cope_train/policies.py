"""Local models as policies of `cope eval`: `--policy hf:MODEL` (Transformers) and `--policy vllm:MODEL`.

MODEL is `quickstart`, a path, a Hub id, or the folder of a LoRA adapter.
Every conversation is continued token by token with the driver's own sampler, so that an evaluation sees what a rollout
would: nothing is tokenised twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from cope_gym.errors import InputError
from cope_gym.evaluate.policies import PolicySpec, Prompt, Reply, take
from cope_train.models import fast_dtype, is_adapter, resolve
from cope_train.rollout.backends import Backend, Request, Sampling, TransformersBackend
from cope_train.rollout.buffer import EpisodeBuffer
from cope_train.rollout.template import ChatTemplate
from cope_train.rollout.vllm import EngineBackend

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM can be started with


class SampledModel:
    """A model that writes turns through one of the rollout's samplers.

    Args:
        name: What the user called it.
        backend: Draws tokens.
        template: Its chat template.
        settings: What decides what it writes.
        max_turn_tokens: Most tokens of a turn.
        batch_size: Most conversations at once.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        template: ChatTemplate,
        settings: Mapping[str, Any],
        max_turn_tokens: int,
        batch_size: int,
    ) -> None:
        self.name = Path(name).name
        self.backend, self.template = backend, template
        self.max_turn_tokens, self.batch_size = max_turn_tokens, batch_size
        self.settings: Mapping[str, Any] = {"model": name, **settings, "max_turn_tokens": max_turn_tokens}
        self._episodes: dict[tuple[str, int], EpisodeBuffer] = {}

    def act(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Writes one turn for every prompt; a conversation that fills the model's context is given up, cut."""
        buffers = {(prompt.task_id, prompt.sample): self._buffer(prompt) for prompt in prompts}
        replies: dict[Any, Reply] = {}
        for prompt, (key, buffer) in zip(prompts, buffers.items(), strict=True):
            room = self.backend.context - len(buffer.ids)
            if room < 1:
                replies[key] = Reply("", truncated=True, give_up=True)
                continue
            self.backend.submit(Request(key, list(buffer.ids), min(self.max_turn_tokens, room), (prompt.seed,)))
        while len(replies) < len(prompts):
            for done in self.backend.poll():
                ended = done.ids[-1] == self.template.end_of_turn
                buffers[done.key].append_turn(done.ids, done.logprobs, [] if ended else [self.template.end_of_turn])
                text = self.template.text(done.ids)
                replies[done.key] = Reply(text, len(done.ids), truncated=not done.finished)
        return [replies[prompt.task_id, prompt.sample] for prompt in prompts]

    def close(self) -> None:
        """Frees all caches."""
        self._episodes.clear()

    def _buffer(self, prompt: Prompt) -> EpisodeBuffer:
        """Returns the episode's tokens up to the prompt's last observation."""
        key = (prompt.task_id, prompt.sample)
        messages = [dict(message) for message in prompt.messages]
        if prompt.turn == 0:
            self.backend.release(key)
            buffer = self._episodes[key] = EpisodeBuffer()
            buffer.append_prompt(self.template.prompt(messages))
        else:
            buffer = self._episodes[key]
            buffer.append_observation(self.template.observation(messages[-1]["content"]))
        return buffer


class LocalModel(SampledModel):
    """A Transformers model.

    Args:
        name: `quickstart`, a path, a Hub id, or the folder of a LoRA adapter.
        sampling: How tokens are drawn.
        max_turn_tokens: Most tokens of a turn.
        batch_size: Most conversations in one batch.
        dtype: Of the weights; `auto` takes what the model was saved in, on a CPU what is fast there.
    """

    def __init__(
        self,
        name: str,
        sampling: Sampling = Sampling(),  # noqa: B008, frozen
        max_turn_tokens: int = 256,
        batch_size: int = 16,
        dtype: str = "auto",
    ) -> None:
        path = resolve(name)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        # Transformers loads an adapter's base model by itself.
        if dtype == "auto" and device == "cpu":
            dtype = fast_dtype()
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
        template = ChatTemplate(tokenizer, _stops(model.generation_config))
        pad = tokenizer.pad_token_id or template.end_of_turn
        backend = TransformersBackend(model, sampling, template.stop_ids, pad, batch_size)
        settings = {
            "revision": getattr(model.config, "_commit_hash", None),
            "dtype": str(model.dtype).removeprefix("torch."),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        super().__init__(name, backend, template, settings, max_turn_tokens, batch_size)


class EngineModel(SampledModel):
    """A model in a vLLM engine of this process.

    Args:
        name: As for `LocalModel`.
        sampling: How tokens are drawn.
        max_turn_tokens: Most tokens of a turn.
        batch_size: Most conversations at once.
        engine: Arguments of `vllm.LLM`, e.g. `max_model_len`.

    Raises:
        InputError: vLLM is not installed.
    """

    def __init__(
        self,
        name: str,
        sampling: Sampling = Sampling(),  # noqa: B008, frozen
        max_turn_tokens: int = 256,
        batch_size: int = 256,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        if find_spec("vllm") is None:
            raise InputError(
                "the policy vllm needs vLLM: run `pip install 'cope-gym[vllm]'`, or take hf:MODEL", type="no_extra"
            )
        import vllm
        from vllm.lora.request import LoRARequest

        path = model = resolve(name)
        arguments, lora = dict(engine or {}), None
        if is_adapter(path):
            adapter = json.loads((Path(path) / "adapter_config.json").read_text(encoding="utf-8"))
            model, rank = adapter["base_model_name_or_path"], adapter["r"]
            lora = LoRARequest("adapter", 1, str(Path(path).resolve()))
            arguments |= {"enable_lora": True, "max_lora_rank": lora_rank(rank)}
        llm = vllm.LLM(model=model, max_num_seqs=batch_size, enable_prefix_caching=True, **arguments)
        template = ChatTemplate(AutoTokenizer.from_pretrained(path), _stops(_generation_config(model)))
        settings = {
            "dtype": str(llm.llm_engine.model_config.dtype).removeprefix("torch."),
            "vllm": vllm.__version__,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        backend = EngineBackend(llm, sampling, template.stop_ids, seeded=True, lora=lora)
        super().__init__(name, backend, template, settings, max_turn_tokens, batch_size)


def lora_rank(rank: int) -> int:
    """Returns the rank that vLLM is started with for an adapter.

    Raises:
        InputError: vLLM takes none that high.
    """
    able = next((able for able in LORA_RANKS if able >= rank), None)
    if able is None:
        raise InputError(
            f"vLLM takes adapters up to rank {LORA_RANKS[-1]}, this one has {rank}: use hf:MODEL", type="bad_option"
        )
    return able


def _generation_config(model: str) -> Any:
    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:  # a model without one stops at its template's token
        return GenerationConfig()


def _stops(config: Any) -> list[int]:
    stops = config.eos_token_id
    return [stops] if isinstance(stops, int) else list(stops or [])


def make(spec: PolicySpec) -> LocalModel:
    """Makes the policy for `cope eval` (entry point `cope.policies`: `hf`)."""
    settings = take(spec, temperature=1.0, top_p=1.0, max_turn_tokens=256, batch_size=16, dtype="auto")
    sampling = Sampling(settings["temperature"], settings["top_p"])
    return LocalModel(
        spec.model or "quickstart",
        sampling,
        settings["max_turn_tokens"],
        settings["batch_size"],
        settings["dtype"],
    )


def make_vllm(spec: PolicySpec) -> EngineModel:
    """Makes the policy for `cope eval` (entry point `cope.policies`: `vllm`)."""
    settings = take(
        spec,
        temperature=1.0,
        top_p=1.0,
        max_turn_tokens=256,
        batch_size=256,
        dtype="auto",
        gpu_memory_utilization=0.9,
        max_model_len=0,
        tensor_parallel_size=1,
        enforce_eager=False,
        kv_cache_memory_bytes=0,
    )
    sampling = Sampling(settings.pop("temperature"), settings.pop("top_p"))
    turn_tokens, batch_size = settings.pop("max_turn_tokens"), settings.pop("batch_size")
    for name in ("max_model_len", "kv_cache_memory_bytes"):  # by default: what the model knows, what is free
        settings[name] = settings[name] or None
    return EngineModel(spec.model or "quickstart", sampling, turn_tokens, batch_size, settings)
