"""How published results were sampled; what `cope eval` does unless told otherwise.

Turns, tokens a turn, sampling and what the agent sees of an observation are part of a number: all of them stand in
every result file. The first preset of an environment is its default; `cope eval --protocol NAME` takes another.
"""

from __future__ import annotations

from dataclasses import dataclass

from cope_gym.errors import InputError

_COPE = "evaluation scripts of the CoPE authors"
_AGENTGYM_RL = "AgentGym-RL (arXiv 2509.08755), evaluation scripts"
_AGENTGYM = "AgentGym (arXiv 2406.04151), rounds of its tutorials; tokens are not stated, 512 is AgentGym-RL's"
_EVOLVING = "Evolving-RL (arXiv 2605.10663), evaluation of its repository"


@dataclass(frozen=True)
class Protocol:
    """One published protocol.

    Attributes:
        max_turns: Action turns of an episode.
        max_tokens: Tokens of a turn.
        temperature: Sampling temperature; top-p is 1 in all of them.
        samples: Episodes a task.
        tasks: Which tasks it is about: a shipped panel, or ENV/SPLIT of the official data.
        measure: What it reports.
        source: Where this was read.
        observation_chars: Where observations are cut, the first one and later ones.
    """

    max_turns: int
    max_tokens: int
    temperature: float = 1.0
    samples: int = 1
    tasks: str = ""
    measure: str = "success"
    source: str = ""
    observation_chars: tuple[int, int] = (4000, 2000)


PUBLISHED: dict[str, dict[str, Protocol]] = {
    "sciworld": {
        "cope": Protocol(
            30,
            200,
            tasks="AgentGym's 200 evaluation items; of our own: sciworld_test",
            measure="success: the score is 100; mean score",
            source=_COPE,
        ),
        "agentgym": Protocol(
            30,
            200,
            tasks="200 items of AgentEval (cope data import agentgym)",
            measure="mean score; its Pass@k counts any score above 0, which is no success",
            source=_AGENTGYM_RL,
        ),
    },
    "alfworld": {
        "cope": Protocol(
            30,
            200,
            tasks="alfworld_agentgym_test; most others: alfworld_valid_unseen",
            measure="success, in total and for each of six types",
            source=_COPE,
        ),
        "agentgym": Protocol(30, 512, tasks="alfworld_agentgym_test", source=_AGENTGYM),
        "evolving": Protocol(
            50,
            512,
            temperature=0.0,
            tasks="alfworld_valid_unseen",
            measure="success with one retrieved skill, and without",
            source=_EVOLVING,
        ),
    },
    "webshop": {
        "cope": Protocol(
            15,
            512,
            tasks="webshop/test with the full catalogue (500 goals)",
            measure="success: reward 1; score: mean reward",
            source=_COPE,
            observation_chars=(4000, 4000),
        ),
        "agentgym": Protocol(
            10,
            512,
            tasks="200 of its own numbers, which depend on its shuffle",
            measure="mean reward",
            source=_AGENTGYM,
            observation_chars=(4000, 4000),
        ),
    },
    "appworld": {
        "cope": Protocol(
            30,
            1024,
            temperature=0.4,
            tasks="appworld/test_normal, appworld/test_challenge",
            measure="task goal completion (success), scenario goal completion",
            source=_COPE,
            observation_chars=(20_000, 12_000),
        ),
    },
    "tau2": {
        "cope": Protocol(
            200,
            1024,
            temperature=0.0,
            samples=4,
            tasks="tau2_test",
            measure="mean over 4 trials and pass^k by domain; customer gpt-4o-mini-2024-07-18 at temperature 0",
            source=_COPE,
            observation_chars=(60_000, 8000),
        ),
        "tau2": Protocol(
            200,
            1024,
            temperature=0.0,
            samples=4,
            tasks="tau2_base",
            measure="pass^1 to pass^4 by domain, with the customer's model named",
            source="τ²-bench (arXiv 2506.07982), its command line: 200 messages of all sides, 4 trials",
            observation_chars=(60_000, 8000),
        ),
    },
    "mind2web": {
        "evolving": Protocol(
            50,
            4096,
            temperature=0.0,
            tasks="mind2web/test_task, mind2web/test_website, mind2web/test_domain",
            measure="task success, share of correct steps",
            source=_EVOLVING,
            observation_chars=(16_000, 16_000),
        ),
    },
}


def published(env: str, max_turns: int, name: str | None = None) -> Protocol:
    """Returns a protocol of an environment.

    Args:
        env: Short environment name.
        max_turns: The service's step limit, for an environment without a published protocol.
        name: Which one, where there are several; by default the first.

    Raises:
        InputError: There is no such protocol.
    """
    presets = PUBLISHED.get(env, {"default": Protocol(max_turns, 512)})
    chosen = presets.get(name) if name else next(iter(presets.values()))
    if chosen is None:
        raise InputError(f"{env} has no protocol '{name}'; it has {', '.join(presets)}.", type="bad_option")
    return chosen
