"""The model card: README.md of a saved model, as the Hugging Face hub reads it; only what was
measured.

Whatever stands in it may be published: names of files and folders are cut to their last part.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finetune.data import hub_set
from finetune.evaluation.calibration import error_of
from finetune.models.loading import ALIASES
from finetune.reporting.runs import Run, System
from finetune.reporting.scores import number
from finetune.tasks import TASK_FILE
from finetune.types import UserError

PLACE = "path/to/this/folder"
"""What a card calls its model until it has a name on the hub."""
WORST_BELOW = 0.8
"""Classes with an F1 below this are named among the limits."""
MOST_WORST = 5
"""Classes that are named there at most."""
_PATHS = ("data", "columns", "out", "init_from", "model", "push_to_hub", "resume")
"""Settings that stand elsewhere in the card, or say where files lay."""
_METRICS = {  # how the hub calls what a metric of ours measures
    "accuracy": "accuracy", "tag_accuracy": "accuracy", "subset_accuracy": "accuracy",
    "f1": "f1", "macro_f1": "f1", "micro_f1": "f1", "weighted_f1": "f1",
    "span_f1_conll": "f1", "span_f1_strict": "f1", "span_f1_outermost": "f1",
    "span_f1_inner": "f1", "span_precision_conll": "precision",
    "span_precision_strict": "precision", "span_recall_conll": "recall",
    "span_recall_strict": "recall", "matthews": "matthews_correlation", "pearson": "pearsonr",
    "spearman": "spearmanr", "mse": "mse",
}  # fmt: skip
_WHAT = {
    "classify": "text classification", "nli": "classification of pairs of texts",
    "tag": "word tagging", "ner": "named entities as spans",
}  # fmt: skip
_EXAMPLES = {
    "tag": '"Maria Keller flew from Lisbon to Oslo."',
    "ner": '"The University of Lisbon is in Portugal."',
    "classify": '"I would watch it again tomorrow."',
}


def write_card(system: System) -> None:
    """Write the card of a run's best model; raises ValueError where there is no such model."""
    path = system.runs[0].folder / "best" / "README.md"
    path.write_text(card(system), encoding="utf-8")


def card(system: System) -> str:
    """The card as text: metadata in YAML, then Markdown."""
    run = system.runs[0]
    saved = _saved(run)
    blocks = [
        f"---\n{metadata(run, saved)}\n---",
        f"# {title(run)}",
        _introduction(run, saved),
        "## Results",
        _results(system),
        "## How to use it",
        _usage(run, saved),
        "## Intended use",
        _intended(run, saved),
        "## Labels",
        _labels(run, saved),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(run, saved)),
        "## Training",
        _training(run),
    ]
    return "\n\n".join(blocks) + "\n"


def for_hub(text: str, id: str) -> str:
    """A card whose example asks the model under its name on the hub."""
    own = f'finetune.load("{PLACE}")'
    if own in text:
        text = text.replace("import finetune\n", "import finetune\nfrom huggingface_hub import "
                            "snapshot_download\n", 1)  # fmt: skip
        text = text.replace(own, f'finetune.load(snapshot_download("{id}"))')
    return text.replace(PLACE, id)


def metadata(run: Run, saved: Mapping[str, Any]) -> str:
    """The YAML block: library, task of the hub, base model, data, metrics, results by split."""
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
        library_name="transformers" if _is_native(saved) else "finetune",
        metrics=list(metrics) or None,
        model_name=title(run) if results else None,
        pipeline_tag=kind,
        tags=["finetune", run.task],
    )
    return made.to_yaml().strip()


def title(run: Run) -> str:
    """Encoder, task and data in a few words, none of them a path."""
    return f"{_encoder(run)} for {run.task} on {data_name(run)}"


def base_model(run: Run) -> str | None:
    """The hub id of the encoder, None where that is a folder (or a run) of this machine."""
    name = run.config.get("init_from") or run.config.get("model") or ""
    if Path(name).exists():
        return None
    if name.lower() in ALIASES:
        return ALIASES[name.lower()]
    return name if run.config.get("revision_used") and _is_id(name) else None


