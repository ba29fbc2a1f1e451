"""The Hugging Face hub: find repositories, read their files, and explain errors.

A process looks a repository up once, with one request. All files of a run are thus from one commit,
and a hub that does not answer costs ``TIMEOUT`` seconds once. Then the cache is read.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, cast

from finetune.types import UserError, quantity

TIMEOUT = 5.0
"""Seconds to wait for an answer of the hub, for each address of its name."""
STALL = 4
"""Seconds without data after which the client asks for the rest of a file, up to five times."""
COMMIT = re.compile("[0-9a-f]{40}")
ID = re.compile(r"([\w.\-]+/)?[\w.\-]+")

_SIGN_IN = "sign in with `hf auth login`, or set HF_TOKEN"

Kind = Literal["model", "dataset"]
Reason = Literal["missing", "refused", "revision", "unreachable", "failed", "cut"]


class HubError(UserError):
    """The hub has no such repository, refuses it, or does not answer."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True)
class Repository:
    """A repository at one commit, on the hub or in the cache.

    Attributes:
        kind: ``model`` or ``dataset``.
        id: Its id.
        revision: The branch, tag or commit that was asked for; None for ``main``.
        commit: The commit; None if the hub is off (``HF_HUB_OFFLINE``) and the cache has none.
        files: Names and sizes in bytes of its files; if not ``online``, of the files in the cache.
        online: Whether the hub has answered.
    """

    kind: Kind
    id: str
    revision: str | None
    commit: str | None
    files: Mapping[str, int] = field(repr=False)
    online: bool

    def download(self, names: Iterable[str]) -> Path:
        """Return the folder of the commit in the cache, with these files of the repository.

        A terminal shows bars of progress, a log gets one line with size and time.

        Raises:
            HubError: If the hub refuses the files, or the download is cut.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download

        if self.commit is None:
            raise _not_cached(self)
        folder = _snapshots(self.kind, self.id) / self.commit
        missing = [name for name in names if not (folder / name).is_file()]
        if not missing:
            self._remember()
            return folder
        begin = time.monotonic()
        url = hf_hub_url(self.id, missing[0], repo_type=self.kind, revision=self.commit)
        _request(
            lambda: get_hf_file_metadata(url, timeout=TIMEOUT),
            self.kind,
            self.id,
            self.revision,
            reading=True,  # the client would ask for minutes
        )
        with self.access(), _bars():
            snapshot_download(
                self.id, repo_type=self.kind, revision=self.commit, allow_patterns=missing
            )
        self._remember()
        size = sum(self.files[name] for name in missing)
        seconds = time.monotonic() - begin
        _say(
            f"downloaded {self.id}: {quantity(len(missing), 'file')}, {_megabytes(size)} in "
            f"{seconds:.1f} s"
        )
        return folder

    @contextlib.contextmanager
    def access(self, *modules: Any) -> Iterator[None]:
        """Read files of this repository with a library; raise HubError for the errors of the hub.

        If the repository is not ``online``, the library reads the cache at once. ``modules`` have
        their own copy of the client's switch ``HF_HUB_OFFLINE``.
        """
        from huggingface_hub import constants

        switches: tuple[Any, ...] = (constants, *modules)
        before = [module.HF_HUB_OFFLINE for module in switches]
        for module in switches:
            module.HF_HUB_OFFLINE = module.HF_HUB_OFFLINE or not self.online
        stall = constants.HF_HUB_DOWNLOAD_TIMEOUT
        if "HF_HUB_DOWNLOAD_TIMEOUT" not in os.environ:
            constants.HF_HUB_DOWNLOAD_TIMEOUT = STALL
        try:
            yield
        except Exception as error:
            found = hub_error(error, self.kind, self.id, self.revision, reading=True)
            if found is None:
                raise
            raise found from error
        finally:
            constants.HF_HUB_DOWNLOAD_TIMEOUT = stall
            for module, value in zip(switches, before, strict=True):
                module.HF_HUB_OFFLINE = value

    def _remember(self) -> None:
        if self.revision == self.commit or self.commit is None or not self.online:
            return
        path = _snapshots(self.kind, self.id).parent / "refs" / (self.revision or "main")
        with contextlib.suppress(OSError):  # the cache may be read-only
            if not path.is_file() or path.read_text("utf-8") != self.commit:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.commit, "utf-8")


def find_repository(kind: Kind, id: str, revision: str | None = None) -> Repository:
    """Look up a repository on the hub, or in the cache if the hub does not answer.

    Raises:
        HubError: If there is no such repository or revision, the hub refuses the token, or the hub
            does not answer and the cache does not have the repository.
    """
    return _find(kind, id, revision or None)


_PINNED: dict[tuple[Kind, str, str | None], str] = {}


def pin_repository(kind: Kind, id: str, revision: str | None, commit: str) -> None:
    """Let ``find_repository`` return this commit for a revision, for instance in a resumed run."""
    _PINNED[kind, id, revision or None] = commit
    _forget()


_MEMORIES: list[Callable[[], None]] = []
"""Functions that forget what was found."""

P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function find each repository once in a process, until ``forget_repositories``."""
    cached = functools.cache(function)
    _MEMORIES.append(cached.cache_clear)
    return cast(Callable[P, R], cached)


