"""Skills of a bank at evaluation: which one a task gets, never its own, and the HTTP form of retrieval."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from cope_gym.errors import InfrastructureError, InputError
from cope_gym.skills import Skill
from cope_gym.skills.bank import SkillBank
from cope_gym.skills.lookup import BankLookup
from cope_gym.skills.remote import RemoteIndex, RetrievalServer
from cope_gym.skills.retrieval import Document, TaskIndex

pytest.importorskip("bm25s", reason="the `skills` extra is not installed")

DOCUMENTS = [
    Document("boil/0", "Your task is to boil water in the kitchen.", "boil"),
    Document("boil/1", "Your task is to boil lead in the foundry.", "boil"),
    Document("find/0", "Your task is to find a living thing.", "find"),
    Document("find/1", "Your task is to find a plant outside.", "find"),
]


@pytest.fixture
def bank(tmp_path: Path) -> SkillBank:
    made = SkillBank(tmp_path / "bank.sqlite")
    for document in DOCUMENTS[:3]:
        made.add("sciworld", document.id, Skill(f"of-{document.id[:4]}", f"Learnt on {document.id}."), document.text,
                 document.category)  # fmt: skip
    return made


def test_a_task_gets_the_skill_of_the_most_similar_other_task(bank: SkillBank) -> None:
    lookup = BankLookup(bank, "sciworld", "bm25")
    found = lookup.find("boil/7", "Your task is to boil lead in the kitchen of the foundry.")
    assert found and found.source_task == "boil/1"
    # Its own skill is the nearest by far, and never offered; nor is one of a task with the same text.
    own = lookup.find("boil/0", DOCUMENTS[0].text)
    assert own and own.source_task == "boil/1"
    twin = lookup.find("boil/99", DOCUMENTS[0].text.upper())
    assert twin and twin.source_task != "boil/0"
    reworded = lookup.find("boil/0", "Boil the water, in the kitchen.")
    assert reworded and reworded.source_task != "boil/0"


def test_the_card_stands_in_the_system_prompt(bank: SkillBank) -> None:
    lookup = BankLookup(bank, "sciworld", "bm25")
    system = lookup.condition("Act.", lookup.find("boil/0", DOCUMENTS[0].text))
    assert system.startswith("Act.") and "Learnt on boil/1." in system
    assert lookup.condition("Act.", None) == "Act."


def test_of_equally_similar_skills_the_best_is_taken(bank: SkillBank) -> None:
    better = bank.add("sciworld", "boil/1", Skill("better", "Heat it."), DOCUMENTS[1].text, "boil")
    bank.record(better, "boil/5", 1.0, 0.0)
    found = BankLookup(bank, "sciworld", "bm25").find("boil/7", "Boil lead in the foundry now.")
    assert found and found.id == better
    bank.retire(better, "for the test")
    found = BankLookup(bank, "sciworld", "bm25").find("boil/7", "Boil lead in the foundry now.")
    assert found and found.skill.name == "of-boil"


def test_a_bank_with_nothing_else_gives_none(tmp_path: Path) -> None:
    bank = SkillBank(tmp_path / "one.sqlite")
    bank.add("sciworld", "boil/0", Skill("s", "d"), DOCUMENTS[0].text)
    assert BankLookup(bank, "sciworld", "bm25").find("boil/0", "anything else") is None
    with pytest.raises(InputError, match="no skill of alfworld"):
        BankLookup(bank, "alfworld", "bm25")


@pytest.fixture
def served() -> Iterator[RetrievalServer]:
    with RetrievalServer(TaskIndex(DOCUMENTS, "bm25"), token="secret") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def address(server: RetrievalServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_remote_search_equals_local_search(served: RetrievalServer) -> None:
    remote = RemoteIndex(address(served), "secret")
    local = TaskIndex(DOCUMENTS, "bm25")
    assert remote.documents == local.documents and remote.digest == local.digest
    for document in DOCUMENTS:
        for category in (None, "boil"):
            assert remote.search(document.text, 2, document.id, category) == local.search(
                document.text, 2, document.id, category
            )


def test_several_ranks_may_ask_at_once(served: RetrievalServer) -> None:
    remote = RemoteIndex(address(served), "secret")
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([h.document.id for h in remote.search("boil lead", 2)]))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16 and len({tuple(ids) for ids in found}) == 1


def test_the_token_is_needed(served: RetrievalServer) -> None:
    with pytest.raises(InputError, match="token"):
        RemoteIndex(address(served), "wrong")
    assert requests.get(address(served) + "/health", timeout=5).json()["documents"] == 4
    with pytest.raises(InputError, match="other machines"):
        RetrievalServer(TaskIndex(DOCUMENTS, "bm25"), host="0.0.0.0")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no json", 400),
        (b"[]", 400),
        (b'{"query": "x"}', 400),
        (b'{"query": "x", "k": 0}', 400),
        (b'{"query": "x", "k": true}', 400),
        (b'{"query": "x", "k": 1, "path": "/etc"}', 400),
        (b" " * (2**20 + 1), 413),
    ],
)
def test_bad_requests_are_refused(served: RetrievalServer, body: bytes, status: int) -> None:
    head = {"Authorization": "Bearer secret"}
    try:
        reply = requests.post(address(served) + "/v1/search", data=body, headers=head, timeout=5)
    except requests.ConnectionError:  # refused before the body was read
        assert status == 413
    else:
        assert reply.status_code == status and "detail" in json.loads(reply.text)


def test_without_a_token_only_this_machine_is_answered() -> None:
    with RetrievalServer(TaskIndex(DOCUMENTS, "bm25")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert RemoteIndex(address(server)).search("boil", 1)
        reply = requests.get(address(server) + "/v1/documents", headers={"Host": "evil.example"}, timeout=5)
        assert reply.status_code == 403
        server.shutdown()


def test_a_server_that_is_gone_is_an_infrastructure_fault(served: RetrievalServer) -> None:
    remote = RemoteIndex(address(served), "secret", attempts=2)
    served.shutdown()
    served.server_close()
    with pytest.raises(InfrastructureError, match="does not answer"):
        remote.search("boil", 1)
