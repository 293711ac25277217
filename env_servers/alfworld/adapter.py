"""ALFWorld in text mode as an adapter: many games in one process, each as if it had TextWorld for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence

from env_servers.adapter import Adapter, AdapterError, Episode, Facts, StepResult, Task
from env_servers.alfworld import engine, generator, tasks, textworld_patch
from env_servers.alfworld.data import games_file
from env_servers.alfworld.game import Game

STYLES = ("move", "put")
_OPTIONS = ("admissible_actions", "banner", "command_style")
_SETTINGS = ("data", "generated_games", "generator_seed")
_MOST_GENERATED = 1_000_000


class ALFWorldAdapter(Adapter):
    """ALFWorld 0.4.2 on TextWorld 1.7.0.

    Settings: `data` (file of imported games; by default in the cache folder), `generated_games` (size of the generated
    training split) and `generator_seed`.

    Options of an episode: `admissible_actions` (true puts all commands that the game accepts now into `info`),
    `banner` (false leaves out the line "-= Welcome to TextWorld, ALFRED! =-") and `command_style` (`move`: "move X to
    Y", as ALFWorld 0.4 has it; `put`: "put X in/on Y", as 0.3 had it).
    """

    facts: ClassVar[Facts] = Facts(
        name="alfworld",
        sessions_per_worker=32,
        concurrency="interleaved",
        python_requires=">=3.9,<3.13",
        deterministic=True,
        max_steps=50,
        step_timeout=60.0,
        affinity=True,
        invalid_patterns=("nothing happens.",),
        action_format="react",
        reward_scale="1 for winning the game, else 0",
    )

    def __init__(self, settings: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(settings)
        _refuse_unknown(self.settings, _SETTINGS, "setting")
        count = _number("generated_games", self.settings.get("generated_games", 600), 1, _MOST_GENERATED)
        seed = _number("generator_seed", self.settings.get("generator_seed", 0), 0, 2**31)
        self._catalogue = tasks.Catalogue(Path(str(self.settings.get("data", games_file()))), count, seed)
        self._pool = engine.Pool()

    def metadata(self) -> Dict[str, Any]:
        """See the base class."""
        return {
            "adapter_version": "1",
            "versions": engine.versions(),
            "data_digest": self._catalogue.digest(),
            "engine_flags": {"generator": generator.VERSION, "translations_kept": textworld_patch.TRANSLATIONS},
        }

    def splits(self) -> Sequence[str]:
        """See the base class."""
        return self._catalogue.splits()

    def tasks(self, split: str) -> List[Task]:
        """See the base class."""
        return self._catalogue.tasks(split)

    def canonical_id(self, task_id: str) -> Optional[str]:
        """See the base class."""
        return self._catalogue.canonical_id(task_id)

    def start(self, task_id: str, seed: Optional[int], options: Mapping[str, Any]) -> Episode:
        """See the base class; a game leaves nothing to a seed."""
        _refuse_unknown(options, _OPTIONS, "option")
        admissible = _flag(options, "admissible_actions", False)
        banner = _flag(options, "banner", True)
        game = self._catalogue.game(task_id).in_style(_style(options))
        return ALFWorldEpisode(self._pool, game, admissible, banner)

    def gold(self, task_id: str, options: Mapping[str, Any]) -> Optional[List[Any]]:
        """See the base class."""
        _refuse_unknown(options, _OPTIONS, "option")
        return list(self._catalogue.game(task_id).in_style(_style(options)).walkthrough) or None

    def close(self) -> None:
        """See the base class."""
        self._catalogue.close()


class ALFWorldEpisode(Episode):
    """One game being played."""

    def __init__(self, pool: engine.Pool, game: Game, admissible: bool, banner: bool) -> None:
        self._pool = pool
        self._admissible = admissible
        self._won = False
        # Only an environment that started the game goes back to the pool.
        world = pool.take()
        turn = world.start(game)
        self._world: Optional[engine.World] = world
        text = turn.text if banner else _without_banner(turn.text)
        self.first = self._result(turn, text, 0.0)
        self.first.info.update(
            game=f"{game.folder}/{game.trial}",
            task_description=game.sentence,
            walkthrough_length=len(game.walkthrough),
        )

    def step(self, action: Any) -> StepResult:
        """See the base class."""
        if not isinstance(action, str):
            raise AdapterError(
                "bad_action", f"An action is a text such as 'go to desk 1', not {type(action).__name__}."
            )
        if self._won or self._world is None:
            # The engine would go on, and walking away from the goal un-wins the game.
            raise AdapterError("episode_over", "The game has ended; start a new episode.")
        turn = self._world.step(action)
        self._won = turn.won
        return self._result(turn, turn.text, float(turn.won))

    def close(self) -> None:
        """See the base class."""
        if self._world is not None:
            self._pool.give(self._world)
            self._world = None

    def _result(self, turn: engine.Turn, text: str, reward: float) -> StepResult:
        info: Dict[str, Any] = {
            "raw_score": int(turn.won),
            "score": float(turn.won),
            "success": turn.won,
            "action_valid": turn.valid,
        }
        if self._admissible:
            info["admissible_actions"] = [] if turn.won else list(turn.commands)
        return StepResult(text, reward, turn.won, False, info)


def _without_banner(text: str) -> str:
    first, _, rest = text.partition("\n\n")
    return rest if first.startswith("-=") else text


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    for name in given:
        if name not in known:
            raise AdapterError("bad_option", f"ALFWorld has no {kind} {name!r}; {kind}s are: {', '.join(known)}.")


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise AdapterError("bad_option", f"{name} is true or false, not {value!r}.")
    return value


def _style(options: Mapping[str, Any]) -> str:
    value = options.get("command_style", "move")
    if value not in STYLES:
        raise AdapterError("bad_option", f"command_style is 'move' or 'put', not {value!r}.")
    return str(value)


def _number(name: str, value: Any, least: int, most: int) -> int:
    if not str(value).isdigit() or not least <= int(value) <= most:
        raise AdapterError("bad_option", f"{name} is a whole number from {least} to {most}, not {value!r}.")
    return int(value)


ADAPTER = ALFWorldAdapter
