"""Plays episodes: each alternates generation and environment steps on its own, none waits for another's environment.

Environments are stepped in threads; whoever has an observation joins the next call of the generation backend. The
driver knows tokens, turns and limits. It does not know TRL, losses, or any benchmark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import gymnasium

from cope_gym.errors import CopeError, InfrastructureError, InputError
from cope_gym.trajectory import Trajectory, Turn
from cope_train.rollout.backends import Backend, Completion, Request
from cope_train.rollout.buffer import EpisodeBuffer
from cope_train.rollout.labels import label_turn
from cope_train.rollout.template import ChatTemplate

logger = logging.getLogger(__name__)

# The service's sentence is then the observation, and the turn counts.
AGENTS_FAULTS = frozenset({"bad_action", "too_large"})
LATE = "late"  # type of the error of an episode that was cut off


@dataclass(frozen=True)
class Limits:
    """Where episodes end or are cut.

    Attributes:
        turns: Most action turns.
        turn_tokens: Most sampled tokens in a turn.
        episode_tokens: Most tokens after the prompt, observations included.
        first_observation_chars: Where the first observation is cut.
        observation_chars: Where later ones are cut.
        attempts: How often an episode is tried when the service fails.
        seconds: How long an episode may take, retries and waiting included; it fails then.
    """

    turns: int = 20
    turn_tokens: int = 64
    episode_tokens: int = 4096
    first_observation_chars: int = 4000
    observation_chars: int = 2000
    attempts: int = 2
    seconds: float | None = None


@dataclass(frozen=True)
class Job:
    """One episode to play.

    Attributes:
        task_id: The task.
        seed: Of the environment; equal for all episodes of a group.
        sampling_seed: What the episode's random numbers are drawn from, together with the turn.
        sample: Index among the episodes of the task.
        setup: How this episode is played, where not as the others.
        tag: Whatever the caller wants to know it by.
    """

    task_id: str
    seed: int | None
    sampling_seed: tuple[Hashable, ...]
    sample: int = 0
    setup: Setup | None = None
    tag: Hashable = None


@dataclass
class Episode:
    """One episode. `failed` means that no score counts: the service failed, and so did every retry."""

    job: Job
    trajectory: Trajectory
    buffer: EpisodeBuffer = field(default_factory=EpisodeBuffer)
    failed: bool = False
    no_action_turns: int = 0
    multi_action_turns: int = 0


@dataclass(frozen=True)
class Setup:
    """How episodes are played.

    Attributes:
        make_env: Makes an environment whose `reset` takes `options={"task_id": …}`; called in a thread, once an
            episode.
        template: Chat template of the model.
        system_prompt: First message.
        action_format: A name of `cope_gym.actions.FORMATS`.
        limits: See `Limits`.
        describe: Fields of every trajectory, e.g. `env`, `split`, `policy`, `options`.
        threads: Most environment calls at the same time.
        gather_seconds: How long a batching backend waits for further episodes to become ready.
        ordered: Wait for every live episode before each generation, so that batches do not depend on timing.
        straggler_share: Once this share of the episodes is over, the others are cut off …
        straggler_seconds: … after so many seconds.
    """

    make_env: Callable[[], gymnasium.Env[Any, Any]]
    template: ChatTemplate
    system_prompt: str
    action_format: str
    limits: Limits = field(default_factory=Limits)
    describe: Mapping[str, Any] = field(default_factory=dict[str, Any])
    threads: int = 64
    gather_seconds: float = 0.1
    ordered: bool = False
    straggler_share: float = 1.0
    straggler_seconds: float = 30.0


@dataclass
class Clock:
    """Seconds of one rollout: before the first turn, sampling, environment calls (summed), idle waiting, all of it.

    `polls` counts calls of the backend; with vLLM in this process each is a step of its engine.
    """

    start: float = 0.0
    generate: float = 0.0
    environment: float = 0.0
    waiting: float = 0.0
    total: float = 0.0
    polls: int = 0


class Rollout:
    """One call of `play`: all jobs, from the first reset to the last close.

    Args:
        jobs: What to play.
        setup: How.
        backend: Samples the turns.
        progress: Called whenever an episode is over.
        then: Called with an episode that is over; what it returns is played too.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        setup: Setup,
        backend: Backend,
        progress: Callable[[Episode], None] | None = None,
        then: Callable[[Episode], Sequence[Job]] | None = None,
    ) -> None:
        self.setup = setup
        self.backend = backend
        self.progress = progress
        self.then = then
        self.clock = Clock()
        self.episodes = [self._fresh(job) for job in jobs]
        self._attempts = [0] * len(jobs)
        self._environments: dict[int, gymnasium.Env[Any, Any]] = {}
        self._calls: dict[Future[Any], int] = {}
        self._answered: SimpleQueue[Future[Any]] = SimpleQueue()
        self._queued: set[int] = set()
        self._due: dict[int, float] = {}  # of live episodes with a deadline
        self._over = 0
        self._last_call: float | None = None
        self._started = 0.0
        self._given_up: dict[int, Future[Any]] = {}
        threads = setup.threads if then else min(setup.threads, len(jobs))
        self._pool = ThreadPoolExecutor(max(threads, 1), "environment")

    def play(self) -> list[Episode]:
        """Plays all jobs to their ends.

        Returns:
            One episode a job, in order, then those that followed. Environments are closed, also when this raises.

        Raises:
            CopeError: The service refuses a call as wrong, so that trying again would not help.
        """
        self._started = time.perf_counter()
        try:
            for index in range(len(self.episodes)):
                self._start(index)
            while self._calls or self._queued:
                self._collect()
                self._cut_off()
                if self._queued:
                    self._generate()
        finally:
            self._release()
        self.clock.total = time.perf_counter() - self._started
        return self.episodes

    def _fresh(self, job: Job) -> Episode:
        facts = {"seed": job.seed, "sample": job.sample, **(job.setup or self.setup).describe}
        return Episode(job, Trajectory(task_id=job.task_id, **facts))

    def _setup(self, episode: Episode) -> Setup:
        return episode.job.setup or self.setup

    def _call(self, index: int, function: Callable[..., Any], *args: Any) -> None:
        def timed() -> Any:
            started = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.clock.environment += time.perf_counter() - started

        future = self._pool.submit(timed)
        self._calls[future] = index
        future.add_done_callback(self._answered.put)

    def _start(self, index: int) -> None:
        seconds = self._setup(self.episodes[index]).limits.seconds
        if seconds is not None:
            self._due[index] = time.monotonic() + seconds
        self._call(index, self._open, index)

    def _open(self, index: int) -> tuple[Any, ...]:
        job = self.episodes[index].job
        env = self._environments[index] = (job.setup or self.setup).make_env()
        return env.reset(seed=job.seed, options={"task_id": job.task_id})

    def _collect(self) -> None:
        """Takes in what environments have answered; waits only as long as that makes sense."""
        if not self._calls:
            return
        started = time.perf_counter()
        batching = self.setup.ordered or (self.backend.batches and self._queued)
        if self.setup.ordered or not self._queued:
            timeout = self._patience()
        else:
            timeout = self.setup.gather_seconds if self.backend.batches else 0.0
        done = self._take(timeout, len(self._calls) if batching else 1)
        self.clock.waiting += time.perf_counter() - started
        for future in sorted(done, key=self._calls.__getitem__):
            index = self._calls.pop(future)
            try:
                result = future.result()
            except InfrastructureError as error:
                self._fail(index, error)
            except InputError as error:
                if error.type not in AGENTS_FAULTS:
                    raise
                self._reply(self.episodes[index], error.detail)
                self._continue(index)
            else:
                self._observe(index, *result)

    def _take(self, timeout: float | None, wanted: int) -> list[Future[Any]]:
        """Waits until so many calls have been answered or the time is over; takes all that have been."""
        ends = None if timeout is None else time.monotonic() + timeout
        done: list[Future[Any]] = []
        while True:
            late = len(done) >= wanted or (ends is not None and time.monotonic() >= ends)
            rest = None if ends is None else max(ends - time.monotonic(), 0.0)
            try:
                future = self._answered.get_nowait() if late else self._answered.get(timeout=rest)
            except Empty:
                if late:
                    return done
                continue
            if future in self._calls:  # else its episode has been given up
                done.append(future)

    def _patience(self) -> float | None:
        """Seconds until an episode has to be cut off."""
        times = [*self._due.values(), *([] if self._last_call is None else [self._last_call])]
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _cut_off(self) -> None:
        """Gives up what is past its time: an episode's deadline, or that of the last few."""
        now = time.monotonic()
        if self._last_call is not None and now >= self._last_call:
            rest = f"{self._over} of {len(self.episodes)} episodes were over (straggler_share, straggler_seconds)"
            for index in {*self._calls.values(), *self._queued}:
                self._give_up(index, f"cut off: {rest}")
        for index in [index for index, due in self._due.items() if now >= due]:
            self._give_up(index, "cut off: it took longer than episode_seconds")

    def _give_up(self, index: int, why: str) -> None:
        """Ends an episode as failed. A call that is running cannot be stopped: its environment is closed after it."""
        running = next((future for future, owner in self._calls.items() if owner == index), None)
        if running is not None:
            del self._calls[running]
            if not running.cancel():
                self._given_up[index] = running
                running.add_done_callback(lambda _: self._discard(index))
        self._queued.discard(index)
        episode = self.episodes[index]
        episode.failed, episode.trajectory.error = True, {"type": LATE, "detail": why}
        self._end(index)

    def _discard(self, index: int) -> None:
        env = self._environments.pop(index, None)
        if env is not None:
            _close_quietly(env)

    def _generate(self) -> None:
        started = time.perf_counter()
        completions = self.backend.poll()
        self.clock.generate += time.perf_counter() - started
        self.clock.polls += 1
        for completion in completions:
            self._act(completion)

    def _observe(self, index: int, text: str, *outcome: Any) -> None:
        """Takes a reply of `reset` (text, info) or of `step` (text, reward, terminated, truncated, info)."""
        episode = self.episodes[index]
        trajectory, info = episode.trajectory, outcome[-1]
        trajectory.category = info.get("category", trajectory.category)
        trajectory.split = info.get("split", trajectory.split)
        _score(trajectory, info)
        if len(outcome) == 1:
            self._begin(episode, text)
        else:
            reward, trajectory.terminated, trajectory.truncated = outcome[:3]
            trajectory.reward += reward
            turn = trajectory.turns[-1]
            turn.reward, turn.score, turn.valid = reward, trajectory.score, info.get("action_valid", True)
            episode.buffer.judge(turn.valid, info.get("tool_calls"), bool(info.get("handoff")))
            self._reply(episode, text)
        self._continue(index)

    def _begin(self, episode: Episode, text: str) -> None:
        setup = self._setup(episode)
        text = _cut(text, setup.limits.first_observation_chars)
        messages = [{"role": "system", "content": setup.system_prompt}, {"role": "user", "content": text}]
        episode.trajectory.messages = messages
        episode.buffer.append_prompt(setup.template.prompt(messages))
        if self._room(episode) < 1:
            length, most = len(episode.buffer.ids), self.backend.context
            raise InputError(
                f"the first prompt of {episode.job.task_id} has {length} tokens, the model is run with {most}: lower "
                "first_observation_chars, or raise vllm_max_model_length",
                type="bad_option",
            )

    def _reply(self, episode: Episode, text: str) -> None:
        """Adds an observation; the last one of an episode is kept as a message but is nothing to train on."""
        limits, trajectory = self._setup(episode).limits, episode.trajectory
        text = _cut(text, limits.observation_chars)
        trajectory.messages.append({"role": "user", "content": text})
        message = self._setup(episode).template.observation(text)
        room = self._room(episode) - len(message.ids)
        over = trajectory.terminated or trajectory.truncated
        if not over and (room < 1 or len(trajectory.turns) >= limits.turns):
            trajectory.truncated = over = True
        if not over:
            episode.buffer.append_observation(message)

    def _continue(self, index: int) -> None:
        """Asks for the next turn, or ends the episode."""
        episode = self.episodes[index]
        if episode.trajectory.terminated or episode.trajectory.truncated:
            self._end(index)
            return
        self.clock.start = self.clock.start or time.perf_counter() - self._started
        most = min(self._setup(episode).limits.turn_tokens, self._room(episode))
        seed = (*episode.job.sampling_seed, len(episode.trajectory.turns))
        self.backend.submit(Request(index, list(episode.buffer.ids), most, seed))
        self._queued.add(index)

    def _room(self, episode: Episode) -> int:
        """How many tokens can follow, by the episode's limit and by what the model takes."""
        buffer = episode.buffer
        limit = self._setup(episode).limits.episode_tokens
        return min(limit - buffer.completion_length, self.backend.context - len(buffer.ids))

    def _act(self, completion: Completion) -> None:
        index: Any = completion.key
        self._queued.discard(index)
        episode = self.episodes[index]
        template = self._setup(episode).template
        ids, trajectory = completion.ids, episode.trajectory
        episode.buffer.append_turn(
            ids, completion.logprobs, [] if ids[-1] == template.end_of_turn else [template.end_of_turn]
        )
        text, action = label_turn(episode.buffer, ids, template, self._setup(episode).action_format)
        span = None if action.error else (action.start, action.end)
        trajectory.messages.append({"role": "assistant", "content": text})
        trajectory.turns.append(
            Turn(
                index=len(trajectory.turns),
                message=len(trajectory.messages) - 1,
                action=action.action,
                action_span=span,
                valid=False,
                score=trajectory.score,
                tokens=len(ids),
                truncated=not completion.finished,
            )
        )
        if action.count > 1:
            episode.multi_action_turns += 1
            trajectory.extra.setdefault("several_actions", []).append(trajectory.turns[-1].index)
        if action.error:
            episode.no_action_turns += 1
            self._reply(episode, action.error)
            self._continue(index)
        else:
            self._call(index, self._environments[index].step, action.action)

    def _fail(self, index: int, error: InfrastructureError) -> None:
        """Tries an episode again from its start; gives it up after the last attempt."""
        self._close(index)
        self._attempts[index] += 1
        if self._attempts[index] < self._setup(self.episodes[index]).limits.attempts:
            logger.warning("episode of %s is started again: %s", self.episodes[index].job.task_id, error.detail)
            self.episodes[index] = self._fresh(self.episodes[index].job)
            self._call(index, self._open, index)
            return
        episode = self.episodes[index]
        episode.failed = True
        episode.trajectory.error = {"type": error.type, "detail": error.detail}
        self._end(index)

    def _end(self, index: int) -> None:
        self._close(index)
        self._due.pop(index, None)
        self._over += 1
        episode = self.episodes[index]
        if self.progress:
            self.progress(episode)
        for job in self.then(episode) if self.then else ():
            self.episodes.append(self._fresh(job))
            self._attempts.append(0)
            self._start(len(self.episodes) - 1)
        if self._over < self.setup.straggler_share * len(self.episodes):
            self._last_call = None  # others have joined
        elif self._last_call is None:
            self._last_call = time.monotonic() + self.setup.straggler_seconds

    def _close(self, index: int) -> None:
        self.backend.release(index)
        env = None if index in self._given_up else self._environments.pop(index, None)
        if env is not None:
            self._pool.submit(_close_quietly, env)

    def _release(self) -> None:
        """Frees everything; calls still running belong to an episode that was given up with an error."""
        for future in self._calls:
            future.cancel()
        for index in list(self._environments):
            self._close(index)
        for index in self._queued:
            self.backend.release(index)
        self._pool.shutdown(wait=all(future.done() for future in self._given_up.values()))


def _score(trajectory: Trajectory, info: Mapping[str, Any]) -> None:
    trajectory.score = float(info.get("score", 0.0))
    trajectory.raw_score = float(info.get("raw_score", 0.0))
    trajectory.success = bool(info.get("success", False))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + " …"


def _close_quietly(env: gymnasium.Env[Any, Any]) -> None:
    try:
        env.close()
    except CopeError as error:
        logger.warning("an environment could not be closed: %s", error)
