"""Policies without a model: gold, random, do-nothing, human. They bracket every benchmark from both ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TextIO, cast

from cope_gym.actions import render
from cope_gym.errors import InputError
from cope_gym.evaluate.policies import NoGold, Policy, PolicySpec, Prompt, Reply, register, take

# What an agent that does nothing says, in each benchmark's own words.
IDLE = {
    "alfworld": "look",
    "appworld": "pass",
    "mind2web": "None",
    "sciworld": "look around",
    "tau2": "I am sorry, I cannot help you with that.",
    "webshop": "click[back to search]",
}

# Environments that list their admissible actions only when asked, since it is slow.
LISTS_ON_REQUEST = frozenset({"alfworld", "sciworld"})


class _Scripted:
    """Base of the policies here: one prompt a call, no state between episodes."""

    batch_size = 1

    def __init__(self, name: str, settings: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.settings: Mapping[str, Any] = settings or {}

    def act(self, prompts: Sequence[Prompt]) -> list[Reply]:
        return [self.turn(prompt) for prompt in prompts]

    def turn(self, prompt: Prompt) -> Reply:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""


class Gold(_Scripted):
    """Plays the benchmark's own solution and stops when it is through."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__("gold", take(spec))
        self._solution = spec.gold
        self._known: dict[str, Sequence[Any] | None] = {}  # by task: some solutions are searched for, which takes time

    def turn(self, prompt: Prompt) -> Reply:
        """Writes the next gold action."""
        actions = self._actions(prompt)
        if prompt.turn >= len(actions):
            return Reply("", give_up=True)
        return Reply(render(str(actions[prompt.turn]), prompt.action_format))

    def _actions(self, prompt: Prompt) -> Sequence[Any]:
        if prompt.task_id not in self._known:
            self._known[prompt.task_id] = self._solution(prompt.task_id, prompt.options)
        actions = self._known[prompt.task_id]
        if actions is None:
            raise NoGold(prompt.env, prompt.task_id)
        return actions


class Uniform(_Scripted):
    """Draws one of the actions that the environment admits (`info["admissible_actions"]`), from the prompt's seed."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__("random", take(spec))

    def turn(self, prompt: Prompt) -> Reply:
        """Writes a random admissible action."""
        admissible = cast("Sequence[str] | None", prompt.info.get("admissible_actions"))
        if not admissible:
            raise InputError(
                f"{prompt.env} does not list its admissible actions, so the random policy has nothing to draw from; "
                "choose another policy.",
                type="no_admissible",
            )
        return Reply(render(Random(prompt.seed).choice(list(admissible)), prompt.action_format))


class DoNothing(_Scripted):
    """Repeats one harmless action: what a score is worth that nobody worked for."""

    def __init__(self, spec: PolicySpec) -> None:
        settings = take(spec, action=IDLE.get(spec.env, ""))
        super().__init__("do-nothing", settings)
        self._action: str = settings["action"]

    def turn(self, prompt: Prompt) -> Reply:
        """Writes the idle action."""
        return Reply(render(self._action, prompt.action_format) if self._action else "")


class Human(_Scripted):
    """A person at the terminal; types bare actions, an empty line or end of file gives up."""

    def __init__(self, spec: PolicySpec, source: Callable[[str], str] = input, screen: TextIO | None = None) -> None:
        super().__init__("human", take(spec))
        self._read = source
        self._screen = screen or sys.stdout

    def turn(self, prompt: Prompt) -> Reply:
        """Shows the last observation and reads an action."""
        self._screen.write(f"\n{prompt.messages[-1]['content']}\n")
        try:
            action = self._read("> ").strip()
        except EOFError:
            action = ""
        return Reply(render(action, prompt.action_format)) if action else Reply("", give_up=True)


SCRIPTED: Mapping[str, Callable[[PolicySpec], Policy]] = {
    "gold": Gold,
    "random": Uniform,
    "do-nothing": DoNothing,
    "human": Human,
}
for _kind, _factory in SCRIPTED.items():
    register(_kind, _factory)