@remembered
def _find(kind: Kind, id: str, revision: str | None) -> Repository:
    from huggingface_hub import constants

    revision = _PINNED.get((kind, id, revision), revision)
    if constants.HF_HUB_OFFLINE:
        return _cached(kind, id, revision)
    try:
        return _look_up(kind, id, revision)
    except HubError as error:
        cached = _cached(kind, id, revision)
        if error.reason not in ("unreachable", "failed") or cached.commit is None:
            raise
        _say(f"note: {error} Reading commit {cached.commit[:12]} from the cache.")
        return cached


def forget_repositories() -> None:
    """Forget commits that were found or pinned, and look repositories up again."""
    _forget()
    _PINNED.clear()


def _forget() -> None:
    for forget in _MEMORIES:
        forget()


def _look_up(kind: Kind, id: str, revision: str | None) -> Repository:
    from huggingface_hub import HfApi

    def ask() -> Any:
        return HfApi().repo_info(
            id, repo_type=kind, revision=revision, timeout=TIMEOUT, files_metadata=True
        )

    found = _request(ask, kind, id, revision)
    files = {each.rfilename: each.size or 0 for each in found.siblings or ()}
    return Repository(kind, id, revision, found.sha, files, online=True)


def _request(
    ask: Callable[[], Any], kind: Kind, id: str, revision: str | None, *, reading: bool = False
) -> Any:
    begin = time.monotonic()
    for wait in (1.0, 2.0, None):
        try:
            return ask()
        except Exception as error:
            known = hub_error(error, kind, id, revision, reading=reading)
            if known is None:
                raise
            again = known.reason == "failed" and time.monotonic() - begin < TIMEOUT
            if wait is None or not again:
                raise known from error
            time.sleep(wait)


def _cached(kind: Kind, id: str, revision: str | None) -> Repository:
    snapshots = _snapshots(kind, id)
    reference = snapshots.parent / "refs" / (revision or "main")
    commit = revision if revision and COMMIT.fullmatch(revision) else None
    if commit is None and reference.is_file():
        commit = reference.read_text("utf-8").strip()
    if commit is None or not (folder := snapshots / commit).is_dir():
        return Repository(kind, id, revision, None, {}, online=False)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    return Repository(kind, id, revision, commit, files, online=False)


def _snapshots(kind: Kind, id: str) -> Path:
    from huggingface_hub import constants

    name = "--".join([f"{kind}s", *id.split("/")])
    return Path(constants.HF_HUB_CACHE).expanduser() / name / "snapshots"


def create_repository(id: str, *, private: bool | None = None) -> str:
    """Create a repository on the hub unless it exists, and return its full id.

    Raise UserError if the hub cannot be reached, the id is malformed or the login may not write.
    """
    from huggingface_hub import HfApi

    try:
        repository = HfApi().create_repo(id, private=private, exist_ok=True).repo_id
        HfApi().auth_check(repository, write=True)
    except Exception as error:
        if (found := hub_error(error, "model", id)) is None:
            raise
        reason = f"{str(found)[:1].upper()}{str(found)[1:]}"
        raise UserError(f"{id}: cannot create this repository or write to it. {reason}") from error
    return str(repository)


class Uploaded(NamedTuple):
    """The address of a repository after an upload, and the files that it had and has no more."""

    address: str
    removed: tuple[str, ...]


