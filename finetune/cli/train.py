"""What the commands that train do, once their arguments are read."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finetune.cli.commands import quiet_libraries
from finetune.config.recipes import Followed, Recipe, follow
from finetune.config.tasks import TrainConfig
from finetune.evaluation.baselines import Baseline, degenerate, majority_baselines
from finetune.evaluation.verdicts import Claim, claims
from finetune.reporting import REPORT_FILE, format_score, write_run_readme, write_run_report
from finetune.tasks import Task, load_task
from finetune.training.environment import environment, predict_command, resume_command


class Trained(NamedTuple):
    """What a run came to: metrics and baselines by split, why it counts as degenerate (if it does),
    what its recipe claims, and whether its model reads pairs."""

    metrics: dict[str, dict[str, float]]
    baselines: dict[str, Baseline]
    degenerate: Sequence[str]
    claims: Sequence[Claim]
    pairs: bool | None


def train(
    name: str, config: TrainConfig, recipe: Recipe | None, of_recipe: TrainConfig | None
) -> None:
    """Train a task's model and say what came out, how that compares and where it is."""
    quiet_libraries()
    from finetune.reporting.hub_upload import push, require_login
    from finetune.runtime.launch import on_main_process
    from finetune.runtime.progress import clock
    from finetune.training.run_folder import with_run_folder

    start = time.monotonic()
    if (id := config.push_to_hub) is not None:
        on_main_process(lambda: require_login(id))
    config = with_run_folder(config, name, recipe.name if recipe else None)
    folder = Path(config.out or "")

    followed = follow(recipe, config, of_recipe)
    trained = train_once(name, config, lambda: resume_command(str(folder)), followed)
    if trained is None:
        return
    if trained.degenerate:
        print(f"this run is degenerate: {'; '.join(trained.degenerate)}")
    for claim in trained.claims:
        print(claim.line())
    print(
        f"{clock(time.monotonic() - start)} in all. Everything is in {folder}: README.md says what "
        f"is what, {REPORT_FILE} shows it; the model is {folder / 'best'}."
    )
    print(f"Try it: {predict_command(folder, trained.pairs)}")
    if id is not None:
        print(push(folder, id))


def train_once(
    name: str,
    config: TrainConfig,
    again: Callable[[], str],
    followed: Followed | None,
) -> Trained | None:
    """Train in the folder that ``config.out`` names, leave there what people want to know, and
    print the scores; None on processes that are not the main one.

    After Ctrl-C the program ends, once the command that ``again`` says has been named.
    """
    from finetune.runtime.launch import make_accelerator
    from finetune.runtime.memory import memory_kept
    from finetune.runtime.precision import resolve_precision
    from finetune.runtime.progress import Reporter
    from finetune.runtime.signals import Interrupted
    from finetune.training.trainer import fit

    accelerator = make_accelerator(config)
    main = accelerator.is_main_process
    reporter = Reporter(quiet=not main)
    task = load_task(config, name)
    if followed:
        followed.check_splits(task.splits[1:])
    for line in (*described(task), *task.notes):
        reporter.say(line)
    try:
        with memory_kept():
            result = fit(task, config, accelerator, reporter)
    except Interrupted as stopped:
        reporter.say(f"{stopped}. Continue with: {again()}")
        sys.exit(130)
    if not main:
        return None
    folder = Path(config.out or "")
    precision = resolve_precision(config, accelerator.device)
    about = environment(accelerator.device.type, precision)
    trained = _judged(task, config, result.metrics, about, followed)
    write_run_readme(
        folder,
        task=name,
        config=config,
        labels=list(task.labels),
        pairs=task.pairs,
        metrics=result.metrics,
        baselines=(lines := {split: str(line) for split, line in trained.baselines.items()}),
        notes=result.notes,
        best_step=result.best_step,
        num_steps=result.num_steps,
    )
    print(score_lines(result.metrics, lines))
    report_run(folder)
    return trained


def score_lines(
    metrics: Mapping[str, Mapping[str, float]], baselines: Mapping[str, str] | None = None
) -> str:
    """Format the overall scores of each split as a line, followed by its baseline.

    Scores of single types (``span_f1_strict:PER``) are in metrics.json and README.md only.
    """
    lines = []
    for split, values in metrics.items():
        scores = "  ".join(
            f"{name} {format_score(value, name)}"
            for name, value in values.items()
            if ":" not in name
        )
        lines.append(f"{split:>12}: {scores}")
        if baselines and split in baselines:
            lines.append(f"{'':>12}  ({baselines[split]})")
    return "\n".join(lines) or "no split with gold labels to score"


