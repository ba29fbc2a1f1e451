"""Train one configuration with several seeds, folds or sizes of data, and summarize the scores.

On small data the scores of seeds differ by several points, and some runs fail entirely (Mosbach et
al., 2021; Dodge et al., 2020). Data are read once. Finished runs are kept, so that the same call
continues after an interruption, or adds runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal

from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data import Dataset, assign_folds
from finetune.data.examples import Examples, fingerprint
from finetune.data.json_files import read_object
from finetune.data.splitting import nested_order
from finetune.evaluation.reproduction import ScoreVerdict, summarize, verdicts
from finetune.evaluation.runs import RunFolder
from finetune.preprocessing.preparation import read_data, with_held_out_splits
from finetune.runtime.files import entries, is_free, write_json
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

_Varied = Literal["seed", "fold", "size"]
"""The setting in which runs differ: seed, fold, or size of the training data."""
TrainOne = Callable[[TrainConfig, Dataset, RunWriter], object]
"""Trains a run in its opened folder and writes all its files, ``README.md`` last."""
OnStart = Callable[[TrainConfig, bool], object]
"""Called for each run with its configuration, and whether it is finished."""


@dataclass(kw_only=True)
class Runs:
    """Several runs in a folder: their settings, data and scores."""

    varied: _Varied
    folder: Path
    configs: Mapping[Any, TrainConfig]
    """The settings by seed, or by name of the run; ``out`` is in the folder."""
    data: Mapping[Any, Callable[[], Dataset]]
    """Functions that make the data of each run, with the same keys."""
    fixed_settings: Mapping[str, Any]
    """What all runs share, which is compared when they are continued. First entries of the file."""
    start: Path | None = None
    """A folder of seeds: each run begins with the model of the same seed there."""
    recipe_run: RecipeRun | None = None
    metrics: dict[Any, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Scores of each run by split and name."""
    degenerate: dict[Any, list[str]] = field(default_factory=dict)
    """Reasons why a run is degenerate."""
    baselines: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    """Hash of the data of the first seed."""

    @property
    def file(self) -> str:
        """Name of the file with the summary: ``seeds.json``, ``folds.json`` or ``sizes.json``."""
        return f"{self.varied}s.json"

    @property
    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Statistics of each score."""
        return summarize(self.metrics, self.fixed_settings.get("ratio"))

    def train(self, train_one: TrainOne, on_start: OnStart = lambda config, finished: None) -> None:
        """Train the runs, and write their summary after each.

        Finished runs are kept. A run whose training raises Diverged is degenerate.
        """

        def begin() -> None:
            if not (self.folder / self.file).is_file():
                self._write()

        def require_model() -> None:
            if not self.metrics:
                reasons = dict.fromkeys(chain.from_iterable(self.degenerate.values()))
                raise UserError(f"{self.folder}: no {self.varied} has a model: {' '.join(reasons)}")

        states = dict(zip(self.configs, on_main_process(self._states), strict=True))
        for key, config in self.configs.items():
            if states[key] != "new":
                pin_model(RunFolder.open(Path(config.out or "")), config)  # in each process
        accelerator = make_accelerator(next(iter(self.configs.values())))
        with hold(self.folder):
            on_main_process(begin)
            for key, config in self.configs.items():
                state, diverged = states[key], None
                on_start(config, state == "finished")
                if state != "finished":
                    resumed = replace(config, resume=state == "unfinished")
                    try:
                        begin_with = RunFolder.open(Path(config.init_from or ""))
                        if self.start is not None and not begin_with.best.is_dir():
                            raise Diverged(f"not run, because {config.init_from} has no model.")
                        with open_run(config, accelerator) as opened:
                            train_one(resumed, self.data[key](), opened)
                    except Diverged as error:
                        diverged = str(error)
                on_main_process(partial(self._add, key, diverged))
        on_main_process(require_model)

    def _states(self) -> list[str]:
        folder, varied = self.folder, self.varied
        require_writable(folder)
        if RunFolder.open(folder).is_run:
            raise UserError(
                f"--{varied}s: {folder} is the folder of a single run: use another --out."
            )
        path = folder / self.file
        runs = [inside for inside in folder.glob(f"{varied}-*") if inside.is_dir()]
        new = is_free(folder) or all(folder / name in runs for name in entries(folder))
        has_runs = path.is_file() or any(RunFolder.open(run).is_run for run in runs)
        require_own(folder, has_runs or (new and all(map(is_free, runs))))
        saved = read_object(path) if path.is_file() else self.fixed_settings
        for name, value in self.fixed_settings.items():
            if name not in ("repeats", "sizes") and saved.get(name) != value:  # which may grow
                raise UserError(
                    f"{folder}: holds {varied}s with {name} = {saved.get(name)!r}, now {value!r}: "
                    "continue with the same data and options, or use another --out."
                )
        return [state_of(config) for config in self.configs.values()]

    def _add(self, key: Any, diverged: str | None) -> None:
        if diverged is None:
            self._add_scores(key)
        else:
            self.degenerate[key] = [diverged]
        self._write()

    def _add_scores(self, key: Any) -> None:
        folder = Path(self.configs[key].out or "")
        run = RunFolder.open(folder)
        for name, problem in run.problems.items():
            raise UserError(problem or f"{folder / name} is missing: train the run again.")
        self.fingerprint = self.fingerprint or run.config["fingerprint"]
        drawn = self.varied != "seed" or run.config.get("per_class")  # each has its own data
        if run.config["fingerprint"] != self.fingerprint and not drawn:
            raise UserError(
                f"{folder}: was trained on other data than the other seeds: choose another --out, "
                "or delete the folder to train it again."
            )
        self.metrics[key] = run.metrics
        self.baselines = run.environment.get("baselines") or {}
        if reasons := run.environment.get("degenerate"):
            self.degenerate[key] = reasons

    def verdicts(self) -> Sequence[ScoreVerdict]:
        """Compare the scores with those that the recipe expects."""
        if self.recipe_run is None:
            return ()
        return verdicts(
            self.recipe_run.recipe.expected,
            self.summary,
            self.recipe_run.differing,
            num_degenerate=len(self.degenerate),
            num_seeds=len({*self.metrics, *self.degenerate}),
        )

    def _write(self) -> None:
        content = {
            **self.fixed_settings,
            "seeds" if self.varied == "seed" else "runs": list(self.metrics),
            **({"scores": self.metrics} if self.varied == "size" else {"metrics": self.summary}),
            "degenerate": [{"seed": seed, "reasons": r} for seed, r in self.degenerate.items()],
            "recipe": self.recipe_run.to_dict() if self.recipe_run else None,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts()],
            "baselines": self.baselines,
        }
        write_json(self.folder / self.file, content)


def runs_folder(config: TrainConfig, task: str, varied: str, name: str | None = None) -> Path:
    """The folder of several runs: ``config.out``, else one in ``runs/``."""
    return Path(config.out or RUNS / f"{name or run_name(config, task)}-{varied}")


def state_of(config: TrainConfig) -> str:
    """The state of a run: ``finished``, ``unfinished`` or ``new``.

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


