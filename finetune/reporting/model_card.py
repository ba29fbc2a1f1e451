"""The model card: README.md of a saved model, as the Hugging Face hub reads it.

A card may be published, so it names files and folders of this machine by their last part only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finetune.data import hub_dataset
from finetune.evaluation.calibration import error_of_bins
from finetune.models.loading import ALIASES
from finetune.reporting.rendering import render
from finetune.reporting.runs import Run, System
from finetune.tasks import TASK_FILE
from finetune.types import UserError

PLACEHOLDER = "path/to/this/folder"
"""Name of the model in its card until it is uploaded."""
WORST_BELOW = 0.8
"""F1 below which a class is listed among the limitations."""
MOST_WORST = 5
"""Classes listed there."""
_NOT_LISTED = ("data", "columns", "out", "init_from", "model", "push_to_hub", "resume", "task",
               "fingerprint", "revision_used")  # fmt: skip
"""Settings that the card shows elsewhere, or that name files."""
_METRICS = {  # names of the hub
    "accuracy": "accuracy", "tag_accuracy": "accuracy", "subset_accuracy": "accuracy",
    "f1": "f1", "macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1",
    "span_f1_conll": "f1", "span_f1_strict": "f1", "span_f1_outermost": "f1",
    "span_f1_inner": "f1", "span_precision_conll": "precision",
    "span_precision_strict": "precision", "span_recall_conll": "recall",
    "span_recall_strict": "recall", "matthews": "matthews_correlation", "pearson": "pearsonr",
    "spearman": "spearmanr", "mse": "mse",
}  # fmt: skip
_DESCRIPTIONS = {
    "classify": "text classification", "nli": "classification of text pairs",
    "tag": "word tagging", "ner": "named entity recognition over spans",
}  # fmt: skip
_EXAMPLES = {
    "tag": '"Maria Keller flew from Lisbon to Oslo."',
    "ner": '"The University of Lisbon is in Portugal."',
    "classify": '"I would watch it again tomorrow."',
}


def write_card(system: System) -> None:
    """Write the card of a run's best model; raise UserError where there is no such model."""
    path = system.runs[0].folder / "best" / "README.md"
    path.write_text(card(system), encoding="utf-8")


def card(system: System) -> str:
    """Return the card: metadata in YAML, then Markdown."""
    run = system.runs[0]
    saved = _saved(run)
    native, pairs = is_native(saved["task"], saved["config"]), bool(saved["extra"].get("pairs"))
    tables = run.evaluated.analysis.tables if run.evaluated else {}
    bins = run.evaluated.analysis.bins if run.evaluated else []
    class_kind = next((name for name in ("label", "type", "tag") if tables.get(name)), None)
    class_rows = tables[class_kind] if class_kind else []
    worst = sorted(class_rows, key=lambda row: row["f1"])
    return render(
        "model_card.md",
        metadata=metadata(run, saved),
        title=title(run),
        placeholder=PLACEHOLDER,
        base_model=base_model(run),
        encoder=_encoder(run),
        task_description=_DESCRIPTIONS[run.task],
        data_name=data_name(run),
        saved=saved,
        metrics={
            split: {name: value for name, value in scores.items() if ":" not in name}
            for split, scores in run.metrics.items()
        },
        headline=system.headline if run.metrics else None,
        native=native,
        pairs=pairs or run.task == "nli",
        hub_task=_hub_task(run),
        example=_EXAMPLES.get(run.task),
        extras=_only_in_finetune(run, saved),
        evaluated=run.evaluated is not None,
        split=run.evaluated.split if run.evaluated else None,
        class_kind=class_kind,
        class_rows=class_rows,
        worst=[row for row in worst if row["f1"] < WORST_BELOW][:MOST_WORST],
        confused=tables.get("confused", [])[:3],
        unseen=[row for row in tables.get("in training", ()) if row["in training"] == "unseen"],
        calibration_error=error_of_bins(bins) if bins else None,
        sizes=run.environment.get("splits", {}),
        revision=run.config.get("revision_used"),
        fingerprint=run.config.get("fingerprint"),
        settings={
            name: value for name, value in run.config.items()
            if name not in _NOT_LISTED and value is not None
        },
        versions=run.environment.get("versions", {}),
    )  # fmt: skip


