"""Importing games: from trees, archives and downloads, and nothing that is not a game."""

from __future__ import annotations

import json
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from env_servers.alfworld import data, game, store

GRAMMAR = 'grammar :: """{"task": [{"rhs": "Your task is to: put a mug in desk."}]}"""'
NAME = "pick_and_place_simple-Mug-None-Desk-308"


def content(**changes: Any) -> dict[str, Any]:
    whole = {"pddl_domain": "D", "grammar": GRAMMAR, "pddl_problem": "P", "solvable": True, "walkthrough": ["look"]}
    return {**whole, **changes}


def put(root: Path, split: str, folder: str, trial: str, body: Any) -> Path:
    file = root / "json_2.1.1" / split / folder / trial / "game.tw-pddl"
    file.parent.mkdir(parents=True)
    file.write_text(body if isinstance(body, str) else json.dumps(body))
    return file


def imported(path: Path, target: Path) -> list[tuple[str, str]]:
    data.import_tree(path, target)
    return [name for split in store.Store(target).counts() for name in store.Store(target).names(split)]


def test_every_official_game_comes_out_as_it_went_in(official_games: Path, shared_data: Path) -> None:
    kept = store.Store(official_games)
    seen = 0
    with tarfile.open(shared_data / "alfworld" / "valid_unseen.tar.xz") as archive:
        for member in archive:
            if member.name.endswith("/game.tw-pddl"):
                folder, trial = member.name.split("/")[2:4]
                number = kept.position("valid_unseen", folder, trial)
                assert number is not None
                body = archive.extractfile(member)
                assert body is not None
                assert kept.game("valid_unseen", number).to_file() == json.load(body)
                seen += 1
    assert seen == 134
    assert kept.names("valid_unseen") == sorted(kept.names("valid_unseen"))
    assert official_games.stat().st_size < 1_000_000
    assert kept.digest() == "3e8b3dbba8b9989b056eb35ec825fd0a19e66ef134df95f7ad49ee5fd44e76ea"