def plan_seeds(
    name: str,
    config: TrainConfig,
    number: int,
    folder: Path,
    recipe_run: RecipeRun | None = None,
    start: Path | None = None,
) -> Runs:
    """Plan ``number`` seeds of a task, from ``config.seed`` on.

    All seeds share the data; each may draw its own examples from it. With ``start``, a folder of
    seeds, each begins with the model of the same seed there.
    """
    dataset, configs = _read(name, config), seed_configs(config, number, folder, start)
    return Runs(
        varied="seed",
        folder=folder,
        configs=configs,
        data=dict.fromkeys(configs, lambda: dataset),
        fixed_settings={"data": dataset.fingerprint},
        start=start,
        recipe_run=recipe_run,
    )


def seed_configs(
    config: TrainConfig, number: int, folder: Path, start: Path | None = None
) -> dict[int, TrainConfig]:
    """The settings of the run of each seed of ``plan_seeds``."""
    configs = {}
    for seed in range(config.seed, config.seed + number):
        configs[seed] = replace(config, seed=seed, out=str(folder / f"seed-{seed}"))
        if start is not None:
            configs[seed] = replace(configs[seed], init_from=str(start / f"seed-{seed}"))
    return configs


def plan_folds(name: str, config: TrainConfig, num_folds: int, repeats: int, folder: Path) -> Runs:
    """Plan runs that train and test on folds of the training data.

    Each repeat divides the examples into ``num_folds`` new folds. Run ``fold-R.K`` tests on fold K
    of repeat R (split ``test``) and trains on the others. A validation split of the data serves
    every run; else each run holds one out of its training examples. The test split of the data is
    not used. Each run has a different seed, so that the interval includes the variance of training.
    """
    dataset = _read(name, config)
    examples = train_split(dataset, config, "--folds")
    assign_folds(examples, num_folds)  # raises if there are too few examples
    configs, data = dict[str, TrainConfig](), dict[str, Callable[[], Dataset]]()
    for repeat, number in product(range(repeats), range(num_folds)):
        run, seed = f"fold-{repeat + 1}.{number + 1}", config.seed + repeat
        configs[run] = replace(config, seed=config.seed + len(configs), out=str(folder / run))
        data[run] = partial(fold_data, dataset, examples, num_folds, seed, number)
    return Runs(
        varied="fold",
        folder=folder,
        configs=configs,
        data=data,
        fixed_settings={
            "folds": num_folds,
            "repeats": repeats,
            "seed": config.seed,
            "data": fingerprint({"train": examples}),
            "ratio": 1 / (num_folds - 1),
        },
    )


