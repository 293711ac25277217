"""Models as policies of `cope eval`: what is said where one cannot be had. vLLM itself: tests/gpu/evidence.py."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from cope_gym.errors import InputError
from cope_gym.evaluate.policies import PolicySpec, kinds, make
from cope_train.policies import lora_rank

pytestmark = pytest.mark.train


def spec(**settings: object) -> PolicySpec:
    return PolicySpec("", "sciworld", lambda _t, _o: None, settings)


def test_both_samplers_are_known():
    assert {"hf", "vllm"} <= set(kinds())


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_sentence_says_how_to_get_it():
    with pytest.raises(InputError, match=r"pip install 'cope-gym\[vllm\]'"):
        make("vllm:quickstart", spec())


def test_settings_are_those_of_the_policy():
    with pytest.raises(InputError, match="max_model_len"):
        make("vllm:quickstart", spec(max_length=4))
    with pytest.raises(InputError, match="max_model_len is a int"):
        make("vllm:quickstart", spec(max_model_len="long"))


def test_a_folder_without_a_model_is_no_model(tmp_path: Path):
    with pytest.raises(InputError, match=r"no config\.json"):
        make(f"hf:{tmp_path}", spec())


def test_a_folder_that_is_not_there_is_no_model_of_the_hub():
    with pytest.raises(InputError, match="there is no folder 'runs/first/warm'"):
        make("hf:runs/first/warm", spec())


def test_an_adapter_that_vllm_cannot_take_is_refused():
    assert [lora_rank(rank) for rank in (4, 16, 33)] == [8, 16, 64]
    with pytest.raises(InputError, match="up to rank 512, this one has 600"):
        lora_rank(600)
