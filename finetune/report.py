"""What a run leaves for people: its environment, its README, its results on the screen."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.config import TrainConfig

PACKAGES = ("finetune", "torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


def environment(device: str, precision: str) -> dict[str, Any]:
    """Versions, machine and command of this process."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": command_line(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "device": device,
        "precision": precision,
        "versions": versions,
    }


def command_line() -> str:
    """The command as it was typed, near enough to type it again."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def metrics_table(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Metrics by split as a Markdown table."""
    if not metrics:
        return "No split with gold labels to score."
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    rows = [["metric", *metrics], ["---", *["---:"] * len(metrics)]]
    for name in names:
        cells = [_number(values[name]) if name in values else "" for values in metrics.values()]
        rows.append([f"`{name}`", *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def to_continue(out: str) -> str:
    """The command that continues an interrupted run: the one that was typed, with --resume."""
    named = any(argument.split("=")[0] == "--out" for argument in sys.argv)
    parts = [command_line()]
    parts += [] if named else [f"--out {shlex.quote(out)}"]
    parts += [] if "--resume" in sys.argv else ["--resume"]
    return " ".join(parts)


def to_predict(folder: Path, pairs: bool | None) -> str:
    """The command that asks a trained model."""
    second = ' --pair "…"' if pairs else ""
    return f'finetune predict {shlex.quote(str(folder))} --text "…"{second}'


def results(
    metrics: Mapping[str, Mapping[str, float]], baselines: Mapping[str, str] | None = None
) -> str:
    """Metrics by split as plain lines, with a line of comparison under a split that has one."""
    lines = []
    for split, values in metrics.items():
        # scores of single types (span_f1_strict:PER) are in metrics.json and README.md
        overall = {name: value for name, value in values.items() if ":" not in name}
        shown = "  ".join(f"{name} {_number(value)}" for name, value in overall.items())
        lines.append(f"{split:>12}: {shown}")
        if baselines and split in baselines:
            lines.append(f"{'':>12}  ({baselines[split]})")
    return "\n".join(lines) or "no split with gold labels to score"


def _number(value: float) -> str:
    """A metric to read: counts as whole numbers, all else with four decimals."""
    return f"{value:,.0f}" if value == int(value) and abs(value) > 1 else f"{value:.4f}"


def write_readme(
    folder: Path,
    *,
    task: str,
    config: TrainConfig,
    labels: Sequence[str],
    pairs: bool | None,
    metrics: Mapping[str, Mapping[str, float]],
    baselines: Mapping[str, str],
    notes: Sequence[str],
    best_step: int,
    num_steps: int,
) -> None:
    """Write the run folder's README.md."""
    settings = "\n".join(
        f"| `{name}` | {_cell(value)} |" for name, value in vars_of(config).items()
    )
    compared = "".join(f"\n{split}: {line}.\n" for split, line in baselines.items())
    listed = "\n".join(f"- {note}" for note in notes) or "- nothing out of the ordinary"
    text = f"""# {task}: {config.init_from or config.model} on {config.data}

{metrics_table(metrics)}
{compared}
Best model: step {best_step} of {num_steps}, chosen on the validation split, which `test` scores
never took part in.

## Use

    {to_predict(folder, pairs)}

The folder `best/` also loads with plain transformers: `pipeline(model="{folder / "best"}")`.

## Labels

{", ".join(f"`{label}`" for label in labels)}

## Notes on the data

{listed}

## Made with

    {command_line()}

| setting | value |
| --- | --- |
{settings}

## Files

- `best/`: the best model on validation; `last/`: the last checkpoint, which `--resume` continues
- `metrics.json`, `predictions.<split>.jsonl`, `log.jsonl`: scores, answers, the course of training
- `config.json`, `environment.json`: every setting; versions and machine
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def vars_of(config: TrainConfig) -> dict[str, Any]:
    """Settings as a mapping in field order."""
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if value is not None else "unset"
