"""The README.md of a run folder, and of its model: the card that the Hugging Face hub reads.

``push`` uploads a model with its card, which therefore names local files by their last part only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.metric_properties import properties_of
from finetune.config.tasks import CONFIGS, IN_MEMORY, TrainConfig, settings
from finetune.data import hub_dataset
from finetune.data.json_files import read_object
from finetune.evaluation.baselines import selection_note
from finetune.evaluation.runs import RunFolder, last_part
from finetune.models.loading import MODEL_ALIASES
from finetune.reporting.environment import RunOutcome, again_command, card_data
from finetune.reporting.rendering import render
from finetune.reporting.runs import ModelRuns, Run, load_runs
from finetune.runtime.files import write_text
from finetune.runtime.hub import ID, HubError, create_repository, upload_folder
from finetune.tasks import TASK_FILE, model_folder
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.training.scoring import FitResult

PLACEHOLDER = "path/to/this/folder"
"""Name of the model in its card until it is uploaded."""


def write_card(model: ModelRuns) -> None:
    """Write the card of a run's best model; raise UserError where there is no such model."""
    path = model.runs[0].path / "best" / "README.md"
    write_text(path, card(model))


def card(model: ModelRuns) -> str:
    """Write the text of the card: metadata in YAML, then Markdown."""
    run, config = model.runs[0], model.runs[0].config
    path = run.path / "best" / TASK_FILE
    if not path.is_file():
        raise UserError(f"{run.path}: no saved model: best/{TASK_FILE} does not exist.")
    saved = read_object(path, {"task": str, "config": dict})
    native, base = is_native(saved["task"], saved["config"]), _base_model(run)
    spec = str(config.get("data_used") or config.get("data")).partition(",")[0]
    dataset = hub_dataset(spec) if run.environment.get("data") == "hub" else None
    data = dataset._asdict() if dataset else {}
    data_name = last_part(data.get("id") or config.get("data") or "data")
    data_name = "data in memory" if config.get("data") == IN_MEMORY else data_name
    data_name = f"{data_name} ({data['config']})" if data.get("config") else data_name
    encoder = last_part(base or config.get("init_from") or config.get("model") or "?")
    encoder = "new-encoder" if config.get("config") else encoder
    title = f"{encoder} for {run.task} on {data_name}"
    analysis, defaults = run.evaluated, settings(CONFIGS[run.task]())
    listed = {
        name: value
        for name, value in config.items()
        if value is not None
        and name not in UNLISTED
        and (name in DECISIVE or value != defaults.get(name))
    }
    mask = read_object(run.path / "best" / "tokenizer_config.json").get("mask_token", "")
    return render(
        "model_card.md",
        run=run,
        settings=published(listed),
        saved=saved,
        native=native,
        metadata=_metadata(run, native, base, data, data_name, title),
        title=title,
        placeholder=PLACEHOLDER,
        base_model=base,
        encoder=encoder,
        data_name=data_name,
        about=CONFIGS[run.task].description,
        mask=mask.get("content") if isinstance(mask, dict) else mask,
        metrics={
            split: {name: value for name, value in scores.items() if ":" not in name}
            for split, scores in run.metrics.items()
        },
        score=model.score if run.metrics else None,
        positive=run.positive,
        tables=analysis.tables if analysis else {},
        calibration_error=analysis and analysis.calibration_error,
    )


RECORDED = ("fingerprint", "training_fingerprint", "epochs_used", "num_processes", "task")
"""What a run records among its settings, and a page shows elsewhere, or as settings."""
UNLISTED = (*RECORDED, "columns", "data", "init_from", "model", "out", "resume", "revision_used")
"""Settings that stand elsewhere in a card, or say nothing about the model."""
DECISIVE = ("batch_size", "lr", "seed", "steps")
"""Settings that a card lists even if they have their defaults."""
PATHS = ("data", "out", "init_from", "model", "tokenizer", "config", "folder", "custom_loss")
"""Settings that may be local paths; only their last part is published."""
LISTED_PATHS = ("test_sets", "custom_metrics")
"""Settings that are lists of them."""