def test_a_tree_a_zip_and_a_tar_give_the_same(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(3):
        put(tree, "valid_seen", NAME, f"trial_{number}", content(pddl_problem=f"P{number}"))
    put(tree, "train", NAME, "trial_0", content())
    shutil.make_archive(str(tmp_path / "a"), "zip", tree)
    shutil.make_archive(str(tmp_path / "b"), "xztar", tree)
    digests: set[str] = set()
    for number, source in enumerate([tree, tree / "json_2.1.1", tmp_path / "a.zip", tmp_path / "b.tar.xz"]):
        target = tmp_path / f"{number}.sqlite"
        assert data.import_tree(source, target) == {"train": 1, "valid_seen": 3}
        digests.add(store.Store(target).digest())
    assert len(digests) == 1


def test_an_import_replaces_its_splits_and_keeps_the_others(tmp_path: Path) -> None:
    target = tmp_path / "games.sqlite"
    put(tmp_path / "1", "train", NAME, "trial_a", content())
    put(tmp_path / "1", "valid_seen", NAME, "trial_b", content())
    put(tmp_path / "2", "train", NAME, "trial_c", content())
    data.import_tree(tmp_path / "1", target)
    reader = store.Store(target)
    assert imported(tmp_path / "2", target) == [(NAME, "trial_c"), (NAME, "trial_b")]
    # Whoever reads goes on with what was there.
    assert reader.names("train") == [(NAME, "trial_a")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "games.sqlite"]


def test_what_alfworld_leaves_out_is_left_out(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    put(tree, "train", NAME, "trial_ok", content())
    put(tree, "train", NAME, "trial_unsolvable", content(solvable=False))
    put(tree, "train", NAME, "trial_unchecked", {k: v for k, v in content().items() if k != "solvable"})
    put(tree, "train", "pick_and_place_with_movable_recep-Mug-Bowl-Desk-308", "trial_movable", content())
    put(tree, "train", "pick_heat_then_place_in_recep-AppleSliced-None-Desk-308", "trial_sliced", content())
    put(tree, "elsewhere", NAME, "trial_split", content())
    assert imported(tree, tmp_path / "games.sqlite") == [(NAME, "trial_ok")]


@pytest.mark.parametrize(
    ("folder", "trial", "body", "says"),
    [
        (NAME, "trial_0", "{", "Expecting property name"),
        (NAME, "trial_0", "[]", "no attribute 'get'"),
        (NAME, "trial_0", content(grammar=3), "the file has no text 'grammar'"),
        (NAME, "trial_0", content(pddl_domain=None), "the file has no text 'pddl_domain'"),
        (NAME, "trial_0", content(grammar="nothing"), "no plain sentence"),
        (NAME, "trial_0", content(grammar=GRAMMAR.replace("mug", "{__import__('os')}")), "no plain sentence"),
        (NAME, "trial_0", content(walkthrough="look"), "no list of commands"),
        ("win_the_game-Mug-None-Desk-308", "trial_0", content(), "of a known type"),
        ("games", "trial_0", content(), "is not `type-Object-Movable-Receptacle-scene`"),
        (NAME, "trial 0", content(), "no name of a trial"),
    ],
)
def test_a_file_that_is_no_game_is_named(tmp_path: Path, folder: str, trial: str, body: Any, says: str) -> None:
    target = tmp_path / "games.sqlite"
    put(tmp_path / "good", "train", NAME, "trial_0", content())
    data.import_tree(tmp_path / "good", target)
    file = put(tmp_path / "bad", "train", folder, trial, body)
    with pytest.raises(data.DataError) as caught:
        data.import_tree(tmp_path / "bad", target)
    assert says in str(caught.value)
    assert str(file) in str(caught.value)
    # What was imported before is untouched, and nothing lies about.
    assert store.Store(target).names("train") == [(NAME, "trial_0")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "games.sqlite", "good"]


def test_a_place_without_games_is_named(tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match="does not exist: give ALFWorld's data folder"):
        data.import_tree(tmp_path / "nowhere", tmp_path / "games.sqlite")
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(data.DataError, match="neither a folder nor a zip or tar archive"):
        data.import_tree(tmp_path / "file.txt", tmp_path / "games.sqlite")
    with pytest.raises(data.DataError, match="holds no game.tw-pddl in folders"):
        data.import_tree(tmp_path, tmp_path / "games.sqlite")
    assert not (tmp_path / "games.sqlite").exists()


def test_names_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr(f"../../train/{NAME}/trial_0/game.tw-pddl", json.dumps(content()))
    assert imported(tmp_path / "evil.zip", tmp_path / "games.sqlite") == [(NAME, "trial_0")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.zip", "games.sqlite"]


def test_splits_of_another_size_than_the_official_are_told(tmp_path: Path) -> None:
    put(tmp_path / "tree", "valid_unseen", NAME, "trial_0", content())
    [sentence] = data.incomplete(data.import_tree(tmp_path / "tree", tmp_path / "games.sqlite"))
    assert sentence.startswith("valid_unseen has 1 games, officially 134:")
    assert data.incomplete({"valid_seen": 140}) == []


@pytest.fixture
def release(tmp_path: Path) -> Iterator[str]:
    """A server with an archive as ALFWorld's release has it."""
    put(tmp_path / "tree", "valid_seen", NAME, "trial_0", content())
    shutil.make_archive(str(tmp_path / "served" / "games"), "zip", tmp_path / "tree")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_download_is_imported(release: str, tmp_path: Path) -> None:
    assert data.download(f"{release}/games.zip", tmp_path / "games.sqlite") == {"valid_seen": 1}
    with pytest.raises(data.DataError, match="cannot be fetched .*404.*cope data import alfworld FOLDER"):
        data.download(f"{release}/nothing.zip", tmp_path / "games.sqlite")


def test_games_lie_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COPE_HOME", str(tmp_path / "home"))
    put(tmp_path / "tree", "valid_unseen", NAME, "trial_0", content())
    told: list[str] = []
    found = data.import_data(str(tmp_path / "tree"), report=told.append)
    file = tmp_path / "home" / "data" / "alfworld" / "games.sqlite"
    assert (found["file"], found["splits"]) == (str(file), {"valid_unseen": 1})
    assert file.is_file() and len(told) == len(found["notes"]) == 1


def test_the_old_style_touches_commands_and_feedback_only() -> None:
    new = 'template :: "move {o} to {r}"; "You move the {o.name} to the {r.name}." move (object) to (receptacle):'
    one = game.Game(NAME, "t", "s", "p", ("go to desk 1", "move mug 1 to desk 1"), "d", new)
    old = one.in_style("put")
    assert old.walkthrough == ("go to desk 1", "put mug 1 in/on desk 1")
    assert old.grammar == (
        'template :: "put {o} in/on {r}"; "You put the {o.name} in/on the {r.name}." put (object) in/on (receptacle):'
    )
    assert one.in_style("move") is one
