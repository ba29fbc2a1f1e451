"""Upload a trained model with its card to the Hugging Face hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

from huggingface_hub import metadata_save

from finetune.evaluation.runs import RunFolder
from finetune.reporting.environment import card_data
from finetune.reporting.model_card import PLACEHOLDER, published, write_card
from finetune.reporting.runs import load_runs
from finetune.runtime.hub import HubError, create_repository, upload_folder
from finetune.tasks import TASK_FILE, model_folder
from finetune.types import UserError


def degenerate_reasons(folder: Path) -> list[str]:
    """List why a run, or the run of a saved model, is degenerate; empty for other folders."""
    run = RunFolder.open(model_folder(folder).parent)
    if problem := run.problems.get("environment.json"):
        raise UserError(problem)
    return run.environment.get("degenerate") or []


def require_owner(id: str) -> None:
    """Raise UserError unless an id of the hub names its owner."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", id):
        raise UserError(f"{id}: write the owner and the name, as in OWNER/NAME.")


def push(
    folder: Path, id: str, *, private: bool = False, license: str | None = None
) -> tuple[str, str | None]:
    """Upload the best model of a run to ``OWNER/NAME``; a model without a card gets one.

    ``license`` takes the place of the license of the base model. Return the address of the model,
    and the license in its card.
    """
    source = model_folder(folder)
    if not (source / "README.md").is_file():
        if not RunFolder.open(source.parent).is_run:
            raise UserError(
                f"{source}: it has no model card (README.md), and is not in a run folder from "
                "which one could be written."
            )
        write_card(load_runs(source.parent, None))
    card = source / "README.md"
    if license is not None:
        metadata_save(card, card_data(card) | {"license": license})
    named = card_data(card).get("license")
    repository = create_repository(id, private=private or None)
    changed = {"README.md": card.read_text("utf-8").replace(PLACEHOLDER, repository)}
    if (task_file := source / TASK_FILE).is_file():
        changed[TASK_FILE] = without_paths(task_file.read_text("utf-8"))
    try:
        address = upload_folder(repository, source, changed)
    except HubError as error:
        raise UserError(
            f"{error} The model was not pushed, and is kept in {source}: repeat the command."
        ) from error
    return address, named


def without_paths(text: str) -> str:
    """Remove the local paths from the settings in the text of a task file."""
    content = json.loads(text)
    content["config"] = published(content["config"])
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
