"""Train one configuration with several seeds, folds or sizes of data, and summarize the scores.

On small data the scores of seeds differ by several points, and some runs fail entirely (Mosbach et
al., 2021; Dodge et al., 2020). Data are read once. Finished runs are kept, so that the same call
continues after an interruption, or adds runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data import Dataset, assign_folds, with_held_out_splits
from finetune.data.dataset import fingerprint
from finetune.data.examples import Examples
from finetune.data.json_files import read_object
from finetune.data.preparation import read_once
from finetune.data.splitting import nested_order
from finetune.evaluation.reproduction import ScoreVerdict, summarize, verdicts
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import entries, is_free, write_text
from finetune.runtime.launch import make_accelerator, on_all_processes, on_main_process
from finetune.runtime.progress import Reporter
from finetune.tasks import task_class
from finetune.training.run_folder import (
    RUNS,
    Diverged,
    RunWriter,
    hold,
    open_run,
    pin_model,
    require_own,
    require_same_run,
    require_writable,
    run_name,
)
from finetune.types import UserError

Metrics = Mapping[str, Mapping[str, float]]
"""Scores by split and name."""
Kind = Literal["seed", "fold", "size"]
"""The setting in which runs differ: seed, fold, or size of the training data."""
TrainOne = Callable[[TrainConfig, Dataset, RunWriter], object]
"""Trains a run in its opened folder and writes all its files, ``README.md`` last."""
OnStart = Callable[[TrainConfig, bool], object]
"""Called for each run with its configuration, and whether it is finished."""


@dataclass
class RunResults:
    """Scores, and reasons why a run is degenerate, by seed or by name of the fold."""

    kind: Kind
    facts: Mapping[str, Any]
    """What all runs share, which is compared when they are continued. First entries of the file."""
    recipe_run: RecipeRun | None = None
    metrics: dict[Any, Metrics] = field(default_factory=dict)
    degenerate: dict[Any, list[str]] = field(default_factory=dict)
    baselines: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    """Hash of the data of the first seed."""

    @property
    def file(self) -> str:
        """Name of the file with the summary."""
        return f"{self.kind}s.json"

    @property
    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Statistics of each score."""
        return summarize(self.metrics, self.facts.get("ratio"))

    def add(self, seed: Any, folder: Path) -> None:
        """Read the scores of a finished seed, which must have the data of the others."""
        run = RunFolder.open(folder)
        for name, problem in run.problems.items():
            raise UserError(problem or f"{folder / name} is missing: train the run again.")
        metrics = run.metrics
        self.fingerprint = self.fingerprint or run.config["fingerprint"]
        drawn = self.kind != "seed" or run.config.get("per_class")  # each has its own data
        if run.config["fingerprint"] != self.fingerprint and not drawn:
            raise UserError(
                f"{folder}: was trained on other data than the other seeds: choose another --out, "
                "or delete the folder to train it again."
            )
        if self.metrics and bool(metrics) != any(self.metrics.values()):
            raise UserError(
                f"{folder / 'metrics.json'}: has {'' if metrics else 'no '}scores, unlike the "
                "other runs here: delete the folder to train it again."
            )
        self.metrics[seed] = metrics
        self.baselines = run.environment.get("baselines") or {}
        if reasons := run.environment.get("degenerate"):
            self.degenerate[seed] = reasons

    def require_model(self, folder: Path) -> None:
        """Raise UserError if no run has a model."""
        if not self.metrics:
            reasons = dict.fromkeys(each for found in self.degenerate.values() for each in found)
            raise UserError(f"{folder}: no {self.kind} has a model: {' '.join(reasons)}")

    def verdicts(self) -> Sequence[ScoreVerdict]:
        """Compare the scores with those that the recipe expects."""
        if self.recipe_run is None:
            return ()
        return verdicts(
            self.recipe_run.recipe.expected,
            self.summary,
            self.recipe_run.differing,
            self.fingerprint,
            num_degenerate=len(self.degenerate),
            num_seeds=len({*self.metrics, *self.degenerate}),
        )

    def write(self, folder: Path) -> None:
        """Write the summary to ``seeds.json``, ``folds.json`` or ``sizes.json``."""
        content = {
            **self.facts,
            "seeds" if self.kind == "seed" else "runs": list(self.metrics),
            **({"scores": self.metrics} if self.kind == "size" else {"metrics": self.summary}),
            "degenerate": [{"seed": seed, "reasons": r} for seed, r in self.degenerate.items()],
            "recipe": self.recipe_run.to_dict() if self.recipe_run else None,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts()],
            "baselines": self.baselines,
        }
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_text(folder / self.file, text)


def runs_folder(config: TrainConfig, task: str, kind: str, name: str | None = None) -> Path:
    """Return the folder of several runs: ``config.out``, else one in ``runs/``."""
    return Path(config.out or RUNS / f"{name or run_name(config, task)}-{kind}")


