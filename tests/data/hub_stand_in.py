"""A Hub of a few routes, as the real `huggingface_hub` client uses them: make, preupload, LFS, commit, list, fetch."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_stand_in"


@dataclass
class Repo:
    """One data set: its commits, each with all files.

    Attributes:
        private: Whether it asks for the token.
        commits: (id, path → content) of every commit, the first one empty.
        messages: Of the commits after the first.
    """

    private: bool
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=lambda: [(sha(b"empty"), {})])
    messages: list[str] = field(default_factory=list)

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Returns the commit that a revision names."""
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


@dataclass
class Hub:
    """The stand-in.

    Attributes:
        repos: Data sets by name.
        requests: (method, path) of everything that was asked.
        refuse: Status with which every request is answered, to see what a client says then.
    """

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    refuse: int = 0


def sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def git_id(content: bytes) -> str:
    return sha(b"blob %d\0" % len(content) + content)


@contextmanager
def stand_in() -> Iterator[Hub]:
    """Runs a Hub on a port of its own."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PUT = do_HEAD = do_GET

    def _handle(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._chunks()
        self.state.requests.append((self.command, path))
        if self.state.refuse:
            return self._json({"error": "the stand-in refuses"}, self.state.refuse)
        for pattern, method in _ROUTES:
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                return method(self, *match.groups())
        return self._json({"error": f"no route {self.command} {path}"}, 404)

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _authorised(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repo(self, name: str) -> Repo | None:
        repo = self.state.repos.get(name)
        if repo is None or (repo.private and not self._authorised()):
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def _writable(self, name: str) -> Repo | None:
        if not self._authorised():
            self._json({"error": "Invalid username or password."}, 401)
            return None
        return self._repo(name)

    def _at(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        repo = self._repo(name)
        found = repo and repo.files(revision)
        if repo and not found:
            self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
        return found or None

    # Routes

    def create(self) -> None:
        if not self._authorised():
            return self._json({"error": "Invalid username or password."}, 401)
        wanted = json.loads(self.body)
        name = f"{wanted['organization']}/{wanted['name']}"
        assert wanted["type"] == "dataset"
        address = {"url": f"{self.state.url}/datasets/{name}", "name": name, "id": name}
        if name in self.state.repos:
            return self._json({"error": "You already created this dataset repo", **address}, 409)
        private = wanted.get("private") or wanted.get("visibility") == "private"
        self.state.repos[name] = Repo(bool(private))
        return self._json(address)

    def preupload(self, name: str, revision: str) -> None:
        if self._writable(name) is None:
            return
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".parquet") else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(self.body)["files"]
        ]
        self._json({"files": files, "commitOid": ""})

    def lfs(self, name: str) -> None:
        if self._writable(name) is None:
            return
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.state.url}/blobs/{one['oid']}"}}}
            for one in json.loads(self.body)["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects}, headers={"Content-Type": "application/vnd.git-lfs+json"})

    def blob(self, oid: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.state.blobs[oid] = self.body
        self._send(b"", 200, {})

    def commit(self, name: str, revision: str) -> None:
        repo = self._writable(name)
        if repo is None:
            return
        files = dict(repo.commits[-1][1])
        for line in self.body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                repo.messages.append(value["summary"])
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.state.blobs[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
            else:
                raise AssertionError(key)
        oid = sha(self.body)
        repo.commits.append((oid, files))
        self._json({"commitUrl": f"{self.state.url}/datasets/{name}/commit/{oid}", "commitOid": oid})

    def info(self, name: str, revision: str = "main") -> None:
        if found := self._at(name, revision):
            oid, files = found
            siblings = [{"rfilename": path} for path in sorted(files)]
            self._json(
                {"_id": "1", "id": name, "sha": oid, "private": False, "tags": [], "downloads": 0, "likes": 0}
                | {"siblings": siblings}
            )

    def tree(self, name: str, revision: str, folder: str) -> None:
        if found := self._at(name, revision):
            recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() == "true"
            start = f"{folder.strip('/')}/" if folder.strip("/") else ""
            entries: dict[str, dict[str, Any]] = {}
            for path, content in sorted(found[1].items()):
                if not path.startswith(start):
                    continue
                deeper, _, rest = path[len(start) :].partition("/")
                if rest:
                    entries[start + deeper] = {"type": "directory", "path": start + deeper, "oid": sha(path.encode())}
                if recursive or not rest:
                    entries[path] = {"type": "file", "path": path, "oid": git_id(content), "size": len(content)}
            self._json(list(entries.values()))

    def paths_info(self, name: str, revision: str) -> None:
        if found := self._at(name, revision):
            wanted = parse_qs(self.body.decode()).get("paths") or json.loads(self.body)["paths"]
            self._json(
                [
                    {"type": "file", "path": path, "oid": git_id(found[1][path]), "size": len(found[1][path])}
                    for path in wanted
                    if path in found[1]
                ]
            )

    def resolve(self, name: str, revision: str, path: str) -> None:
        if found := self._at(name, revision):
            oid, files = found
            if path not in files:
                return self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            headers = {"X-Repo-Commit": oid, "ETag": f'"{git_id(files[path])}"', "Accept-Ranges": "bytes"}
            content, status = files[path], 200
            if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
                first, last = int(asked[1] or 0), min(int(asked[2] or len(content)), len(content) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                content, status = content[first : last + 1], 206
            self._send(content, status, headers)
        return None

    def validate_yaml(self) -> None:
        head = json.loads(self.body)["content"].split("---")[1]
        wrong = [] if isinstance(yaml.safe_load(head), dict) else [{"message": "the head of the card is no mapping"}]
        self._json({"errors": wrong, "warnings": []}, 400 if wrong else 200)

    def whoami(self) -> None:
        if not self._authorised():
            return self._json({"error": "Invalid username or password."}, 401)
        return self._json({"type": "user", "name": "me", "orgs": []})


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES = [
    (r"GET /api/whoami-v2", _Handler.whoami),
    (r"POST /api/validate-yaml", _Handler.validate_yaml),
    (r"POST /api/repos/create", _Handler.create),
    (rf"POST /api/datasets/{_NAME}/preupload/(\w+)", _Handler.preupload),
    (rf"POST /datasets/{_NAME}\.git/info/lfs/objects/batch", _Handler.lfs),
    (r"PUT /blobs/(\w+)", _Handler.blob),
    (rf"POST /api/datasets/{_NAME}/commit/(\w+)", _Handler.commit),
    (rf"GET /api/datasets/{_NAME}", _Handler.info),
    (rf"GET /api/datasets/{_NAME}/revision/([\w.-]+)", _Handler.info),
    (rf"GET /api/datasets/{_NAME}/tree/([\w.-]+)(.*)", _Handler.tree),
    (rf"POST /api/datasets/{_NAME}/paths-info/([\w.-]+)", _Handler.paths_info),
    (rf"(?:GET|HEAD) /datasets/{_NAME}/resolve/([\w.-]+)/(.+)", _Handler.resolve),
]
