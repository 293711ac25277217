"""Fixtures of the objectives' tests; what builds them is in `objectives_kit`."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
pytest.importorskip("trl", reason="needs the `train` extra")

from objectives_kit import make_tokenizer  # noqa: E402

from cope_train.objectives.chat import ChatPieces  # noqa: E402


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="session")
def chat(tokenizer: Any) -> ChatPieces:
    return ChatPieces.probe(tokenizer)
