"""The Hugging Face hub: the commit of a repository, its files, and messages for its errors.

A process looks a repository up once, within ``TIMEOUT`` seconds, so that all files of a run are
from one commit. If the hub does not answer, the cache of huggingface_hub is read.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from finetune.runtime.processes import process_index
from finetune.runtime.progress import Reporter
from finetune.types import UserError

TIMEOUT = 5.0
"""Seconds to wait for an answer of the hub, for each address of its name."""
COMMIT = re.compile("[0-9a-f]{40}")
ID = re.compile(r"([\w.\-]+/)?[\w.\-]+")

_SIGN_IN = "sign in with `hf auth login`, or set HF_TOKEN"

_RepoType = Literal["model", "dataset"]
Reason = Literal["missing", "refused", "revision", "unreachable", "failed", "cut"]


class HubError(UserError):
    """The hub has no such repository, refuses it, or does not answer."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True)
class Repository:
    """A repository at one commit."""

    repo_type: _RepoType
    id: str
    revision: str | None
    """The branch, tag or commit that was asked for; None for ``main``."""
    commit: str
    files: Collection[str] = field(repr=False)
    """Names of its files; if not ``online``, perhaps only those in the cache."""
    online: bool
    """Whether the hub has answered."""

    def download(self, names: Collection[str]) -> Path:
        """Download files of a repository; returns the folder of its commit in the cache."""
        from huggingface_hub import snapshot_download, try_to_load_from_cache

        def cached(name: str) -> object:
            return try_to_load_from_cache(self.id, name, None, self.commit, self.repo_type)

        if self.online and not all(map(cached, names)):
            _log_download(self.id, self.commit)
        with self.errors(), _bars_on_a_terminal():
            folder = snapshot_download(
                self.id,
                repo_type=self.repo_type,
                revision=self.commit,
                allow_patterns=[*names],
                local_files_only=not self.online,
            )
        return Path(folder)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Context that raises HubError for the errors of libraries that read the repository."""
        return _hub_errors(self.repo_type, self.id, self.revision, reading=self.online)


_PINNED: dict[tuple[_RepoType, str, str | None], str] = {}


def pin_repository(repo_type: _RepoType, id: str, revision: str | None, commit: str) -> None:
    """Let ``find_repository`` return this commit for a revision, for instance in a resumed run."""
    _PINNED[repo_type, id, revision or None] = commit
    _forget()


_REMEMBERED: list[Any] = []
_Function = TypeVar("_Function", bound=Callable[..., Any])


def remembered(function: _Function) -> _Function:
    """Let a function find each repository once in a process, until ``forget_repositories``."""
    cached: Any = functools.cache(function)
    _REMEMBERED.append(cached)
    return cached  # type: ignore[no-any-return]


@remembered
def _log_download(id: str, commit: str) -> None:
    Reporter(quiet=process_index() != 0).log(f"downloading {id}, commit {commit[:12]}")


@remembered
def find_repository(repo_type: _RepoType, id: str, revision: str | None) -> Repository:
    """Look up a repository on the hub, or in the cache if the hub does not answer.

    Raises HubError if it is in neither, or the hub refuses the token.
    """
    from huggingface_hub import HfApi, constants

    class Client(HfApi):
        """A client that keeps the answer, and does not wait for it without end."""

        info: Any = None

        def repo_info(self, repo_id: str, **options: Any) -> Any:
            self.info = super().repo_info(repo_id, **{**options, "timeout": TIMEOUT})
            return self.info

    revision = _PINNED.get((repo_type, id, revision or None), revision or None)
    client, offline = Client(), constants.HF_HUB_OFFLINE
    with _hub_errors(repo_type, id, revision):
        if revision is None or not COMMIT.fullmatch(revision):  # without the hub: of the cache
            resolved = client.resolve_revision(
                id, repo_type=repo_type, revision=revision, local_files_only=offline
            )
            commit = resolved.resolved
        elif not _cached_files(repo_type, id, commit := revision):
            client.repo_info(id, repo_type=repo_type, revision=commit)
        else:
            with contextlib.suppress(Exception):  # a commit in the cache never changes
                client.repo_info(id, repo_type=repo_type, revision=commit)
    if client.info is not None:
        names = [file.rfilename for file in client.info.siblings or ()]
        return Repository(repo_type, id, revision, commit, names, online=True)
    if names := _cached_files(repo_type, id, commit):
        return Repository(repo_type, id, revision, commit, names, online=False)
    raise HubError(_not_cached(repo_type, id, revision), "unreachable")


def forget_repositories() -> None:
    """Forget commits that were found or pinned, and look repositories up again."""
    _forget()
    _PINNED.clear()


def _forget() -> None:
    for function in _REMEMBERED:
        function.cache_clear()


def _cached_files(repo_type: _RepoType, id: str, commit: str) -> list[str]:
    from huggingface_hub import constants

    name = "--".join([f"{repo_type}s", *id.split("/")])
    folder = Path(constants.HF_HUB_CACHE).expanduser() / name / "snapshots" / commit
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.relative_to(folder).as_posix() for path in paths]


def create_repository(id: str, *, private: bool | None = None) -> str:
    """Create a repository on the hub unless it exists, and return its full id.

    Raise UserError if the hub cannot be reached, the id is malformed or the login may not write.
    """
    from huggingface_hub import HfApi

    try:
        with _hub_errors("model", id):
            repository = HfApi().create_repo(id, private=private, exist_ok=True).repo_id
            HfApi().auth_check(repository, write=True)
    except HubError as error:
        reason = f"{str(error)[:1].upper()}{str(error)[1:]}"
        raise UserError(f"{id}: cannot create this repository or write to it. {reason}") from error
    return str(repository)


def upload_folder(repository: str, folder: Path, changed: Mapping[str, str]) -> str:
    """Upload a folder to a repository of models, in one commit; its other files stay.

    Args:
        repository: The full id, as ``create_repository`` returns it.
        folder: The files, also those in its folders.
        changed: The texts of files whose content differs from the folder.

    Returns:
        The address of the repository.

    Raises:
        HubError: The hub refuses the upload, or does not answer.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    paths = [path for path in folder.rglob("*") if path.is_file()]
    files: dict[str, str | bytes] = {p.relative_to(folder).as_posix(): str(p) for p in paths}
    files |= {name: text.encode() for name, text in changed.items()}
    operations = [CommitOperationAdd(name, file) for name, file in files.items()]
    with _hub_errors("model", repository, reading=True), _bars_on_a_terminal():
        HfApi().create_commit(repository, operations, commit_message="Upload with finetune")
    return f"{constants.ENDPOINT}/{repository}"


