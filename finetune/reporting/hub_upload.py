"""Uploading a trained model to the Hugging Face hub: the best model with its card, nothing else."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finetune.reporting.model_card import for_hub, last_part, write_card
from finetune.reporting.runs import gather
from finetune.tasks import TASK_FILE, model_folder
from finetune.types import UserError

PATHS = ("data", "out", "init_from", "model")
"""Settings in the task file that may be paths of this machine; only their last part is public."""


def require_login(id: str) -> None:
    """Refuse an id that cannot be pushed to, before anything is trained: not signed in, a token
    that may only read, another's namespace, no network. Raises ValueError in one line."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(id)
    except ValueError as error:
        raise UserError(f"--push-to-hub {id!r}: not an id such as OWNER/NAME ({error}).") from error
    try:
        account = HfApi().whoami()
    except Exception as error:
        raise UserError(
            f"--push-to-hub {id}: the hub does not know you ({_first_line(error)}): sign in with "
            "`hf auth login`, or set HF_TOKEN. Nothing was trained."
        ) from error
    token = (account.get("auth") or {}).get("accessToken") or {}
    if token.get("role") == "read":
        raise UserError(
            f"--push-to-hub {id}: the token of {account['name']!r} may only read: sign in with one "
            "that may write (`hf auth login`). Nothing was trained."
        )
    owner, slash, _ = id.partition("/")
    own = [account["name"], *(each["name"] for each in account.get("orgs", ()))]
    if slash and owner not in own:
        raise UserError(
            f"--push-to-hub {id}: you are {account['name']!r} on the hub, and not in {owner!r}: "
            f"use one of {', '.join(own)}. Nothing was trained."
        )


def push(folder: Path, id: str, *, private: bool = False) -> str:
    """Upload the best model of a run folder (or the folder of a model) and say where it is.

    Raises ValueError in one line, with the command to try again, where the hub refuses.
    """
    from huggingface_hub import HfApi

    source = model_folder(folder)
    _require_card(source)
    try:
        api = HfApi()
        repository = api.create_repo(id, private=private or None, exist_ok=True).repo_id
        with _staged(source, repository) as staged:
            api.upload_folder(
                repo_id=repository, folder_path=staged, commit_message="Upload with finetune"
            )
    except Exception as error:
        again = shlex.join(["finetune", "push", str(folder), id, *["--private"] * private])
        raise UserError(
            f"{source} is kept, but could not be pushed to {id} ({_first_line(error)}). Try again "
            f"with: {again}"
        ) from error
    return f"pushed: https://huggingface.co/{repository}"


def _require_card(source: Path) -> None:
    """Write the card of a model that has none; ValueError where its run is not beside it."""
    if (source / "README.md").is_file():
        return
    if not (source.parent / "config.json").is_file():
        raise UserError(f"{source}: no README.md in it, and no run around it to make one from.")
    write_card(gather(source.parent, None))


@contextlib.contextmanager
def _staged(source: Path, id: str) -> Iterator[Path]:
    """A folder of what is uploaded: links to the files of the model, its card under its name on
    the hub, and its task file without paths of this machine."""
    with tempfile.TemporaryDirectory() as name:
        staged = Path(name)
        for path in source.iterdir():
            if path.is_file() and path.name not in ("README.md", TASK_FILE):
                (staged / path.name).symlink_to(path.resolve())
        text = (source / "README.md").read_text(encoding="utf-8")
        (staged / "README.md").write_text(for_hub(text, id), encoding="utf-8")
        content = _without_paths(json.loads((source / TASK_FILE).read_text(encoding="utf-8")))
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (staged / TASK_FILE).write_text(text, encoding="utf-8")
        yield staged


def _without_paths(content: dict[str, Any]) -> dict[str, Any]:
    settings = dict(content["config"])
    for name in PATHS:
        value = settings.get(name)
        if isinstance(value, str) and not _is_public(value):
            settings[name] = last_part(value)
    return {**content, "config": settings}


def _is_public(value: str) -> bool:
    """Whether a setting is a name such as the hub has, and no file or folder."""
    return bool(re.fullmatch(r"[\w.\-]+(/[\w.\-]+)?(:[\w.\-]+)?", value)) and not (
        Path(value).exists() or value.startswith(".")
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