def data_name(run: Run) -> str:
    """What the data are called: the last part of where they were."""
    spec = str(run.config.get("data") or "data")
    return last_part(_hub_data(run).get("id") or spec) + (
        f" ({config})" if (config := _hub_data(run).get("config")) else ""
    )


def _hub_data(run: Run) -> dict[str, Any]:
    """Id, configuration and revision of a data set of the hub; empty for local data."""
    chosen = hub_set(str(run.config.get("data"))) if run.environment.get("data") == "hub" else None
    return {} if chosen is None else chosen._asdict()


def _is_id(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.\-]+(/[\w.\-]+)?", name))


def last_part(spec: str) -> str:
    """The last part of a path, with plain characters only."""
    return re.sub(r"[^\w.\-]+", "_", re.split(r"[/\\=]", spec.rstrip("/\\"))[-1]) or "data"


def _encoder(run: Run) -> str:
    config = run.config
    return last_part(base_model(run) or config.get("init_from") or config.get("model") or "?")


def _saved(run: Run) -> dict[str, Any]:
    path = run.folder / "best" / TASK_FILE
    if not path.is_file():
        raise UserError(f"{run.folder}: there is no saved model in it: no {TASK_FILE} in best.")
    return json.loads(path.read_text(encoding="utf-8"))


def _is_native(saved: Mapping[str, Any]) -> bool:
    """Whether plain transformers has a class for the model."""
    return saved["task"] != "ner" and not saved["config"].get("crf")


def _hub_task(run: Run) -> str:
    return "token-classification" if run.task in ("tag", "ner") else "text-classification"


def _introduction(run: Run, saved: Mapping[str, Any]) -> str:
    base = base_model(run)
    encoder = f"[`{base}`](https://huggingface.co/{base})" if base else f"`{_encoder(run)}`"
    return (
        f"{encoder}, fine-tuned with finetune for {_WHAT[run.task]} on `{data_name(run)}`; "
        f"{len(saved['labels']) or 'no'} labels."
    )