def _only_in_finetune(run: Run, saved: Mapping[str, Any]) -> list[str]:
    """List the steps of prediction that a pipeline of plain transformers leaves out."""
    steps = {
        "the fitted temperature": bool(saved["extra"].get("temperature")),
        "legal sequences of tags": run.task == "tag",
        "windows over long texts": run.task == "tag" or run.config.get("long_text") == "window",
    }
    return [step for step, applies in steps.items() if applies]


def for_hub(text: str, id: str) -> str:
    """Return a card whose example loads the model by its id on the hub."""
    own = f'finetune.load("{PLACEHOLDER}")'
    if own in text:
        text = text.replace("import finetune\n", "import finetune\nfrom huggingface_hub import "
                            "snapshot_download\n", 1)  # fmt: skip
        text = text.replace(own, f'finetune.load(snapshot_download("{id}"))')
    return text.replace(PLACEHOLDER, id)


def metadata(run: Run, saved: Mapping[str, Any]) -> str:
    """Return the YAML block: library, task, base model, data, metrics and results by split."""
    from huggingface_hub import EvalResult, ModelCardData

    data = _hub_data(run)
    kind = _hub_task(run)
    results = [
        EvalResult(
            task_type=kind, dataset_type=data.get("id") or "local-data",
            dataset_name=data_name(run), dataset_config=data.get("config"), dataset_split=split,
            metric_type=_METRICS[name], metric_name=name, metric_value=round(value, 6),
        )
        for split, values in run.metrics.items() for name, value in values.items()
        if name in _METRICS and math.isfinite(value)
    ]  # fmt: skip
    metrics = dict.fromkeys(result.metric_type for result in results)
    made = ModelCardData(
        base_model=base_model(run),
        datasets=[data["id"]] if data.get("id") else None,
        eval_results=results or None,
        library_name="transformers" if is_native(saved["task"], saved["config"]) else "finetune",
        metrics=list(metrics) or None,
        model_name=title(run) if results else None,
        pipeline_tag=kind,
        tags=["finetune", run.task],
    )
    return made.to_yaml().strip()


def title(run: Run) -> str:
    """Return the encoder, the task and the data in a few words, without paths."""
    return f"{_encoder(run)} for {run.task} on {data_name(run)}"


def base_model(run: Run) -> str | None:
    """Return the hub id of the encoder; None where it is a local folder."""
    name = run.config.get("init_from") or run.config.get("model") or ""
    if Path(name).exists():
        return None
    if name.lower() in ALIASES:
        return ALIASES[name.lower()]
    return name if run.config.get("revision_used") and _is_id(name) else None


def data_name(run: Run) -> str:
    """Return the name of the data: a hub id, or the last part of a path."""
    spec = str(run.config.get("data") or "data")
    return last_part(_hub_data(run).get("id") or spec) + (
        f" ({config})" if (config := _hub_data(run).get("config")) else ""
    )


def _hub_data(run: Run) -> dict[str, Any]:
    """Return id, configuration and revision of a data set of the hub; empty for local data."""
    chosen = (
        hub_dataset(str(run.config.get("data"))) if run.environment.get("data") == "hub" else None
    )
    return {} if chosen is None else chosen._asdict()


def _is_id(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.\-]+(/[\w.\-]+)?", name))


def last_part(spec: str) -> str:
    """Return the last part of a path, with plain characters only."""
    return re.sub(r"[^\w.\-]+", "_", re.split(r"[/\\=]", spec.rstrip("/\\"))[-1]) or "data"


def _encoder(run: Run) -> str:
    config = run.config
    return last_part(base_model(run) or config.get("init_from") or config.get("model") or "?")


def _saved(run: Run) -> dict[str, Any]:
    path = run.folder / "best" / TASK_FILE
    if not path.is_file():
        raise UserError(f"{run.folder}: no saved model: best/{TASK_FILE} does not exist.")
    return json.loads(path.read_text(encoding="utf-8"))


def is_native(task: str, config: Mapping[str, Any]) -> bool:
    """Return whether plain transformers has a class for the model of a task."""
    return task != "ner" and not config.get("crf")


def _hub_task(run: Run) -> str:
    return "token-classification" if run.task in ("tag", "ner") else "text-classification"
