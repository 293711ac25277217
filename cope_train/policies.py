"""Local models as policies of `cope eval`: `--policy hf:MODEL`.

MODEL is `quickstart`, a path, a Hub id, or the folder of a LoRA adapter.
Every conversation is continued token by token with the driver's own sampler, so that an evaluation sees what a rollout
would: nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cope_gym.evaluate.policies import PolicySpec, Prompt, Reply, take
from cope_train.models import fast_dtype, resolve
from cope_train.rollout.backends import Request, Sampling, TransformersBackend
from cope_train.rollout.buffer import EpisodeBuffer
from cope_train.rollout.template import ChatTemplate


class LocalModel:
    """A Transformers model that writes turns.

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
        self.name = Path(name).name
        self.batch_size = batch_size
        self.max_turn_tokens = max_turn_tokens
        device = "cuda" if torch.cuda.is_available() else "cpu"
        # Transformers loads an adapter's base model by itself.
        if dtype == "auto" and device == "cpu":
            dtype = fast_dtype()
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
        self.settings: Mapping[str, Any] = {
            "model": name,
            "revision": getattr(model.config, "_commit_hash", None),
            "dtype": str(model.dtype).removeprefix("torch."),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_turn_tokens": max_turn_tokens,
        }
        stops = model.generation_config.eos_token_id
        self.template = ChatTemplate(tokenizer, [stops] if isinstance(stops, int) else stops or [])
        self.backend = TransformersBackend(
            model, sampling, self.template.stop_ids, tokenizer.pad_token_id or self.template.end_of_turn, batch_size
        )
        self._episodes: dict[tuple[str, int], EpisodeBuffer] = {}

    def act(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Writes one turn for every prompt."""
        buffers = {(prompt.task_id, prompt.sample): self._buffer(prompt) for prompt in prompts}
        for prompt, (key, buffer) in zip(prompts, buffers.items(), strict=True):
            self.backend.submit(Request(key, list(buffer.ids), self.max_turn_tokens, (prompt.seed,)))
        replies: dict[Any, Reply] = {}
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
