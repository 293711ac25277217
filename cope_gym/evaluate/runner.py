"""Runs a policy over a panel: concurrent, resumable, and honest about what it could not play.

Episodes are written as they end; the same call on the same folder plays only what is missing. An infrastructure fault
is tried again, then listed under `errors` (and tried again by the next call), never scored. A task of which the policy
`gold` has no solution is listed there as well, and not tried again. A result exists only when every planned episode
was played, unless a partial one is asked for by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cope_gym.errors import CopeError, InfrastructureError, InputError, SessionError
from cope_gym.evaluate.batching import Act, Batcher, single
from cope_gym.evaluate.episode import Item, Rules, TextEnv, derived_seed, play
from cope_gym.evaluate.panels import Panel
from cope_gym.evaluate.policies import NO_GOLD, NoGold, Policy, Prompt, Reply
from cope_gym.evaluate.results import summarise
from cope_gym.evaluate.store import Key, Store
from cope_gym.skills.lookup import BankLookup
from cope_gym.trajectory import Trajectory

Progress = Callable[[Trajectory, int, int], None]
_FAILURES_IN_A_ROW = 10  # infrastructure is down: stop and keep what there is, in place of a list of errors


@dataclass(frozen=True)
class Evaluation:
    """What is evaluated and how. All but `concurrency` and `attempts` decides the result and is recorded in it.

    Attributes:
        panel: The tasks.
        rules: How an episode is played.
        samples: Episodes a task.
        seed: Seeds environments and policies.
        versions: Versions and data digests of what plays.
        concurrency: Episodes at the same time.
        attempts: How often an episode is tried when infrastructure fails.
        skills: Puts a skill of a bank before every episode.
    """

    panel: Panel
    rules: Rules
    samples: int = 1
    seed: int = 0
    versions: Mapping[str, Any] = field(default_factory=dict[str, Any])
    concurrency: int = 8
    attempts: int = 3
    skills: BankLookup | None = None

    def items(self) -> list[Item]:
        """Returns the planned episodes in their final order."""
        return [
            Item(task, sample, derived_seed(self.seed, task, sample))
            for task in self.panel.task_ids
            for sample in range(self.samples)
        ]

    def settings(self, policy: Policy) -> dict[str, Any]:
        """Returns what is recorded of the evaluation."""
        panel = self.panel
        return {
            "panel": {
                "env": panel.env,
                "name": panel.name,
                "split": panel.split,
                "digest": panel.digest,
                "options": dict(panel.options),
                "task_ids": list(panel.task_ids),
            },
            "policy": {"name": policy.name, "settings": dict(policy.settings)},
            "rules": asdict(self.rules),
            "samples": self.samples,
            "seed": self.seed,
            "versions": dict(self.versions),
            **({"skills": dict(self.skills.settings)} if self.skills else {}),
        }


class Interrupted(InputError):
    """The evaluation stopped before its end; what was played is kept."""


def evaluate(
    evaluation: Evaluation,
    policy: Policy,
    make_env: Callable[[], TextEnv],
    out: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Plays what is missing in `out` and writes `result.json` and `trajectories.jsonl`.

    Args:
        evaluation: What and how.
        policy: Who plays. It is not closed.
        make_env: Makes an environment; called once a thread and again after a fault.
        out: Folder of this evaluation.
        progress: Called in this thread after every episode with it, the number done and the number planned.

    Returns:
        The content of `result.json`.

    Raises:
        InputError: A task, an option or the policy is wrong, the folder holds another evaluation, or there are no
            solutions for the policy `gold`.
        Interrupted: The infrastructure kept failing. What was played is kept.
    """
    store = Store(out)
    settings = evaluation.settings(policy)
    with store.opened(settings):
        done = {key: episode for key, episode in store.episodes().items() if not _to_try_again(episode)}
        items = evaluation.items()
        missing = [item for item in items if (item.task_id, item.sample) not in done]
        _check_solutions(done, len(items))
        with _Pool(evaluation, policy, make_env) as pool:
            row = 0
            for episode in pool.play(missing):
                store.append(episode)
                done[episode.task_id, episode.sample] = episode
                if progress:
                    progress(episode, len(done), len(items))
                _check_solutions(done, len(items))
                row = row + 1 if _to_try_again(episode) else 0
                if row >= _FAILURES_IN_A_ROW:
                    fault = (episode.error or {}).get("detail", "")
                    detail = (
                        f"{row} episodes in a row failed, last: {fault} What was played is kept; run it again later."
                    )
                    raise Interrupted(detail, type="interrupted")
        return _conclude(store, [(item.task_id, item.sample) for item in items], done, settings)