def train_seeds(
    name: str,
    config: TrainConfig,
    number: int,
    folder: Path,
    train_one: TrainOne,
    *,
    recipe_run: RecipeRun | None = None,
    start: Path | None = None,
    on_start: OnStart = lambda config, finished: None,
) -> RunResults:
    """Train ``number`` seeds of a task, from ``config.seed`` on; write ``seeds.json`` after each.

    All seeds share the data; each may draw its own examples from it. With ``start``, a folder of
    seeds, each begins with the model of the same seed there.
    """

    def train(each: TrainConfig, data: Dataset, opened: RunWriter) -> object:
        if start is not None and not RunFolder.open(Path(each.init_from or "")).best.is_dir():
            raise Diverged(f"not run, because {each.init_from} has no model.")
        return train_one(each, data, opened)

    raw = _read(name, config)
    configs = seed_configs(config, number, folder, start)
    results = RunResults("seed", {"data": raw.fingerprint}, recipe_run)
    return train_runs(configs, folder, train, results, lambda _: raw, on_start)


def seed_configs(
    config: TrainConfig, number: int, folder: Path, start: Path | None = None
) -> dict[int, TrainConfig]:
    """Return the settings of the seeds of ``train_seeds``."""
    configs = {}
    for seed in range(config.seed, config.seed + number):
        configs[seed] = replace(config, seed=seed, out=str(folder / f"seed-{seed}"))
        if start is not None:
            configs[seed] = replace(configs[seed], init_from=str(start / f"seed-{seed}"))
    return configs


def train_runs(
    configs: Mapping[Any, TrainConfig],
    folder: Path,
    train_one: TrainOne,
    results: RunResults,
    data_of: Callable[[Any], Dataset],
    on_start: OnStart = lambda config, finished: None,
) -> RunResults:
    """Train several runs in a folder, and write their summary after each.

    Runs that are finished there are kept. A run whose training raises Diverged is degenerate.

    Args:
        configs: The settings by seed or name; ``out`` is in ``folder``.
        folder: The folder of all runs.
        train_one: Trains a run.
        results: The kind and the facts of the runs, to which their scores are added.
        data_of: Returns the data of a run by its seed or name.
        on_start: Called before each run.
    """

    def find_states() -> list[str]:
        require_runs_folder(folder, results.kind, results.facts)
        return [state_of(each) for each in configs.values()]

    def record(key: Any, config: TrainConfig, diverged: str | None, *, write: bool) -> None:
        if diverged is None:
            results.add(key, Path(config.out or ""))
        else:
            results.degenerate[key] = [diverged]
        if write:
            results.write(folder)

    def begin() -> None:
        if not (folder / results.file).is_file():
            results.write(folder)

    states = on_main_process(find_states)
    for each, state in zip(configs.values(), states, strict=True):
        if state != "new":
            pin_model(RunFolder.open(Path(each.out or "")), each)  # in each process
    accelerator = make_accelerator(next(iter(configs.values())))
    with hold(folder):
        on_main_process(begin)
        for index, ((key, each), state) in enumerate(zip(configs.items(), states, strict=True)):
            on_start(each, state == "finished")
            diverged = None
            if state != "finished":
                try:
                    with open_run(each, accelerator) as opened:
                        each = replace(each, resume=state == "unfinished")
                        train_one(each, data_of(key), opened)
                except Diverged as error:
                    diverged = str(error)
            write = state != "finished" or index + 1 == len(states)
            on_main_process(partial(record, key, each, diverged, write=write))
    on_main_process(lambda: results.require_model(folder))
    return results


def require_runs_folder(folder: Path, kind: Kind, facts: Mapping[str, Any]) -> None:
    """Raise UserError unless a folder is free, or holds runs of these facts (data and settings).

    The facts are in ``seeds.json``, ``folds.json`` or ``sizes.json``. Repeats and sizes may grow.
    """
    require_writable(folder)
    if RunFolder.open(folder).is_run:
        raise UserError(f"--{kind}s: {folder} is the folder of a single run: use another --out.")
    path = folder / f"{kind}s.json"
    runs = [inside for inside in folder.glob(f"{kind}-*") if inside.is_dir()]
    new = is_free(folder) or all(folder / name in runs for name in entries(folder))
    own = path.is_file() or any(RunFolder.open(run).is_run for run in runs)
    require_own(folder, own or (new and all(map(is_free, runs))))
    if not path.is_file():
        return
    saved = read_object(path)
    for name, value in facts.items():
        if name in ("repeats", "sizes") or saved.get(name) == value:
            continue
        raise UserError(
            f"{folder}: holds {kind}s with {name} = {saved.get(name)!r}, now {value!r}: continue "
            "with the same data and options, or use another --out."
        )