def published(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten local paths in settings to their last part."""
    shortened = dict(settings)
    for name, value in settings.items():
        if name in PATHS and isinstance(value, str):
            shortened[name] = _without_folders(value)
        elif name in LISTED_PATHS and isinstance(value, list | tuple):
            named = (item.rpartition("=") for item in value)
            shortened[name] = [key + mark + _without_folders(path) for key, mark, path in named]
        elif isinstance(value, Mapping):
            shortened[name] = published(value)
    return shortened


def _without_folders(value: str) -> str:
    is_id = re.fullmatch(r"[\w.\-]+(/[\w.\-]+)?(:[\w.\-]+)?(@[\w.\-]+)?", value)
    is_public = is_id and not value.startswith(".") and not Path(value).exists()
    return value if is_public else last_part(value)


def _metadata(
    run: Run, native: bool, base: str | None, data: Mapping[str, Any], data_name: str, title: str
) -> str:
    # the YAML block: library, task, base model, data, metrics and results by split
    from huggingface_hub import EvalResult, ModelCardData

    description = CONFIGS[run.task].description
    results = [
        EvalResult(
            task_type=description.pipeline,
            dataset_type=data.get("id") or "local-data",
            dataset_name=data_name,
            dataset_config=data.get("config"),
            dataset_split=split,
            metric_type=hub_name,
            metric_name=name,
            metric_value=round(value, 6),
        )
        for split, values in run.metrics.items()
        for name, value in values.items()
        if (hub_name := properties_of(name).hub) and ":" not in name and math.isfinite(value)
    ]
    metrics = dict.fromkeys(result.metric_type for result in results)
    content = ModelCardData(
        base_model=base,
        datasets=[data["id"]] if data else None,
        eval_results=results or None,
        license=run.environment.get("license"),
        library_name=description.library if native else "finetune",
        metrics=list(metrics) or None,
        model_name=title if results else None,
        pipeline_tag=description.pipeline,
        tags=["finetune", run.task],
    )
    return content.to_yaml().strip()


def _base_model(run: Run) -> str | None:
    # the hub id of the encoder; None for a local folder
    name = run.config.get("init_from") or run.config.get("model") or ""
    if run.config.get("config") or Path(name).exists():
        return None
    id = name.partition("@")[0]
    if id.lower() in MODEL_ALIASES:
        return MODEL_ALIASES[id.lower()]
    return id if run.config.get("revision_used") and ID.fullmatch(id) else None


def is_native(task: str, config: Mapping[str, Any]) -> bool:
    """Whether transformers, or sentence-transformers, can use the model of a task."""
    return not config.get("bilstm") and not CONFIGS[task].description.custom_head(config)


def write_run_readme(
    config: TrainConfig, result: FitResult, outcome: RunOutcome, command: str, *, repeatable: bool
) -> None:
    """Write the README.md of a run folder; ``repeatable`` runs can be trained again by settings."""
    values = settings(replace(config, resume=False))
    defaults = settings(type(config)())
    text = render(
        "run_readme.md",
        result=result,
        model=config.init_from or config.model or "a new encoder",
        data=config.data,
        validation=config.validation,
        selection_note=selection_note(result.metrics, config.validation),
        changed={name: value for name, value in values.items() if value != defaults[name]},
        about=config.description,
        native=is_native(result.task.name, values),
        baselines=outcome.baselines,
        degenerate=outcome.degenerate,
        positive=outcome.positive,
        train_command=command,
        again=again_command(result.folder) if repeatable else "",
        predict_command=outcome.predict_command,
    )
    write_text(result.folder / "README.md", text)


# --- Upload ---------------------------------------------------------------------------------------


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
        from huggingface_hub import metadata_save

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
