"""Shared fixtures."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine, not of the code: a busy one must not fail the suite.
settings.register_profile("cope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cope")


def pytest_collection_finish() -> None:
    """Trainers collect garbage at every start: half a second with all of torch in memory, unless that is set aside."""
    gc.collect()
    gc.freeze()


SHARED_DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for the temporary files of whatever is started in the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with official samples and oracles; the public does not have it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("../shared/data is absent: this test compares with official data that is not distributed")
    return SHARED_DATA
