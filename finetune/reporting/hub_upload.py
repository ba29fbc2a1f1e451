"""Upload a trained model with its card to the Hugging Face hub."""

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
"""Settings in the task file that may be local paths; only their last part is published."""


def require_login(id: str) -> None:
    """Check before training that the user may push to a repository of the hub.

    Raises:
        UserError: The id is malformed, the hub cannot be reached, the user is not signed in, has a
            read-only token, or is not a member of the organization.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(id)
    except ValueError as error:
        raise UserError(f"--push-to-hub {id!r}: not an id such as OWNER/NAME ({error}).") from error
    try:
        account = HfApi().whoami()
    except _hub_errors() as error:
        raise UserError(
            f"--push-to-hub {id}: the login to the hub failed ({_first_line(error)}): sign in with "
            "`hf auth login`, or set HF_TOKEN. Nothing was trained."
        ) from error
    token = (account.get("auth") or {}).get("accessToken") or {}
    if token.get("role") == "read":
        raise UserError(
            f"--push-to-hub {id}: the token of {account['name']!r} may only read: sign in with a "
            "token that may write (`hf auth login`). Nothing was trained."
        )
    owner, slash, _ = id.partition("/")
    own = [account["name"], *(each["name"] for each in account.get("orgs", ()))]
    if slash and owner not in own:
        raise UserError(
            f"--push-to-hub {id}: {account['name']!r} is not a member of {owner!r}: "
            f"use one of {', '.join(own)}. Nothing was trained."
        )


def push(folder: Path, id: str, *, private: bool = False) -> str:
    """Upload the best model of a run.

    Args:
        folder: Run folder, or folder of a saved model.
        id: Repository on the hub, such as OWNER/NAME.
        private: Make a new repository private.

    Returns:
        The address of the repository.

    Raises:
        UserError: The hub refuses the upload; the message has the command to try again.
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
    except _hub_errors() as error:
        again = shlex.join(["finetune", "push", str(folder), id, *["--private"] * private])
        raise UserError(
            f"could not push to {id} ({_first_line(error)}). The model is kept in {source}. Try "
            f"again with: {again}"
        ) from error
    return f"https://huggingface.co/{repository}"


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a hub that cannot be reached or refuses a request."""
    from huggingface_hub.errors import HFValidationError, HTTPError

    return OSError, HTTPError, HFValidationError, RuntimeError  # RuntimeError is of hf_xet


def _require_card(source: Path) -> None:
    """Write the card of a model that has none."""
    if (source / "README.md").is_file():
        return
    if not (source.parent / "config.json").is_file():
        raise UserError(
            f"{source}: it has no model card (README.md), and is not in a run folder from which "
            "one could be written."
        )
    write_card(gather(source.parent, None))


@contextlib.contextmanager
def _staged(source: Path, id: str) -> Iterator[Path]:
    """Yield a temporary folder with what is uploaded.

    It has links to the files of the model, the card with the id of the repository, and the task
    file without local paths.
    """
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
    """Return whether a setting is an id of the hub and not a local file or folder."""
    return bool(re.fullmatch(r"[\w.\-]+(/[\w.\-]+)?(:[\w.\-]+)?", value)) and not (
        Path(value).exists() or value.startswith(".")
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
