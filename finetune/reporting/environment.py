"""``environment.json``: versions, machine, data, baselines and verdicts of a run.

Also the commands that start, resume and use it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import finetune
from finetune.config.recipes import RUN_SETTINGS, RecipeRun
from finetune.config.tasks import CONFIGS, TrainConfig, settings
from finetune.evaluation.baselines import Baseline, baselines_of, degenerate
from finetune.evaluation.prediction_types.labels import named_positive
from finetune.evaluation.reproduction import ScoreVerdict, verdicts
from finetune.evaluation.runs import RunFolder
from finetune.models.loading import local_model
from finetune.runtime.files import write_json
from finetune.runtime.processes import num_processes
from finetune.types import UserError

if TYPE_CHECKING:  # reports are read without torch
    from finetune.data import Dataset
    from finetune.training.scoring import FitResult

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


@dataclass(frozen=True)
class RunOutcome:
    """Baselines of a run by split, why it is degenerate, and verdicts on its expected scores."""

    baselines: Mapping[str, Baseline]
    degenerate: Sequence[str]
    verdicts: Sequence[ScoreVerdict]
    positive: str | None = None
    """The class of `f1`, of two labels."""
    predict_command: str = ""
    """A command that predicts with the model."""

    @property
    def warnings(self) -> list[str]:
        """What to do about a degenerate run; empty for others."""
        reasons = "; ".join(self.degenerate)
        advice = "Train longer (--epochs), or with another --lr."
        return [f"this run is degenerate: {reasons}. {advice}"] if reasons else []


def write_environment(
    result: FitResult,
    config: TrainConfig,
    data: Dataset,
    recipe_run: RecipeRun | None,
    command: str,
    machine: Mapping[str, Any],
) -> RunOutcome:
    """Compare a run with its baselines and its recipe, and write ``environment.json``.

    ``machine`` is what ``environment`` returns.
    """
    task, folder, metrics = result.task, result.folder, result.metrics
    name, is_new = config.init_from or config.model, settings(config).get("config") is not None
    baselines = baselines_of(data.splits, metrics)
    reasons = list(degenerate(folder, metrics, baselines, config.metric))
    content = {
        "command": command,
        **machine,
        "data": data.format,
        "license": model_license(name) if name is not None and not is_new else None,
        "weights": dict(zip(("trained", "all"), result.weights, strict=True)),
        "splits": {split: len(examples) for split, examples in data.splits.items()},
        "baselines": {split: baseline._asdict() for split, baseline in baselines.items()},
        "degenerate": reasons,
    }
    if machine["device"] == "cuda":
        content["cuda_graphs"] = result.cuda_graphs
    compared: Sequence[ScoreVerdict] = ()
    if recipe_run:
        expected, number = recipe_run.recipe.expected, 1 if reasons else 0
        compared = verdicts(expected, metrics, recipe_run.differing, num_degenerate=number)
        content["recipe"] = recipe_run.to_dict()
        content["recipe"]["verdicts"] = [verdict.to_dict() for verdict in compared]
    write_json(folder / "environment.json", content)
    labels, positive = task.state.labels, task.state.extra_fields().get("positive")
    if positive is None and len(labels) == 2:
        positive = named_positive(labels)
    mask = task.tokenizer.tokenizer.mask_token if task.description.fills_masks else ""
    command = predict_command(folder, task.name, task.state.pairs, mask)
    return RunOutcome(baselines, reasons, compared, positive, command)


def saved_outcome(run: RunFolder) -> RunOutcome:
    """Read the baselines of a finished run, and why it is degenerate, from its folder."""
    saved = run.environment.get("baselines") or {}
    baselines = {split: Baseline(**baseline) for split, baseline in saved.items()}
    return RunOutcome(baselines, run.environment.get("degenerate") or (), ())


def environment(device: str, precision: str, threads: int) -> dict[str, Any]:
    """Collect the versions and the machine; a CPU computes an operation with some ``threads``."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device": device,
        "precision": precision,
        "versions": {
            "finetune": finetune.__version__,
            **{package: importlib.metadata.version(package) for package in PACKAGES},
        },
    }


def command_line() -> str:
    """The command that started this process or launch, without --resume, for a shell."""
    arguments = [
        argument
        for before, argument in pairwise(sys.argv)
        if argument.split("=")[0] != "--resume" and (before, argument) != ("--resume", "auto")
    ]
    if (number := num_processes()) > 1:
        started = ["torchrun", "--nproc_per_node", str(number), "-m", "finetune"]
    else:
        program = Path(sys.argv[0]).name
        started = ["python", "-m", "finetune"] if program == "__main__.py" else [program]
    return shlex.join([*started, *arguments])


def resume_command(out: str) -> str:
    """The command that continues an interrupted run: the same command with --resume."""
    named = any(argument.split("=")[0] == "--out" for argument in sys.argv)
    words = [command_line()]
    words += [] if named else [f"--out {shlex.quote(out)}"]
    return " ".join([*words, "--resume"])


def again_command(folder: Path) -> str:
    """A command that trains with the settings of a run, in another folder.

    Of a seed, a fold, a size or a trial, that folder is not in the folder of them all.
    """
    settings, out = folder / RUN_SETTINGS, folder.with_name(f"{folder.name}-again")
    if re.fullmatch(r"(seed|fold|size|trial)-[\d.-]+", folder.name) and folder.parent.name:
        out = folder.parent.with_name(f"{folder.parent.name}-{out.name}")
    return shlex.join(["finetune", "run", str(settings), "--out", str(out)])


def predict_command(folder: Path, task: str, pairs: bool | None, mask: str) -> str:
    """A command that predicts with a trained model; its text has a ``mask`` if there is one."""
    if file := CONFIGS[task].description.example_file:
        return f"finetune predict {shlex.quote(str(folder))} --file {file}"
    second = ' --pair "…"' if pairs else ""
    text = f"… {mask} …" if mask else "…"
    return f'finetune predict {shlex.quote(str(folder))} --text "{text}"{second}'


def card_data(path: Path) -> dict[str, Any]:
    """Load the metadata of a model card; raises UserError if it is not YAML."""
    from huggingface_hub import metadata_load

    try:
        return metadata_load(path) or {}
    except (yaml.YAMLError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"{path}: its metadata are no mapping in YAML ({detail:.200}).") from error


def model_license(name: str) -> str | None:
    """The license in the card of a model, or of a run's model.

    It is None if the card has none, or cannot be read.
    """
    card = local_model(name, weights=False) / "README.md"
    if card.is_file():
        with contextlib.suppress(UserError):
            if isinstance(license_name := card_data(card).get("license"), str):
                return license_name
    return None
