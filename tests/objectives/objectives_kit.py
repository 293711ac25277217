"""A small real tokenizer with a chat template, and episodes built as in a rollout: prompt once, then only appends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from cope_train.objectives.chat import ChatPieces
from cope_train.objectives.records import ActionTurn, Record
from cope_train.objectives.rows import Sample

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Mistral's and Gemma's: roles must alternate.
ALTERNATING = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "Thought: I should open the door and look around. Action: open door",
    "Action: go to kitchen\nAction: focus on thermometer\nAction: pick up metal pot in inventory",
    "You see a red apple, a blue box and a green door. The door is closed. Nothing happens.",
    "Give your next 3 actions, the one you take now first: usual format, no reasoning, one per reply. Next.",
    "user assistant system first second print(apis.supervisor.show_profile()) for x in range(10):",
]


def make_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 384 entries, trained on the spot."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer


@dataclass
class Say:
    """One turn of a scripted policy."""

    action: str
    thought: str = ""
    observation: str = "You see a red apple."
    valid: bool = True
    call: bool | None = None
    calls: int = 1
    handoff: bool = False
    marker: str = "Action:"


def episode(
    tokenizer: Any,
    chat: ChatPieces,
    turns: Sequence[Say],
    *,
    task: str = "Open the green door.",
    group: str = "g",
    success: bool = True,
    failed: bool = False,
) -> Record:
    """Plays the script; the sampled ids of a turn are those of its whole text, so spans lie inside one encoding."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": task}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    prompt_length = len(ids)
    mask = [0] * len(ids)
    done: list[ActionTurn] = []
    observations: list[tuple[int, int]] = []
    for index, say in enumerate(turns):
        head = f"Thought: {say.thought}\n" if say.thought else ""
        block = f"{say.marker} {say.action}" if say.action else ""
        text = head + block
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        start, prefix_end = len(ids), len(ids) - len(chat.header)
        spans = {
            name: _tokens(encoded["offset_mapping"], low, len(text), start)
            for name, low in (("block", len(head)), ("action", len(text) - len(say.action)))
        }
        sampled = encoded["input_ids"] + chat.turn_end[:1]
        ids += sampled
        mask += [1] * len(sampled)
        done.append(
            ActionTurn(
                index, start, len(ids), prefix_end, *spans["block"], *spans["action"], say.valid, say.call, say.calls,
                say.handoff, say.action.count("\n") + 1,
            )
        )  # fmt: skip
        content = tokenizer.encode(say.observation, add_special_tokens=False)
        before = chat.turn_end[1:] + tokenizer.encode("<|im_start|>user\n", add_special_tokens=False)
        if index < len(turns) - 1:
            ids += before
            observations.append((len(ids), len(ids) + len(content)))
            ids += content + chat.turn_end + chat.header
            mask += [0] * (len(ids) - len(mask))
    return Record(ids, prompt_length, mask, tuple(done), group, success, failed, task, tuple(observations))


def _tokens(offsets: list[tuple[int, int]], low: int, high: int, start: int) -> tuple[int, int]:
    inside = [i for i, (a, b) in enumerate(offsets) if b > low and a < high]
    return (start + inside[0], start + inside[-1] + 1) if inside else (start + len(offsets),) * 2


def tiny_model(kind: str = "llama", vocabulary: int = 384) -> Any:
    """A random model of two layers with grouped-query attention."""
    torch.manual_seed(0)
    common = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "initializer_range": 0.3,
    }
    configs = {
        "llama": LlamaConfig(tie_word_embeddings=True, **common),
        "qwen2": Qwen2Config(**common),
        "sliding": Qwen2Config(**common, use_sliding_window=True, sliding_window=64, max_window_layers=1),
    }
    return AutoModelForCausalLM.from_config(configs[kind])


def oracle(model: Any, samples: Sequence[Sample], eta: float, temperature: float) -> torch.Tensor:
    """Policy, forecast, ensemble and observation term from their definitions, in float64 and one sequence at a time.

    Shares no code with the package; left-padded as TRL's prompts are.
    """

    def log_p(ids, temperature):
        padded = torch.tensor([[0] * 5 + list(ids)])
        attention = (torch.arange(padded.shape[1]) >= 5).long()[None]
        logits = model(input_ids=padded, attention_mask=attention).logits[0, 5:].double()
        return (logits / temperature).log_softmax(-1)

    policy, forecast, kl, observed, targets = [], [], [], [], 0
    for sample in samples:
        record = sample.record
        hot, cold = log_p(record.ids, temperature), log_p(record.ids, 1.0)
        policy += [hot[p - 1, record.ids[p]] for p, m in enumerate(record.loss_mask) if m]
        if record.failed:
            continue
        observed += [cold[p - 1, record.ids[p]] for a, b in record.observations for p in range(a, b)]
        members = {}
        for branch in sample.branches:
            ids = record.ids[: branch.prefix_end] + branch.ids
            hot_branch, cold_branch = log_p(ids, temperature), log_p(ids, 1.0)
            for p, m in enumerate(branch.loss_mask):
                if m and sample.weight:
                    at = branch.prefix_end + p
                    forecast.append(sample.weight * cold_branch[at - 1, ids[at]])
                    targets += 1
            for slot in branch.slots:
                if slot.turn > branch.turn:
                    at = branch.prefix_end + slot.action_start
                    rows = hot_branch[at - 1 : at - 1 + slot.action_end - slot.action_start]
                    members.setdefault(slot.turn, []).append(rows.detach().exp())
        for turn in record.turns:
            if turn.index in members:
                log_pi = hot[turn.action_start - 1 : turn.action_end - 1]
                q = (1 - eta) * log_pi.detach().exp() + eta * torch.stack(members[turn.index]).mean(0)
                kl += (log_pi.exp() * (log_pi - q.log())).sum(-1)
    mean = [torch.stack(values).mean() for values in (policy, kl, observed)]
    return torch.stack([-mean[0], -torch.stack(forecast).sum() / targets, mean[1], -mean[2]])