def report_run(folder: Path) -> None:
    """Write the report and the model card of finished runs; print why where that fails.

    The run is finished either way, so that any failure here ends in one line.
    """
    try:
        write_run_report(folder)
    except Exception as error:
        print(
            f"The report or the model card could not be written ({type(error).__name__}: {error}). "
            "The run itself is finished. Try again with: finetune report "
            f"{shlex.quote(str(folder))}",
            file=sys.stderr,
        )


def _judged(
    task: Task,
    config: TrainConfig,
    metrics: dict[str, dict[str, float]],
    about: dict[str, Any],
    followed: Followed | None,
) -> Trained:
    """What the scores of a run come to; written to its folder, after what there is ``about`` its
    environment."""
    folder = Path(config.out or "")
    splits = {split: task.read(split) for split in task.splits}
    baselines = majority_baselines(splits, metrics)
    failed = list(degenerate(folder, metrics, baselines, config.metric))
    about = about | _facts(task, baselines) | {"degenerate": failed}
    claimed: Sequence[Claim] = ()
    if followed:
        claimed = claims(
            followed.recipe.expected,
            metrics,
            followed.differing,
            task.fingerprint,
            degenerate=bool(failed),
        )
        about["recipe"] = followed.record() | {"verdicts": [each.record() for each in claimed]}
    text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
    (folder / "environment.json").write_text(text, encoding="utf-8")
    return Trained(metrics, baselines, failed, claimed, task.pairs)


def _facts(task: Task, baselines: Mapping[str, Baseline]) -> dict[str, Any]:
    """What is known at the end of training only, for reports made later."""
    data = getattr(task, "data", None)
    return {
        "data": data.format if data else None,
        "splits": {split: len(task.read(split)) for split in task.splits},
        "baselines": {split: base._asdict() for split, base in baselines.items()},
    }


def dry_run(name: str, config: TrainConfig) -> None:
    """Print what a run would do: data, labels, lengths, steps, memory; nothing is trained."""
    quiet_libraries()
    from finetune.training.optimizer import Schedule

    task = load_task(config, name)
    examples = task.read("train")
    encoded = task.encode(examples[:10_000])
    lengths = sorted(encoded.sequences.lengths.tolist())
    plan = Schedule.from_config(config, len(examples))
    print("\n".join((*described(task), *task.notes)))
    print(
        f"lengths in tokens: mean {statistics.fmean(lengths):.1f}, median "
        f"{lengths[len(lengths) // 2]}, 95 % {lengths[int(len(lengths) * 0.95)]}, longest "
        f"{lengths[-1]}" + (" (first 10,000 examples)" if len(examples) > 10_000 else "")
    )
    if task.num_cut:
        print(f"cut to fit --max-length: {task.num_cut:,}")
    for line in task.lost(examples[:10_000], encoded):
        print(f"train: {line}")
    print(
        f"{plan.num_steps:,} steps of {plan.batch_size} examples, {plan.steps_per_epoch:,} an "
        f"epoch, {plan.warmup_steps:,} of warm-up; evaluation every {plan.eval_every:,}, "
        f"checkpoint every {plan.save_every:,}"
    )
    print(_memory(task, statistics.fmean(lengths)))
    for field in config.__dataclass_fields__:
        print(f"  {field}: {getattr(config, field)}")


def _memory(task: Task, mean_length: float) -> str:
    """A guess at training memory: weights, gradients and moments, and kept activations."""
    import torch
    from transformers import AutoModel

    config, model = task.config, task.encoder_config()
    with torch.device("meta"):
        number = sum(weight.numel() for weight in AutoModel.from_config(model).parameters())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = min(config.tokens_on(device), config.batch_size * mean_length)
    # Kept for the backward pass, per token and layer: about 34 values of the model's width
    # (Korthikanti et al., 2022, without the attention matrix), 4 bytes each.
    activations = tokens * model.num_hidden_layers * model.hidden_size * 34 * 4
    return (
        f"memory: {number / 1e6:,.1f} M weights, about {16 * number / 1e9:.2f} GB with gradients "
        f"and moments, and {activations / 1e9:.2f} GB of activations for {tokens:,.0f} tokens "
        "(--max-tokens bounds them)"
    )


def described(task: Task) -> list[str]:
    """The data in a line or two: examples by split, labels."""
    from finetune.types import shortened

    counts = ", ".join(f"{split} {len(task.read(split)):,}" for split in task.splits)
    return [
        f"data: {task.config.data}: {counts}",
        f"labels ({len(task.labels)}): {shortened(task.labels, 20)}",
    ]
