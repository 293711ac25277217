"""Tests of the trainer: one thread each, because spinning OpenMP threads on a busy machine are ten times slower."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402

torch.set_num_threads(1)
