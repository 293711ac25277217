"""What an evaluation needs of the environment service: environments, gold paths, versions, rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cope_gym import prompts
from cope_gym.client import Client
from cope_gym.env import CopeEnv
from cope_gym.errors import InputError
from cope_gym.evaluate.episode import Rules, TextEnv
from cope_gym.evaluate.panels import Panel, spread
from cope_gym.evaluate.protocols import Protocol, published

_DECIDING = ("adapter_version", "versions", "data_digest", "engine_flags")


class Service:
    """One environment of a service.

    Args:
        env: Short environment name.
        client: A connection.
        env_options: Options that are no part of a panel, e.g. the list of admissible actions for the random policy.
    """

    def __init__(self, env: str, client: Client, env_options: Mapping[str, Any] | None = None) -> None:
        self.env = env
        self.client = client
        self.env_options = dict(env_options or {})

    def make_env(self, max_steps: int | None = None) -> TextEnv:
        """Makes an environment."""
        return CopeEnv(self.env, client=self.client, options=self.env_options, max_steps=max_steps)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> Sequence[Any] | None:
        """Returns the gold actions of a task."""
        return self.client.gold(self.env, task_id, options)

    def facts(self) -> dict[str, Any]:
        """Returns what `/v1/envs` says of the environment.

        Raises:
            InputError: The server has no such environment.
        """
        envs = self.client.envs()
        for facts in envs:
            if facts["name"] == self.env:
                return facts
        known = ", ".join(facts["name"] for facts in envs)
        raise InputError(f"This server has no environment '{self.env}'; it has {known}.", type="unknown_env")

    def versions(self) -> dict[str, Any]:
        """Returns what decides an episode besides the task: versions, data digest, flags (τ²: who plays the user)."""
        metadata = self.client.metadata()
        of_env = metadata["envs"][self.env]
        return {"cope_gym": metadata["version"], **{key: of_env[key] for key in _DECIDING if key in of_env}}

    def rules(
        self,
        max_turns: int | None = None,
        system: str | None = None,
        protocol: Protocol | None = None,
        chars: tuple[int | None, int | None] = (None, None),
    ) -> Rules:
        """Returns the rules of a protocol, by default the environment's first, with these changes.

        Args:
            max_turns: Turns of an episode.
            system: System prompt.
            protocol: The protocol.
            chars: Where observations are cut, the first one and later ones.
        """
        facts = self.facts()
        protocol = protocol or self.protocol()
        turns = max_turns or protocol.max_turns
        text = prompts.load(self.env) if system is None else system
        cuts = (given or usual for given, usual in zip(chars, protocol.observation_chars, strict=True))
        return Rules(self.env, facts["action_format"], turns, text, *cuts)

    def protocol(self, name: str | None = None) -> Protocol:
        """Returns a published protocol of the environment, by default the first."""
        return published(self.env, self.facts()["max_steps"], name)

    def whole(self, split: str) -> Panel:
        """Returns all tasks of a split as a panel, without first observations."""
        tasks = tuple(task.id for task in self.client.tasks(self.env, split))
        about = f"All tasks of {split} that the server has."
        return Panel(self.env, f"{self.env}/{split}", split, tasks, description=about).sealed()

    def panel(
        self,
        name: str,
        split: str,
        per_category: int,
        options: Mapping[str, Any],
        categories: Sequence[str] = (),
        description: str = "",
        observations: bool = True,
    ) -> Panel:
        """Builds a panel of evenly spread tasks, first observations recorded where they are wanted.

        Raises:
            InputError: A category that the split does not have.
        """
        tasks = [(task.id, task.category) for task in self.client.tasks(self.env, split)]
        known = {category for _, category in tasks}
        if unknown := sorted(set(categories) - known):
            there = ", ".join(sorted(known))
            raise InputError(f"Split {split} has no category {unknown[0]}; it has {there}.", type="bad_panel")
        chosen = spread([task for task in tasks if not categories or task[1] in categories], per_category)
        panel = Panel(self.env, name, split, chosen, dict(options), description)
        return panel.recorded(lambda task: self.first_observation(task, options)) if observations else panel.sealed()

    def first_observation(self, task_id: str, options: Mapping[str, Any]) -> str:
        """Returns what an agent sees first."""
        env = self.make_env()
        try:
            return env.reset(seed=0, options={**options, "task_id": task_id})[0]
        finally:
            env.close()
