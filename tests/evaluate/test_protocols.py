"""Published protocols against the numbers of their sources, and which of them `cope eval` takes."""

from __future__ import annotations

import re

import pytest

from cope_gym.errors import InputError
from cope_gym.evaluate import panels
from cope_gym.evaluate.protocols import PUBLISHED, published
from cope_gym.registration import IDS

# Environment and protocol → turns, tokens a turn, temperature, samples, as the sources state them.
STATED = {
    ("sciworld", "cope"): (30, 200, 1.0, 1),
    ("sciworld", "agentgym"): (30, 200, 1.0, 1),
    ("alfworld", "cope"): (30, 200, 1.0, 1),
    ("alfworld", "agentgym"): (30, 512, 1.0, 1),
    ("alfworld", "evolving"): (50, 512, 0.0, 1),
    ("webshop", "cope"): (15, 512, 1.0, 1),
    ("webshop", "agentgym"): (10, 512, 1.0, 1),
    ("appworld", "cope"): (30, 1024, 0.4, 1),
    ("tau2", "cope"): (200, 1024, 0.0, 4),
    ("tau2", "tau2"): (200, 1024, 0.0, 4),
    ("mind2web", "evolving"): (50, 4096, 0.0, 1),
}


def test_the_numbers_are_those_of_the_sources() -> None:
    ours = {
        (env, name): (one.max_turns, one.max_tokens, one.temperature, one.samples)
        for env, presets in PUBLISHED.items()
        for name, one in presets.items()
    }
    assert ours == STATED


@pytest.mark.parametrize(("env", "name"), STATED)
def test_each_says_what_it_measures_on_what_and_where_that_was_read(env: str, name: str) -> None:
    protocol = published(env, 1, name)
    assert protocol.measure and protocol.source and protocol.tasks
    for panel in re.findall(rf"\b{env}_\w+", protocol.tasks):
        assert panels.load(panel).env == env


def test_every_environment_has_one_and_the_first_is_the_default() -> None:
    assert PUBLISHED.keys() == IDS.keys()
    assert published("alfworld", 1) == published("alfworld", 1, "cope")
    assert published("tau2", 1).observation_chars[0] >= 40_000  # policy and tools of telecom are 30,000 characters


def test_others_get_the_step_limit_of_the_service() -> None:
    assert published("mine", 17).max_turns == 17
    with pytest.raises(InputError, match="webshop has no protocol 'x'; it has cope, agentgym"):
        published("webshop", 1, "x")
