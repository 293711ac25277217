"""Shared fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

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
