"""Two ranks learn what one rank learns from the same episodes, failed ones among them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import ranks_script
import skill_ranks_script
import torch
from ranks_kit import launch

pytestmark = [pytest.mark.train, pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each of two ranks saved, in a folder for every case."""
    folder = tmp_path_factory.mktemp("ranks")
    launch(Path(ranks_script.__file__), folder)
    return folder


def saved(folder: Path) -> Any:
    return [torch.load(file) for file in sorted(folder.glob("rank*.pt"))]


@pytest.mark.parametrize("loss_type", ranks_script.LOSS_TYPES)
def test_ranks_and_accumulation_change_nothing(loss_type: str, ranks: Path, tmp_path: Path) -> None:
    ranks_script.main(tmp_path, rows=8, accumulated=1, loss_type=loss_type)
    [alone] = saved(tmp_path)
    first, second = saved(ranks / loss_type)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(find_spec("bm25s") is None, reason="the `skills` extra is not installed")
def test_ranks_with_unequal_episodes_and_failed_cells_change_nothing(ranks: Path, tmp_path: Path) -> None:
    """Co-evolution, where one rank has a whole source and the other nothing but a failed episode."""
    skill_ranks_script.main(tmp_path, rows=16)
    [alone] = saved(tmp_path)
    first, second = saved(ranks / "skills")
    # What the first step looked like: a source that failed at once, and one of whose cells a column is missing.
    assert [len(rank["played"][0]) for rank in (first, second)] == [1 + 2 + 3 + 6, 1]
    assert second["played"][0][0]["failed"]
    failed = [episode["tag"] for episode in first["played"][0] if episode["failed"]]
    assert [tag for tag in failed if tag[0] == "solve"] and len(failed) < 6
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=1e-4, atol=1e-5)
