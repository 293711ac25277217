"""A text world without a server, and tokenizers and models small enough for tests."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cope_gym.errors import InfrastructureError
from cope_train.config import CoPEConfig

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
CORPUS = [
    "Action: look around", "Action: open door", "Action: close door", "Action: take key", "You see a door and a key.",
    "Thought: I should open the door.\nAction: open door", "Nothing happens.", "The door is open.",
    "user assistant system",
] * 4  # fmt: skip


def make_tokenizer(
    template: str = CHATML, special: list[str] | None = None, eos: str = "<|im_end|>", vocab: int = 400
):
    special = special or SPECIAL
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, pad_token=special[0])
    tokenizer.add_special_tokens({"additional_special_tokens": [s for s in special if s not in (eos, special[0])]})
    tokenizer.chat_template = template
    return tokenizer


def make_model(tokenizer: Any, seed: int = 0, **config: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | config))).eval()


class ToyEnv(gymnasium.Env[str, str]):
    """Whatever is said counts: a step is rewarded by the share of letters that are among the task's letters.

    A random model gets rewards that differ within a group, so that a few steps change its weights.

    Args:
        steps: Length of an episode.
        delay: Seconds of a step.
        fail: Task ids whose episodes break after so many steps; one less each time an episode is opened.
    """

    opened = 0
    closed = 0

    def __init__(self, steps: int = 3, delay: float = 0.0, fail: dict[str, int] | None = None) -> None:
        self.steps, self.delay, self.fail = steps, delay, fail if fail is not None else {}
        type(self).opened += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):  # type: ignore[override]
        self.task = (options or {})["task_id"]
        self.count = 0
        self.total = 0.0
        return f"Your letters are {self.task}. You see a door.", self._info(True)

    def step(self, action: str):  # type: ignore[override]
        time.sleep(self.delay)
        if self.fail.get(self.task, 0) > 0:
            self.fail[self.task] -= 1
            raise InfrastructureError("the toy world broke down", type="worker_failed", retryable=True)
        self.count += 1
        letters = set(self.task)
        reward = sum(c in letters for c in action) / max(len(action), 1) / self.steps
        self.total += reward
        return f"You said {action[:20]!r}.", reward, self.count >= self.steps, False, self._info(bool(action))

    def _info(self, valid: bool) -> dict[str, Any]:
        score = min(self.total, 1.0)
        return {
            "score": score,
            "raw_score": score,
            "success": score > 0.2,
            "action_valid": valid,
            "category": self.task[:1],
            "split": "train",
        }

    def close(self) -> None:
        type(self).closed += 1


def make_config(folder: Any, **options: Any) -> CoPEConfig:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "environment": "toy",
        "action_format": "plain",
        "reward": "score",
        "max_turn_tokens": 8,
        "max_turns": 3,
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "max_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "ordered_rollouts": True,
    }
    return CoPEConfig(**(settings | options))