def conclude(out: Path, allow_partial: bool = False) -> dict[str, Any]:
    """Makes the result of what a folder holds, without playing.

    Args:
        out: Folder of an evaluation.
        allow_partial: Accept missing episodes; the result then says `"complete": false`. Short tasks finish first, so
            a partial result is biased.

    Raises:
        InputError: No evaluation, or a partial one that was not asked for.
    """
    store = Store(out)
    settings = store.settings()
    with store.opened(settings):
        done = store.episodes()
        plan = [(task, sample) for task in settings["panel"]["task_ids"] for sample in range(settings["samples"])]
        missing = sum(key not in done for key in plan)
        if missing and not allow_partial:
            detail = (
                f"{out} lacks {missing} of {len(plan)} episodes, and a partial result is biased; run the evaluation "
                "again to finish it, or ask for the partial one with --allow-partial."
            )
            raise InputError(detail, type="partial")
        return _conclude(store, plan, done, settings)


def _conclude(
    store: Store, plan: Sequence[Key], done: Mapping[Key, Trajectory], settings: Mapping[str, Any]
) -> dict[str, Any]:
    episodes = [done[key] for key in plan if key in done]
    result = summarise(episodes, len(plan), settings)
    store.finish(episodes, result)
    return result


def _to_try_again(episode: Trajectory) -> bool:
    return episode.error is not None and episode.error["type"] != NO_GOLD


def _check_solutions(done: Mapping[Key, Trajectory], planned: int) -> None:
    """Ends the evaluation of a benchmark without solutions early, in place of listing all its tasks."""
    without = [e.error["detail"] for e in done.values() if e.error and e.error["type"] == NO_GOLD]
    if len(without) == len(done) >= min(planned, _FAILURES_IN_A_ROW):
        detail = f"{without[-1]} None of {len(without)} tasks so far has one; choose another policy."
        raise InputError(detail, type=NO_GOLD)


class _Pool:
    """Threads that each keep one environment; on leaving, all of it is stopped and closed, also after Ctrl-C."""

    def __init__(self, evaluation: Evaluation, policy: Policy, make_env: Callable[[], TextEnv]) -> None:
        self._evaluation = evaluation
        self._policy = policy
        self._make_env = make_env
        self._local = threading.local()
        self._envs: list[TextEnv] = []
        self._stop = threading.Event()
        self._cause: BaseException | None = None  # what stopped the run; the other threads' faults only follow from it
        self._batcher = Batcher(policy) if policy.batch_size > 1 else None
        self._act: Act = self._batcher.act if self._batcher else single(policy)
        self._threads = ThreadPoolExecutor(max(1, evaluation.concurrency), thread_name_prefix="episode")

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._batcher:
            self._batcher.close()
        for env in self._envs:
            _close(env)

    def play(self, items: Sequence[Item]) -> Iterator[Trajectory]:
        """Yields episodes as they end; raises what no other attempt can mend."""
        waiting: set[Future[Trajectory]] = {self._threads.submit(self._episode, item) for item in items}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in ended if future.exception() is None)
            if self._cause:
                raise self._cause

    def _episode(self, item: Item) -> Trajectory:
        try:
            return self._attempts(item)
        except BaseException as error:
            if not self._stop.is_set():
                self._cause = error
                self._stop.set()
            raise

    def _attempts(self, item: Item) -> Trajectory:
        for attempt in range(self._evaluation.attempts):
            try:
                return self._play(item)
            except NoGold as error:
                return self._failed(item, error)
            except (InfrastructureError, SessionError) as error:
                self._drop_env()
                if attempt + 1 == self._evaluation.attempts or not _worth_another(error):
                    return self._failed(item, error)
                self._stop.wait(error.retry_after or 2.0**attempt)
        raise AssertionError("attempts is at least 1")

    def _play(self, item: Item) -> Trajectory:
        self._check()
        evaluation = self._evaluation
        env: TextEnv | None = getattr(self._local, "env", None)
        if env is None:
            env = self._local.env = self._make_env()
            self._envs.append(env)
        options, name = evaluation.panel.options, self._policy.name
        episode = play(env, self._stoppable, item, evaluation.rules, options, name, evaluation.skills)
        episode.versions = dict(evaluation.versions)
        return episode

    def _stoppable(self, prompt: Prompt) -> Reply:
        self._check()
        return self._act(prompt)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Interrupted("The evaluation was stopped.", type="interrupted")

    def _failed(self, item: Item, error: CopeError) -> Trajectory:
        evaluation = self._evaluation
        return Trajectory(
            env=evaluation.rules.env,
            task_id=item.task_id,
            split=evaluation.panel.split,
            seed=item.seed,
            policy=self._policy.name,
            sample=item.sample,
            options=dict(evaluation.panel.options),
            versions=dict(evaluation.versions),
            error={"type": error.type, "detail": error.detail},
        )

    def _drop_env(self) -> None:
        env: TextEnv | None = getattr(self._local, "env", None)
        if env is not None:
            self._local.env = None
            self._envs.remove(env)
            _close(env)


def _worth_another(error: CopeError) -> bool:
    """A session that was lost or out of step is new with a new episode, whatever its own call's prospects."""
    return error.retryable or isinstance(error, SessionError)


def _close(env: TextEnv) -> None:
    with suppress(CopeError):  # the episode is over either way; the service frees the session when its lease ends
        env.close()