def upload_folder(
    repository: str, folder: Path, changed: Mapping[str, str] | None = None
) -> Uploaded:
    """Upload a folder to a repository of models, in one commit, in place of what is there.

    Args:
        repository: The full id, as ``create_repository`` returns it.
        folder: The files, also those in its folders.
        changed: The texts of files whose content differs from the folder.

    Raises:
        HubError: The hub refuses the upload, or does not answer.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

    paths = [path for path in folder.rglob("*") if path.is_file()]
    files: dict[str, str | bytes] = {p.relative_to(folder).as_posix(): str(p) for p in paths}
    files |= {name: text.encode() for name, text in (changed or {}).items()}
    api = HfApi()
    try:
        removed = sorted({*api.list_repo_files(repository)} - files.keys() - {".gitattributes"})
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(name, file) for name, file in files.items()),
            *map(CommitOperationDelete, removed),
        ]
        api.create_commit(repository, operations, commit_message="Upload with finetune")
    except Exception as error:
        found = hub_error(error, "model", repository, reading=True)
        if found is None and not isinstance(error, RuntimeError):  # which hf_xet raises
            raise
        raise (found or HubError(str(error), "failed")) from error
    return Uploaded(f"{constants.ENDPOINT}/{repository}", tuple(removed))


def hub_error(
    error: BaseException, kind: str, id: str, revision: str | None = None, *, reading: bool = False
) -> HubError | None:
    """Return the meaning of an error of the hub's client; None if it is another error.

    Args:
        error: The error, perhaps of a library that calls the client.
        kind: Names the repository in the message: ``model`` or ``dataset``.
        id: The id of the repository.
        revision: The revision that was asked for.
        reading: Whether the hub had answered before.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HubError):
            return cause
        if (found := _meaning(cause, kind, id, revision, reading)) is not None:
            return HubError(*found)
        cause = cause.__cause__ or cause.__context__
    return None


def _meaning(
    error: BaseException, kind: str, id: str, revision: str | None, reading: bool
) -> tuple[str, Reason] | None:
    from huggingface_hub import constants, get_token
    from huggingface_hub import errors as untyped

    errors: Any = untyped
    hub = f"the hub at {constants.ENDPOINT}"
    what = f"{kind.replace('dataset', 'data set')} {id!r}"
    token = get_token()
    if isinstance(error, errors.GatedRepoError):
        site = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{id}"
        then = "The user of your token has no access yet." if token else f"Then {_SIGN_IN}."
        return f"{what} is gated: ask for access at {site}. {then}", "refused"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{what} has no revision {revision!r}: name a branch, tag or commit.", "revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        private = (
            "or it is private and the user of your token has no access"
            if token
            else f"or it is private: then {_SIGN_IN}"
        )
        return f"{what} does not exist on {hub}, {private}.", "missing"
    if isinstance(error, errors.HFValidationError):
        return f"{what}: this is no id of a repository (NAME or OWNER/NAME).", "missing"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{what}: HF_HUB_OFFLINE is set, and the cache does not have it.", "unreachable"
    if isinstance(error, errors.HfHubHTTPError):
        return _status_meaning(error.response.status_code, what, hub, bool(token))
    detail = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": .")[:200]
    if isinstance(error, errors.HTTPError | ConnectionError | TimeoutError) and reading:
        cut = f"{what}: the download from {hub} was cut ({detail}). Run again to continue it."
        return cut, "cut"
    if isinstance(error, errors.HTTPError | ConnectionError | TimeoutError):
        return f"{what}: {hub} cannot be reached ({detail}).", "unreachable"
    return None


def _status_meaning(status: int, what: str, hub: str, has_token: bool) -> tuple[str, Reason] | None:
    if status == 401 and not has_token:
        return f"{what}: {hub} asks who you are: {_SIGN_IN}.", "refused"
    if status == 401:
        source = "in HF_TOKEN" if os.environ.get("HF_TOKEN") else "of `hf auth login`"
        fix = f"{hub} does not know the token {source}: correct it, or sign in with `hf auth login`"
        return f"{what}: {fix}.", "refused"
    if status == 403:
        return f"{what}: {hub} refuses this: your token lacks the permission.", "refused"
    if status == 429 or status >= 500:
        return f"{what}: {hub} fails (status {status}): try again later.", "failed"
    return None


def _not_cached(repository: Repository) -> HubError:
    at = f" at {repository.revision}" if repository.revision else ""
    return HubError(
        f"{repository.kind.replace('dataset', 'data set')} {repository.id!r}: HF_HUB_OFFLINE is "
        f"set, and the cache does not have it{at}.",
        "unreachable",
    )


@contextlib.contextmanager
def _bars() -> Iterator[None]:
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:  # the user decides
        yield
        return
    were_disabled = are_progress_bars_disabled()
    switch = enable_progress_bars if sys.stderr.isatty() else disable_progress_bars
    switch()
    try:
        yield
    finally:
        (disable_progress_bars if were_disabled else enable_progress_bars)()


def _say(text: str) -> None:
    from finetune.runtime.processes import process_index
    from finetune.runtime.progress import Reporter

    if process_index() == 0:
        Reporter().say(text)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
