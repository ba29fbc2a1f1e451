"""A model hub on the loopback interface, for tests: what huggingface_hub asks of huggingface.co.

A repository is a folder that a test fills: ``hub.model("lab/tiny")`` or
``hub.dataset("lab/rows")`` returns the folder of the branch ``main``, and with ``revision=`` the
folder of another branch or tag. A commit is the hash of the content; it can still be asked for
after the folder has changed.

The tests set ``HF_ENDPOINT`` to the hub before huggingface_hub is imported, which reads it once.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".parquet", ".model", ".gz")
"""Files that the hub keeps in its large file storage, and answers with a redirect."""
ACTIONS = {"revision", "tree", "auth-check", "preupload", "commit", "resolve"}


@dataclasses.dataclass(frozen=True)
class User:
    """The owner of a token."""

    name: str
    organizations: tuple[str, ...] = ()
    may_write: bool = True


@dataclasses.dataclass
class Fault:
    """What goes wrong with the next ``times`` requests whose ``METHOD path`` matches."""

    match: str
    times: int
    status: int | None = None  # answer with an error
    cut: bool = False  # send half of the body, then close the connection


@dataclasses.dataclass(frozen=True)
class Commit:
    """The content of a repository."""

    files: Mapping[str, bytes]

    @property
    def id(self) -> str:
        content = [(name, blob_id(data)) for name, data in sorted(self.files.items())]
        return hashlib.sha1(json.dumps(content).encode()).hexdigest()

    def entries(self) -> list[dict[str, Any]]:
        """Files and folders as the tree endpoint lists them."""
        parents = {parent for name in self.files for parent in Path(name).parents} - {Path(".")}
        listed: list[dict[str, Any]] = [
            {"type": "directory", "path": parent.as_posix(), "oid": "0" * 40}
            for parent in sorted(parents)
        ]
        for name, data in sorted(self.files.items()):
            entry = {"type": "file", "path": name, "oid": blob_id(data), "size": len(data)}
            if name.endswith(LARGE):
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            listed.append(entry)
        return listed


def blob_id(data: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Hub:
    """The hub: repositories, users, requests and faults."""

    def __init__(self) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.hub = self  # type: ignore[attr-defined]
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.commits: dict[tuple[str, str], Commit] = {}
        self.objects: dict[str, bytes] = {}
        self.lock = threading.RLock()
        self.reset()

    def start(self, root: Path) -> None:
        """Serve the repositories below ``root``."""
        self.root = root
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reset(self) -> None:
        """Forget requests, faults and rights; repositories stay."""
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.gated: dict[str, set[str]] = {}  # id: names of the users who have access
        self.private: set[str] = set()
        self.users: dict[str, User] = {
            "hf_ana": User("ana", ("lab",)),
            "hf_reader": User("ana", may_write=False),
            "hf_bob": User("bob"),
        }

    def model(self, id: str, revision: str = "main") -> Path:
        """Return the folder of a branch of a model; make the repository if it is new."""
        return self._folder("models", id, revision)

    def dataset(self, id: str, revision: str = "main") -> Path:
        """Return the folder of a branch of a data set; make the repository if it is new."""
        return self._folder("datasets", id, revision)

    def commit_id(self, folder: Path) -> str:
        """Return the commit of a branch: the hash of the content of its folder."""
        repo_type, id = folder.parts[-3], f"{folder.parts[-2]}/{folder.parts[-1].partition('@')[0]}"
        return self.read(repo_type, id, folder).id

    def fault(self, match: str, *, times: int = 1, **what: Any) -> None:
        """Let the next requests that match fail; ``what`` are the fields of ``Fault``."""
        self.faults.append(Fault(match, times, **what))

    def asked(self, match: str) -> list[str]:
        """Return the requests (``METHOD path STATUS``) that match."""
        return [request for request in self.requests if re.search(match, request)]

    def _folder(self, repo_type: str, id: str, revision: str) -> Path:
        branch = id if revision == "main" else f"{id}@{quote(revision, '')}"
        for name in (id, branch):
            (self.root / repo_type / name).mkdir(parents=True, exist_ok=True)
        return self.root / repo_type / branch

    def read(self, repo_type: str, id: str, folder: Path) -> Commit:
        """Return the content of a branch, which can be asked for by its commit from now on."""
        paths = (path for path in folder.rglob("*") if path.is_file())
        commit = Commit({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})
        with self.lock:
            self.commits[f"{repo_type}/{id}", commit.id] = commit
            self.objects |= {
                sha256(data): data for name, data in commit.files.items() if name.endswith(LARGE)
            }
        return commit


class Refused(Exception):
    """An answer with an error: status, code, message and more headers."""

    def __init__(self, status: int, code: str, message: str, headers: Any = None) -> None:
        self.status, self.message = status, message
        self.headers = {"X-Error-Message": message, **(headers or {})}
        if code:
            self.headers["X-Error-Code"] = code


class Handler(BaseHTTPRequestHandler):
    """One request; every answer has a length, so that connections stay open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a head waits 40 ms for its body otherwise
    hub: Hub
    user: User | None

    def log_message(self, format: str, *values: Any) -> None:
        """Print nothing: ``Hub.requests`` lists the requests."""

    def handle_any(self) -> None:
        self.hub = self.server.hub  # type: ignore[attr-defined]
        self.user, self.cut = None, False
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            try:
                self.fail_on_demand(url.path)
                self.sign_in()
                self.route(url.path, url.path.strip("/").split("/"))
            except Refused as error:
                self.answer({"error": error.message}, error.status, error.headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def sign_in(self) -> None:
        """Find the user of the token."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token:
            self.user = self.hub.users.get(token)
            if self.user is None:
                raise Refused(401, "", "Invalid credentials in Authorization header")

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def fail_on_demand(self, path: str) -> None:
        """Apply the first fault that matches."""
        with self.hub.lock:
            request = f"{self.command} {path}"
            found = (each for each in self.hub.faults if each.times)
            fault = next((each for each in found if re.search(each.match, request)), None)
            if fault is None:
                return
            fault.times -= 1
        self.cut = fault.cut
        if fault.status is not None:
            raise Refused(fault.status, "", "Fault on demand")

    def answer(self, content: Any = b"", status: int = 200, headers: Any = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.hub.requests.append(f"{self.command} {self.path} {status}")
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.cut:
            data, self.close_connection = data[: len(data) // 2], True
        if self.command != "HEAD":
            self.wfile.write(data)

    def check_write(self, id: str) -> None:
        user = self.user
        if user is None:
            raise Refused(401, "", "Invalid username or password.")
        if not self.may_write(id):
            raise Refused(403, "", f"You don't have the rights to write to {id}")

    def may_write(self, id: str) -> bool:
        user = self.user
        owners = (user.name, *user.organizations) if user and user.may_write else ()
        return id.split("/")[0] in owners

    def check_read(self, id: str) -> None:
        readers = self.hub.gated.get(id)
        if readers is not None and (self.user is None or self.user.name not in readers):
            status = 401 if self.user is None else 403
            raise Refused(status, "GatedRepo", f"Access to {id} is restricted.")

    def repository(self, repo_type: str, parts: list[str]) -> tuple[str, Path, list[str]]:
        """Return id, folder and the rest of a path that begins with an id."""
        size = 1 if len(parts) == 1 or parts[1] in ACTIONS else 2
        id = unquote("/".join(parts[:size]))
        folder = self.hub.root / repo_type / id
        owner = self.user and id.split("/")[0] in (self.user.name, *self.user.organizations)
        if not folder.is_dir() or (id in self.hub.private and not owner):
            status = 404 if self.user else 401
            raise Refused(status, "RepoNotFound", "Repository not found")
        return id, folder, parts[size:]

    def commit_at(self, repo_type: str, id: str, revision: str) -> Commit:
        """Return a branch, tag or commit."""
        branch = id if revision == "main" else f"{id}@{quote(revision, '')}"
        if (self.hub.root / repo_type / branch).is_dir():
            return self.hub.read(repo_type, id, self.hub.root / repo_type / branch)
        self.hub.read(repo_type, id, self.hub.root / repo_type / id)
        with self.hub.lock:
            commit = self.hub.commits.get((f"{repo_type}/{id}", revision))
        if commit is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def route(self, path: str, parts: list[str]) -> None:
        if parts[:2] == ["api", "resolve-cache"]:
            commit = self.commit_at(parts[2], "/".join(parts[3:5]), parts[5])
            data = commit.files[unquote("/".join(parts[6:]))]
            self.answer(data, 200, {"ETag": f'"{blob_id(data)}"', "X-Repo-Commit": commit.id})
        elif parts[0] == "api" and parts[1] in ("models", "datasets"):
            self.repository_api(parts[1], *self.repository(parts[1], parts[2:]))
        elif parts[0] == "api":
            self.account_api(path)
        elif parts[0] == "_objects":
            self.large_file(parts[1])
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.check_write(path.strip("/").removesuffix(".git/info/lfs/objects/batch"))
            objects = json.loads(self.body)["objects"]
            for each in objects:
                each["actions"] = {"upload": {"href": f"{self.hub.url}/_objects/{each['oid']}"}}
            self.answer({"transfer": "basic", "objects": objects})
        elif "resolve" in parts:
            repo_type = "datasets" if parts[0] == "datasets" else "models"
            id, _, rest = self.repository(repo_type, parts[repo_type == "datasets" :])
            self.check_read(id)
            commit = self.commit_at(repo_type, id, unquote(rest[1]))
            self.resolve(repo_type, id, commit, unquote("/".join(rest[2:])))
        else:
            raise Refused(404, "", "Sorry, we can't find the page you are looking for.")

    def account_api(self, path: str) -> None:
        if path == "/api/repos/create":
            self.create(json.loads(self.body))
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        else:
            raise Refused(404, "", "Sorry, we can't find the page you are looking for.")

    def repository_api(self, repo_type: str, id: str, folder: Path, rest: list[str]) -> None:
        action, *rest = rest or ["revision", "main"]
        if action == "auth-check":
            self.check_write(id) if rest == ["write"] else self.check_read(id)
            self.answer({})
        elif action == "preupload":
            self.check_write(id)
            files = [
                {**each, "shouldIgnore": False, "uploadMode": mode}
                for each in json.loads(self.body)["files"]
                for mode in ["lfs" if each["path"].endswith(LARGE) else "regular"]
            ]
            self.answer({"files": files})
        elif action == "commit":
            self.check_write(id)
            self.commit(repo_type, id, folder)
        elif action in ("revision", "tree"):
            commit = self.commit_at(repo_type, id, unquote(rest[0]))
            if action == "revision":
                files = [
                    {"rfilename": name, "size": len(data)}
                    for name, data in sorted(commit.files.items())
                ]
                private = id in self.hub.private
                self.answer({"id": id, "sha": commit.id, "private": private, "siblings": files})
            else:
                self.check_read(id)
                self.listing(commit, unquote("/".join(rest[1:])))
        else:
            raise Refused(404, "", "not served here")

    def listing(self, commit: Commit, below: str) -> None:
        """Answer with the entries of a folder."""
        entries = commit.entries()
        start = f"{below}/" if below else ""
        if below and not any(name.startswith(start) for name in commit.files):
            raise Refused(404, "EntryNotFound", f"{below} does not exist")
        deep = self.query.get("recursive", "").lower() == "true"
        found = [each for each in entries if each["path"].startswith(start)]
        self.answer([each for each in found if deep or "/" not in each["path"][len(start) :]])

    def resolve(self, repo_type: str, id: str, commit: Commit, name: str) -> None:
        """Redirect to a file: a large one to another origin, as the hub does to its CDN."""
        if name not in commit.files:
            raise Refused(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit.id})
        data, large = commit.files[name], name.endswith(LARGE)
        here = f"/api/resolve-cache/{repo_type}/{id}/{commit.id}/{quote(name)}"
        there = f"http://localhost:{self.hub.port}/_objects/{sha256(data)}"
        headers = {
            "Location": there if large else here,
            "X-Linked-Etag": f'"{sha256(data) if large else blob_id(data)}"',
            "X-Repo-Commit": commit.id,
            "X-Linked-Size": str(len(data)),
        }
        self.answer(b"", 302 if large else 307, headers)

    def large_file(self, sha: str) -> None:
        """Send a large file, or keep one for a commit."""
        if self.command == "PUT":
            self.hub.objects[sha] = self.body
            return self.answer()
        if sha not in self.hub.objects:
            raise Refused(404, "EntryNotFound", "no such object")
        self.answer(self.hub.objects[sha], 200, {"ETag": f'"{sha}"', "Accept-Ranges": "bytes"})

    def create(self, wanted: dict[str, Any]) -> None:
        owner = wanted.get("organization") or (self.user.name if self.user else "nobody")
        id, repo_type = f"{owner}/{wanted['name']}", f"{wanted.get('type') or 'model'}s"
        self.check_write(id)
        exists = (self.hub.root / repo_type / id).is_dir()
        self.hub._folder(repo_type, id, "main")
        if wanted.get("private") or wanted.get("visibility") == "private":
            self.hub.private.add(id)
        self.answer({"url": f"{self.hub.url}/{id}", "name": id}, 409 if exists else 200)

    def commit(self, repo_type: str, id: str, folder: Path) -> None:
        """Carry out the operations of a push."""
        self.hub.read(repo_type, id, folder)  # keep what was there
        for line in self.body.decode().splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            path = folder / value.get("path", "")
            if key in ("file", "lfsFile"):
                path.parent.mkdir(parents=True, exist_ok=True)
                content = base64.b64decode(value["content"]) if key == "file" else None
                path.write_bytes(self.hub.objects[value["oid"]] if content is None else content)
        made = self.hub.read(repo_type, id, folder).id
        url = f"{self.hub.url}/{id}/commit/{made}"
        self.answer({"success": True, "commitOid": made, "commitUrl": url})


HUB = Hub()
"""The hub of this process; the fixture ``hub`` starts it."""
