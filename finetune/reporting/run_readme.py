"""The README.md of a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune.config.tasks import TrainConfig
from finetune.reporting.scores import metrics_table
from finetune.training.environment import command_line, predict_command


def write_run_readme(
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

    {predict_command(folder, pairs)}

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
- `report.html`: a page to look at; `best/README.md`: the model card
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def vars_of(config: TrainConfig) -> dict[str, Any]:
    """Settings as a mapping in field order."""
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if value is not None else "unset"
