"""The texts that tasks are retrieved by: each task's own description, read off its first observation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym

from cope_gym.skills.retrieval import Document

MakeEnv = Callable[[], "gym.Env[Any, Any]"]


def task_documents(
    make_env: MakeEnv,
    task_ids: Sequence[str],
    threads: int = 16,
    progress: Callable[[], None] | None = None,
) -> list[Document]:
    """Opens every task once and returns its description.

    Args:
        make_env: Makes environments whose `reset` takes `options={"task_id": …}`; one a thread.
        task_ids: The tasks.
        threads: Environments open at the same time.
        progress: Called after each task.

    Returns:
        One document a task in the given order. Its text is `info["task_description"]`, or the first observation where
        the benchmark names no description.

    Raises:
        CopeError: An environment could not be opened.
    """
    shares = [task_ids[i::threads] for i in range(min(threads, len(task_ids)))]
    with ThreadPoolExecutor(max(len(shares), 1)) as pool:
        reading = [pool.submit(_read, make_env, share, progress) for share in shares]
        by_id = {document.id: document for share in reading for document in share.result()}
    return [by_id[task_id] for task_id in task_ids]


def _read(make_env: MakeEnv, task_ids: Sequence[str], progress: Callable[[], None] | None) -> list[Document]:
    env = make_env()
    documents: list[Document] = []
    try:
        for task_id in task_ids:
            text, info = env.reset(options={"task_id": task_id})
            documents.append(Document(task_id, info.get("task_description", text).strip(), info.get("category", "")))
            if progress:
                progress()
        return documents
    finally:
        env.close()