def train_folds(
    name: str,
    config: TrainConfig,
    num_folds: int,
    folder: Path,
    train_one: TrainOne,
    *,
    repeats: int = 1,
    hold_out: bool = False,
    on_start: OnStart = lambda config, finished: None,
) -> RunResults:
    """Train and test on folds of the training data, and write ``folds.json`` after each.

    Each repeat divides the examples into ``num_folds`` new folds. Run ``fold-R.K`` tests on fold K
    of repeat R (split ``test``) and trains on the others; with ``hold_out`` each repeat has its
    first fold only. A validation split of the data serves every run; else each run holds one out of
    its training examples. The test split of the data is not used. Each run has a different seed, so
    that the interval includes the variance of training.
    """
    raw = _read(name, config)
    examples = train_split(raw, config, "--folds")
    numbers = range(1, 2 if hold_out else num_folds + 1)
    keys = [(repeat, number) for repeat in range(1, repeats + 1) for number in numbers]
    names = {f"fold-{repeat}.{number}": (repeat, number) for repeat, number in keys}
    configs = {
        each: replace(config, seed=config.seed + index, out=str(folder / each))
        for index, each in enumerate(names)
    }

    def data_of(each: str) -> Dataset:
        repeat, number = names[each]
        return fold_data(raw, examples, num_folds, config.seed + repeat - 1, number - 1)

    facts = {
        "folds": num_folds,
        "hold_out": hold_out,
        "repeats": repeats,
        "seed": config.seed,
        "data": fingerprint({"train": examples}),
        "ratio": 1 / (num_folds - 1),
    }
    assign_folds(examples, num_folds)  # raises if there are too few examples
    return train_runs(configs, folder, train_one, RunResults("fold", facts), data_of, on_start)


def fold_data(raw: Dataset, examples: Examples, num_folds: int, seed: int, number: int) -> Dataset:
    """Return the data of a fold: ``test`` is the fold, ``train`` all others.

    Validation splits stay as they are.
    """
    dealt = assign_folds(examples, num_folds, seed, keep_rare=True)
    others = {split: rows for split, rows in raw.splits.items() if split.startswith("validation")}
    splits = {
        split: examples.keep((fold == number) == held for fold in dealt).renumbered()
        for split, held in (("train", False), ("test", True))
    }
    return raw.with_splits(splits | others)


def train_sizes(
    name: str,
    config: TrainConfig,
    sizes: Sequence[int],
    num_seeds: int,
    folder: Path,
    train_one: TrainOne,
    *,
    on_start: OnStart = lambda config, finished: None,
) -> RunResults:
    """Train on nested, stratified subsets of the training data.

    Run ``size-N-S`` has seed S and the first N examples of an order that depends on the seed. All
    runs have the validation and test splits of the data, or one validation split that is held out.
    Without ``sizes`` they are all examples, and four times the half.
    """
    raw = _read(name, config)
    train_split(raw, config, "--sizes")
    if config.validation != "none" or "test" not in raw.splits:
        raw = with_held_out_splits(raw, config)
        validation = "none" if config.validation == "none" else "auto"
        config = replace(config, validation=validation)
    if not raw.scored_splits:
        raise UserError(
            "--sizes: --validation none leaves no split to score: leave it out, or name a test "
            "split."
        )
    examples = train_split(raw, config, "--sizes")
    labels = {label for labels in examples.golds() for label in labels or ()}
    numbers = any(isinstance(getattr(each, "label", None), float) for each in examples)
    least = 2 if numbers else len(labels)
    halves = [size for power in (4, 3, 2, 1, 0) if (size := len(examples) >> power) >= least]
    sizes = sorted(set(sizes)) or halves
    if sizes[0] < least or sizes[-1] > len(examples):
        raise UserError(
            f"--sizes must be {least} (the labels) to {len(examples):,} (the training examples), "
            f"not {', '.join(map(str, sizes))}."
        )
    names = {
        f"size-{size}-{seed}": (size, seed)
        for size in sizes
        for seed in range(config.seed, config.seed + num_seeds)
    }
    configs = {
        each: replace(config, seed=seed, out=str(folder / each))
        for each, (_, seed) in names.items()
    }

    def data_of(each: str) -> Dataset:
        size, seed = names[each]
        chosen = nested_order(examples, seed)[:size]
        return raw.with_splits({**raw.splits, "train": examples.take(chosen).renumbered()})

    results = RunResults("size", {"sizes": sizes, "data": raw.fingerprint})
    return train_runs(configs, folder, train_one, results, data_of, on_start)


def _read(name: str, config: TrainConfig) -> Dataset:
    data: Dataset = on_all_processes(lambda: read_once(task_class(name), config))
    return data


def train_split(data: Dataset, config: TrainConfig, option: str) -> Examples:
    """Return the training examples to divide, at most ``--limit``."""
    if "train" not in data.splits:
        raise UserError(f"{option}: {config.data}: there is no train split.")
    return data.splits["train"][: config.limit]


def state_of(config: TrainConfig) -> str:
    """Return whether a run is ``finished``, ``unfinished`` or ``new``.

    Raises UserError if its folder holds a run with other settings.
    """
    run = RunFolder.open(Path(config.out or ""))
    if not run.is_run:
        return "new"
    require_same_run(run, config)
    pin_model(run, config)
    for problem in filter(None, run.problems.values()):
        Reporter().log(f"{problem} The seed is scored again.")
    if not run.is_finished:
        return "unfinished"
    if (damaged := run.require_intact()) is None:
        return "finished"
    Reporter().log(f"{damaged}: changed since the run was finished. The seed is scored again.")
    return "unfinished"