@contextlib.contextmanager
def _hub_errors(
    repo_type: _RepoType, id: str, revision: str | None = None, *, reading: bool = False
) -> Iterator[None]:
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if meaning := _meaning(cause, repo_type, id, revision, reading=reading):
                raise HubError(*meaning) from error
            cause = cause.__cause__ or cause.__context__
        from huggingface_hub import errors

        if isinstance(error, errors.RevisionResolutionError | errors.LocalEntryNotFoundError):
            raise HubError(_not_cached(repo_type, id, revision), "unreachable") from error
        raise


def _meaning(
    error: BaseException, repo_type: _RepoType, id: str, revision: str | None, *, reading: bool
) -> tuple[str, Reason] | None:
    from huggingface_hub import constants
    from huggingface_hub import errors as untyped

    errors: Any = untyped
    hub, what = f"the hub at {constants.ENDPOINT}", _named(repo_type, id)
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{'datasets/' if repo_type == 'dataset' else ''}{id}"
        return f"{what} is gated: ask for access at {page}, and {_SIGN_IN}.", "refused"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{what} has no revision {revision!r}: name a branch, tag or commit.", "revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{what} does not exist on {hub}, or it is private: then {_SIGN_IN}.", "missing"
    if isinstance(error, errors.HFValidationError):
        return f"{what}: this is no id of a repository (NAME or OWNER/NAME).", "missing"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return _not_cached(repo_type, id, revision), "unreachable"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status == 401:
            return f"{what}: {hub} does not know your token: {_SIGN_IN}.", "refused"
        if status == 403:
            return f"{what}: {hub} refuses this: your token lacks the permission.", "refused"
        if status == 429 or status >= 500:
            return f"{what}: {hub} fails (status {status}): try again later.", "failed"
        return None
    lost = (errors.HTTPError, ConnectionError, TimeoutError, errors.XetDownloadError)
    if not isinstance(error, lost):
        return None
    detail = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": .")[:200]
    if reading:
        again = "Run again to continue it."
        return f"{what}: the download from {hub} was cut ({detail}). {again}", "cut"
    return f"{what}: {hub} cannot be reached ({detail}).", "unreachable"


def _named(repo_type: _RepoType, id: str) -> str:
    return f"{'data set' if repo_type == 'dataset' else repo_type} {id!r}"


def _not_cached(repo_type: _RepoType, id: str, revision: str | None) -> str:
    at = f" at {revision}" if revision else ""
    return f"{_named(repo_type, id)}: HF_HUB_OFFLINE is set, and the cache does not have it{at}."


def _bars_on_a_terminal() -> contextlib.AbstractContextManager[Any]:
    from huggingface_hub.utils.tqdm import disable_progress_bars

    return contextlib.nullcontext() if sys.stderr.isatty() else disable_progress_bars()