def fold_data(
    dataset: Dataset, examples: Examples, num_folds: int, seed: int, number: int
) -> Dataset:
    """Divide data for a fold: ``test`` is the fold, ``train`` all other examples.

    Validation splits stay as they are.
    """
    dealt = assign_folds(examples, num_folds, seed, keep_rare=True)
    splits = {
        split: examples.keep((fold == number) == held for fold in dealt).renumbered()
        for split, held in (("train", False), ("test", True))
    }
    validation = {n: rows for n, rows in dataset.splits.items() if n.startswith("validation")}
    return dataset.with_splits(splits | validation)


def plan_sizes(
    name: str, config: TrainConfig, sizes: Sequence[int], num_seeds: int, folder: Path
) -> Runs:
    """Plan runs on nested, stratified subsets of the training data.

    Run ``size-N-S`` has seed S and the first N examples of an order that depends on the seed. All
    runs have the validation and test splits of the data, or one validation split that is held out.
    Without ``sizes`` they are all examples, and four times the half.
    """
    dataset = _read(name, config)
    train_split(dataset, config, "--sizes")
    if config.validation != "none" or "test" not in dataset.splits:
        dataset = with_held_out_splits(dataset, config)
        validation = "none" if config.validation == "none" else "auto"
        config = replace(config, validation=validation)
    if not dataset.scored_splits:
        raise UserError(
            "--sizes: --validation none leaves no split to score: leave it out, or name a test "
            "split."
        )
    examples = train_split(dataset, config, "--sizes")
    labels = {label for labels in examples.golds() for label in labels or ()}
    numbers = any(isinstance(getattr(item, "label", None), float) for item in examples)
    least = 2 if numbers else len(labels)
    halves = [size for power in (4, 3, 2, 1, 0) if (size := len(examples) >> power) >= least]
    sizes = sorted(set(sizes)) or halves
    if sizes[0] < least or sizes[-1] > len(examples):
        raise UserError(
            f"--sizes must be {least} (the labels) to {len(examples):,} (the training examples), "
            f"not {', '.join(map(str, sizes))}."
        )

    def first(size: int, seed: int) -> Dataset:
        train = examples.take(nested_order(examples, seed)[:size]).renumbered()
        return dataset.with_splits({**dataset.splits, "train": train})

    configs, data = dict[str, TrainConfig](), dict[str, Callable[[], Dataset]]()
    for size, seed in product(sizes, range(config.seed, config.seed + num_seeds)):
        run = f"size-{size}-{seed}"
        configs[run] = replace(config, seed=seed, out=str(folder / run))
        data[run] = partial(first, size, seed)
    return Runs(
        varied="size",
        folder=folder,
        configs=configs,
        data=data,
        fixed_settings={"sizes": sizes, "data": dataset.fingerprint},
    )


def _read(name: str, config: TrainConfig) -> Dataset:
    dataset: Dataset = on_all_processes(lambda: read_data(task_class(name), config))
    return dataset


def train_split(data: Dataset, config: TrainConfig, option: str) -> Examples:
    """The training examples to divide, at most ``--limit``."""
    if "train" not in data.splits:
        raise UserError(f"{option}: {config.data}: there is no train split.")
    return data.splits["train"][: config.limit]
