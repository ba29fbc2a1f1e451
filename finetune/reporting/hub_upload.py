"""Upload a trained model with its card to the Hugging Face hub."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # re-exported
    HFValidationError,
    HTTPError,
)

from finetune.data.json_files import read_object
from finetune.reporting.model_card import for_hub, last_part, write_card
from finetune.reporting.runs import gather
from finetune.tasks import TASK_FILE, model_folder
from finetune.types import UserError

PATHS = ("data", "out", "init_from", "model")
"""Settings in the task file that may be local paths; only their last part is published."""
HUB_ERRORS = (OSError, HTTPError, HFValidationError, RuntimeError)
"""A hub that cannot be reached or refuses a request; RuntimeError is of hf_xet."""


def create_repository(id: str, *, private: bool | None = None) -> str:
    """Create a repository on the hub unless it exists, and return its full id.

    Raise UserError if the hub cannot be reached, the id is malformed or the login may not write.
    """
    try:
        repository = HfApi().create_repo(id, private=private, exist_ok=True).repo_id
        HfApi().auth_check(repository, write=True)
    except HUB_ERRORS as error:
        raise UserError(
            f"{id}: cannot create this repository on the hub or write to it ({_first_line(error)})."
            " An id looks like OWNER/NAME. Sign in with `hf auth login`, or set HF_TOKEN."
        ) from error
    return str(repository)


def degenerate_reasons(folder: Path) -> list[str]:
    """Return why a run, or the run of a saved model, is degenerate; none of other folders."""
    path = model_folder(folder).parent / "environment.json"
    if not path.is_file():
        return []
    return [str(reason) for reason in read_object(path, {}).get("degenerate", [])]


def push(folder: Path, id: str, *, private: bool = False) -> str:
    """Upload the best model of a run to a repository of the hub, and return its address.

    ``folder`` is that of a run or of a saved model. Write the card of a model that has none. Raise
    UserError if the hub refuses the upload; the message has the command to try again.
    """
    source = model_folder(folder)
    if not (source / "README.md").is_file():
        if not (source.parent / "config.json").is_file():
            raise UserError(
                f"{source}: it has no model card (README.md), and is not in a run folder from "
                "which one could be written."
            )
        write_card(gather(source.parent, None))
    repository = create_repository(id, private=private or None)
    paths = [path for path in source.rglob("*") if path.is_file()]
    content = {path.relative_to(source).as_posix(): str(path) for path in paths}
    changed = {"README.md": for_hub((source / "README.md").read_text("utf-8"), repository),
               TASK_FILE: without_paths((source / TASK_FILE).read_text("utf-8"))}  # fmt: skip
    files = content | {name: text.encode() for name, text in changed.items()}
    operations = [CommitOperationAdd(name, file) for name, file in files.items()]
    try:
        HfApi().create_commit(repository, operations, commit_message="Upload with finetune")
    except HUB_ERRORS as error:
        again = shlex.join(["finetune", "push", str(folder), id, *["--private"] * private])
        raise UserError(
            f"could not push to {id} ({_first_line(error)}). The model is kept in {source}. Try "
            f"again with: {again}"
        ) from error
    return f"https://huggingface.co/{repository}"


def without_paths(text: str) -> str:
    """Return the text of a task file whose settings hold no local paths."""
    content = json.loads(text)
    for name in PATHS:
        value = content["config"].get(name)
        if isinstance(value, str) and not _is_public(value):
            content["config"][name] = last_part(value)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _is_public(value: str) -> bool:
    """Return whether a setting is an id of the hub and not a local file or folder."""
    is_id = re.fullmatch(r"[\w.\-]+(/[\w.\-]+)?(:[\w.\-]+)?", value)
    return bool(is_id) and not value.startswith(".") and not Path(value).exists()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