def _results(system: System) -> str:
    run, found = system.runs[0], system.headline
    if not run.metrics:
        return "No split had gold labels to score."
    names = dict.fromkeys(n for values in run.metrics.values() for n in values if ":" not in n)
    lines = [f"| metric | {' | '.join(run.metrics)} |", "| --- |" + " ---: |" * len(run.metrics)]
    for name in names:
        cells = [number(v[name], name) if name in v else "" for v in run.metrics.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    text = "\n".join(lines)
    if found is not None:
        value, low, high = found.estimate
        text += (
            f"\n\n`{found.metric}` on {found.split}: {value:.4f}, 95 % interval {low:.4f} to "
            f"{high:.4f} (bootstrap over {found.num_units:,} examples)."
        )
    return text


def _usage(run: Run, saved: Mapping[str, Any]) -> str:
    pairs = saved["extra"].get("pairs") or run.task == "nli"
    one, two = '"A man is cooking dinner."', '"Somebody prepares food."'
    if _is_native(saved):
        asked = f'{{"text": {one}, "text_pair": {two}}}' if pairs else _EXAMPLES[run.task]
        kind = _hub_task(run)
        several = ", top_k=None" if kind == "text-classification" else ""
        code = (f'from transformers import pipeline\n\nmodel = pipeline("{kind}", '
                f'model="{PLACE}"{several})\nprint(model({asked}))')  # fmt: skip
    else:
        code = (f'import finetune\n\nmodel = finetune.load("{PLACE}")\n'
                f"print(model.predict([{_EXAMPLES[run.task]}])[0].record())")  # fmt: skip
    what = ["the fitted temperature"] if saved["extra"].get("temperature") else []
    what += ["legal sequences of tags", "windows over long texts"] if run.task == "tag" else []
    what += ["windows over long texts"] if run.config.get("long_text") == "window" else []
    more = "\n\n`finetune predict` also applies what plain transformers does not: "
    more = f"{more}{', '.join(what)}." if what and _is_native(saved) else ""
    return f"```python\n{code}\n```{more}"


def _intended(run: Run, saved: Mapping[str, Any]) -> str:
    what = "pairs of texts" if saved["extra"].get("pairs") else "texts"
    return (
        f"To answer {what} like those it was trained on with the labels below. It was measured on "
        f"the splits above and on nothing else: other languages, domains and lengths (it reads up "
        f"to {saved['max_length']} tokens at a time) are untested."
    )


def _labels(run: Run, saved: Mapping[str, Any]) -> str:
    evaluated = run.evaluated
    tables = evaluated.analysis.tables if evaluated else {}
    kind = next((name for name in ("label", "type", "tag") if tables.get(name)), None)
    if evaluated is None or kind is None:
        return ", ".join(map(_code, saved["labels"])) or "A number, no labels."
    lines = [f"| {kind} | precision | recall | F1 | in {evaluated.split} |",
             "| --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for row in tables[kind]:
        cells = " | ".join(f"{row[name]:.4f}" for name in ("precision", "recall", "f1"))
        lines.append(f"| {_code(row[kind])} | {cells} | {row['support']:,} |")
    return "\n".join(lines)


def _limits(run: Run, saved: Mapping[str, Any]) -> Iterator[str]:
    """What was found in the answers; nothing that was not measured."""
    if run.evaluated is None:
        yield "The answers were not looked at: no split with gold and predictions."
        return
    found, split = run.evaluated.analysis, run.evaluated.split
    for kind in ("label", "type", "tag"):
        worst = sorted(found.tables.get(kind, ()), key=lambda row: row["f1"])
        worst = [row for row in worst if row["f1"] < WORST_BELOW][:MOST_WORST]
        if worst:
            listed = ", ".join(f"{_code(r[kind])} {r['f1']:.2f} ({r['support']:,})" for r in worst)
            yield f"Lowest F1 by {kind} on {split} (examples in gold): {listed}."
    confused = found.tables.get("confused", [])[:3]
    if confused:
        listed = ", ".join(f"{_code(row['gold'])} for {_code(row['predicted'])} ({row['number']:,})"
                           for row in confused)  # fmt: skip
        yield f"Most often confused (gold for answer): {listed}."
    for row in found.tables.get("in training", ()):
        if row["in training"] == "unseen":
            name = "f1" if "f1" in row else "accuracy"
            what = "names" if name == "f1" else "words"
            yield f"On {what} unseen in training: {name} {row[name]:.4f}."
    if found.bins:
        yield f"Expected calibration error of its probabilities: {error_of(found.bins):.4f}."


def _training(run: Run) -> str:
    about = run.environment
    sizes = ", ".join(f"{name} {size:,}" for name, size in about.get("splits", {}).items())
    lines = [f"Data: `{data_name(run)}`" + (f" ({sizes})" if sizes else "") + "."]
    if revision := run.config.get("revision_used"):
        lines.append(f"Encoder at commit `{revision}`.")
    if run.config.get("fingerprint"):
        lines.append(f"Fingerprint (SHA-256) of the data: `{run.config['fingerprint']}`.")
    settings = [
        f"| `{name}` | {_code(json.dumps(value, ensure_ascii=False))} |"
        for name, value in run.config.items()
        if name not in (*_PATHS, "task", "fingerprint", "revision_used") and value is not None
    ]  # fmt: skip
    versions = ", ".join(f"{name} {v}" for name, v in about.get("versions", {}).items())
    table = "\n".join(["| setting | value |", "| --- | --- |", *settings])
    return "\n".join(lines) + f"\n\n{table}\n\n{versions}"


def _code(text: Any) -> str:
    """A name in Markdown that cannot break a table or leave its code span."""
    line = " ".join(str(text).split())
    return f"`{line.replace('`', chr(39)).replace('|', '/')}`"
