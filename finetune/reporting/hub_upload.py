"""Upload a trained model with its card to the Hugging Face hub."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
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

    Raise UserError if the id is malformed, the hub cannot be reached, or the user is not signed in,
    has a read-only token, or is not a member of the organization.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # re-exported

    try:
        validate_repo_id(id)
    except HFValidationError as error:
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
    """Upload the best model of a run to a repository of the hub, and return its address.

    ``folder`` is that of a run or of a saved model. Write the card of a model that has none. Raise
    UserError if the hub refuses the upload; the message has the command to try again.
    """
    from huggingface_hub import HfApi

    source = model_folder(folder)
    if not (source / "README.md").is_file():
        if not (source.parent / "config.json").is_file():
            raise UserError(
                f"{source}: it has no model card (README.md), and is not in a run folder from "
                "which one could be written."
            )
        write_card(gather(source.parent, None))
    try:
        api = HfApi()
        repository = api.create_repo(id, private=private or None, exist_ok=True).repo_id
        with tempfile.TemporaryDirectory() as staged:
            _stage(source, repository, Path(staged))
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
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # re-exported
        HFValidationError,
        HTTPError,
    )

    return OSError, HTTPError, HFValidationError, RuntimeError  # RuntimeError is of hf_xet


def _stage(source: Path, id: str, staged: Path) -> None:
    """Fill a folder with links to the model's files, its card and its task file without paths."""
    for path in source.iterdir():
        if path.is_file() and path.name not in ("README.md", TASK_FILE):
            (staged / path.name).symlink_to(path.resolve())
    text = (source / "README.md").read_text(encoding="utf-8")
    (staged / "README.md").write_text(for_hub(text, id), encoding="utf-8")
    content = _without_paths(json.loads((source / TASK_FILE).read_text(encoding="utf-8")))
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (staged / TASK_FILE).write_text(text, encoding="utf-8")


def _without_paths(content: dict[str, Any]) -> dict[str, Any]:
    settings = dict(content["config"])
    for name in PATHS:
        value = settings.get(name)
        if isinstance(value, str) and not _is_public(value):
            settings[name] = last_part(value)
    return {**content, "config": settings}


def _is_public(value: str) -> bool:
    """Return whether a setting is an id of the hub and not a local file or folder."""
    is_id = re.fullmatch(r"[\w.\-]+(/[\w.\-]+)?(:[\w.\-]+)?", value)
    return bool(is_id) and not value.startswith(".") and not Path(value).exists()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
