"""Train one configuration with several seeds or on several folds, and summarize the scores.

On small data the scores of seeds differ by several points, and some runs fail entirely (Mosbach et
al., 2021; Dodge et al., 2020). Finished seeds are kept, so that the same call continues after an
interruption, or adds seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from finetune.config.recipes import RecipeRun
from finetune.config.tasks import TrainConfig
from finetune.data import Dataset, assign_folds, with_held_out_splits
from finetune.data.dataset import fingerprint, gold_labels, renumbered
from finetune.data.json_files import check_types, read_object
from finetune.data.splitting import nested_order
from finetune.evaluation.reproduction import ScoreVerdict, seed_verdicts, summarize
from finetune.runtime.files import entries, is_free, recover, write_text
from finetune.runtime.launch import on_main_process
from finetune.runtime.progress import Reporter
from finetune.tasks import task_definition
from finetune.training.run_folder import (
    Diverged,
    hold,
    is_run,
    pin_model,
    require_own,
    require_same_run,
    require_writable,
)
from finetune.types import UserError

Metrics = Mapping[str, Mapping[str, float]]
"""Scores by split and name."""


@dataclass
class SeedResults:
    """Scores, and reasons why a run is degenerate, by seed or by name of the fold."""

    recipe_run: RecipeRun | None = None
    metrics: dict[Any, Metrics] = field(default_factory=dict)
    degenerate: dict[Any, list[str]] = field(default_factory=dict)
    baselines: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    """Hash of the data of the first seed."""
    folds: Mapping[str, Any] | None = None
    """How the data were divided, if the runs are folds or subsets: the first entries of the file.
    """
    data: str | None = None
    """Hash of the data of all seeds, before each draws its own of them."""

    @property
    def kind(self) -> str:
        """The setting in which the runs differ: seed, fold, or size of the training data."""
        return "seed" if self.folds is None else "fold" if "folds" in self.folds else "size"

    @property
    def file(self) -> str:
        """Name of the file with the summary."""
        return f"{self.kind}s.json"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What all runs of the folder share, which is compared when they are continued."""
        return self.folds or ({} if self.data is None else {"data": self.data})

    @property
    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Statistics of each score."""
        return summarize(self.metrics, self.folds.get("ratio") if self.folds else None)

    def add(self, seed: Any, folder: Path) -> None:
        """Read the scores of a finished seed, which must have the data of the others."""
        config = read_object(folder / "config.json", {"fingerprint": str})
        metrics = read_object(folder / "metrics.json")
        environment = read_object(
            folder / "environment.json", {"baselines": dict, "degenerate": list[str]}
        )
        check_types(folder / "metrics.json", metrics, dict.fromkeys(metrics, dict[str, float]))
        self.fingerprint = self.fingerprint or config["fingerprint"]
        drawn = self.folds is not None or config.get("per_class")  # each seed has its own data
        if config["fingerprint"] != self.fingerprint and not drawn:
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
        self.baselines = environment["baselines"]
        if reasons := environment["degenerate"]:
            self.degenerate[seed] = reasons

    def verdicts(self) -> Sequence[ScoreVerdict]:
        """Compare the scores with those that the recipe expects."""
        if self.recipe_run is None:
            return ()
        return seed_verdicts(
            self.recipe_run.recipe.expected,
            self.summary,
            self.recipe_run.differing,
            len(self.degenerate),
            len({*self.metrics, *self.degenerate}),
            self.fingerprint,
        )

    def write(self, folder: Path) -> None:
        """Write the summary to ``seeds.json`` or ``folds.json``."""
        content = {
            **self.facts,
            "seeds" if self.folds is None else "runs": list(self.metrics),
            **({"scores": self.metrics} if self.kind == "size" else {"metrics": self.summary}),
            "degenerate": [{"seed": seed, "reasons": r} for seed, r in self.degenerate.items()],
            "recipe": self.recipe_run.record() if self.recipe_run else None,
            "verdicts": [verdict.record() for verdict in self.verdicts()],
            "baselines": self.baselines,
        }
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        write_text(folder / self.file, text)


def train_seeds(
    name: str,
    config: TrainConfig,
    number: int,
    folder: Path,
    train_one: Callable[[TrainConfig], object],
    *,
    recipe_run: RecipeRun | None = None,
    on_start: Callable[[TrainConfig, bool], object] = lambda config, finished: None,
) -> SeedResults:
    """Train ``number`` seeds of a task, from ``config.seed`` on; write ``seeds.json`` after each.

    All seeds read the same data; each may draw its own examples from it. Finished seeds in
    ``folder`` are kept. ``train_one`` writes all files of the folder ``seed-<n>``, ``README.md``
    last; if it raises Diverged, the seed is degenerate. ``on_start`` is called for each seed with
    its configuration and whether it is finished.
    """
    configs = {
        seed: replace(config, seed=seed, out=str(folder / f"seed-{seed}"))
        for seed in range(config.seed, config.seed + number)
    }
    data = on_main_process(lambda: task_definition(name).read(config, config.data).fingerprint)
    results = SeedResults(recipe_run, data=data)
    return train_runs(configs, folder, train_one, results, on_start=on_start)


def train_runs(
    configs: Mapping[Any, TrainConfig],
    folder: Path,
    train_one: Callable[[TrainConfig], object],
    results: SeedResults,
    *,
    on_start: Callable[[TrainConfig, bool], object] = lambda config, finished: None,
) -> SeedResults:
    """Train several runs as ``train_seeds`` does; ``configs`` has the settings by name or seed."""
    kind = results.kind

    def find_states() -> list[str]:
        require_writable(folder)
        if is_run(folder):
            raise UserError(
                f"--{kind}s: {folder} is the folder of a single run: use another --out."
            )
        runs = [path for path in folder.glob(f"{kind}-*") if path.is_dir()]
        new = is_free(folder) or all(folder / name in runs for name in entries(folder))
        own = (folder / results.file).is_file() or any(map(is_run, runs))
        require_own(folder, own or (new and all(map(is_free, runs))))
        _require_same_facts(folder, results)
        return [_state(Path(each.out or ""), each) for each in configs.values()]

    def record(key: Any, config: TrainConfig, diverged: str | None, *, write: bool) -> None:
        if diverged is None:
            results.add(key, Path(config.out or ""))
        else:
            results.degenerate[key] = [diverged]
        if write:
            results.write(folder)

    def begin() -> None:
        recover(folder)
        if not (folder / results.file).is_file():
            results.write(folder)

    states = on_main_process(find_states)
    with hold(folder):
        on_main_process(begin)
        for index, ((key, each), state) in enumerate(zip(configs.items(), states, strict=True)):
            on_start(each, state == "finished")
            diverged = None
            if state != "finished":
                try:
                    train_one(replace(each, resume=state == "unfinished"))
                except Diverged as error:
                    diverged = str(error)
            write = state != "finished" or index + 1 == len(states)
            on_main_process(partial(record, key, each, diverged, write=write))
    return results


def _require_same_facts(folder: Path, results: SeedResults) -> None:
    """Raise UserError if a folder has runs of other data, or other folds."""
    path = folder / results.file
    if not path.is_file():
        return
    saved = read_object(path)
    for name, value in results.facts.items():
        if name in ("repeats", "sizes") or saved.get(name) == value:
            continue
        if name in saved or results.folds is not None:  # else of an earlier version
            raise UserError(
                f"{folder}: holds {results.kind}s with {name} = {saved.get(name)!r}, now "
                f"{value!r}: continue with the same data and options, or use another --out."
            )


def train_folds(
    name: str,
    config: TrainConfig,
    num_folds: int,
    folder: Path,
    train_one: Callable[[TrainConfig, Dataset], object],
    *,
    repeats: int = 1,
    hold_out: bool = False,
    on_start: Callable[[TrainConfig, bool], object] = lambda config, finished: None,
) -> SeedResults:
    """Train and test on folds of the training data, and write ``folds.json`` after each.

    Each repeat divides the examples into ``num_folds`` new folds. Run ``fold-R.K`` tests on fold K
    of repeat R (split ``test``) and trains on the others; with ``hold_out`` each repeat has its
    first fold only. A validation split of the data serves every run; else each run holds one out of
    its training examples. The test split of the data is not used. Each run has a different seed, so
    that the interval includes the variance of training. Finished runs are kept, as are seeds.
    """
    raw = task_definition(name).read(config, config.data)
    if "train" not in raw.splits:
        raise UserError(f"--folds: {config.data}: there is no train split.")
    examples = raw.splits["train"][: config.limit]
    others = {split: rows for split, rows in raw.splits.items() if split.startswith("validation")}
    numbers = range(1, 2 if hold_out else num_folds + 1)
    keys = [(repeat, number) for repeat in range(1, repeats + 1) for number in numbers]
    configs = {
        f"fold-{repeat}.{number}": replace(
            config, seed=config.seed + index, out=str(folder / f"fold-{repeat}.{number}")
        )
        for index, (repeat, number) in enumerate(keys)
    }
    by_out = dict(zip((each.out for each in configs.values()), keys, strict=True))

    def train(run_config: TrainConfig) -> None:
        repeat, number = by_out[run_config.out]
        dealt = assign_folds(examples, num_folds, config.seed + repeat - 1, keep_rare=True)
        sides = {"train": False, "test": True}
        splits = {
            split: renumbered(
                [e for e, fold in zip(examples, dealt, strict=True) if (fold == number - 1) == held]
            )
            for split, held in sides.items()
        }
        train_one(run_config, raw.with_splits(splits | others))

    facts = {
        "folds": num_folds,
        "hold_out": hold_out,
        "repeats": repeats,
        "seed": config.seed,
        "data": fingerprint({"train": examples}),
        "ratio": 1 / (num_folds - 1),
    }
    assign_folds(examples, num_folds)  # raises if there are too few examples
    return train_runs(configs, folder, train, SeedResults(folds=facts), on_start=on_start)


def train_sizes(
    name: str,
    config: TrainConfig,
    sizes: Sequence[int],
    num_seeds: int,
    folder: Path,
    train_one: Callable[[TrainConfig, Dataset], object],
    *,
    on_start: Callable[[TrainConfig, bool], object] = lambda config, finished: None,
) -> tuple[SeedResults, list[int]]:
    """Train on nested, stratified subsets of the training data; return scores and sizes.

    Run ``size-N-S`` has seed S and the first N examples of an order that depends on the seed. All
    runs have the validation and test splits of the data, or one validation split that is held out.
    Without ``sizes`` they are all examples, and four times the half. Finished runs are kept.
    """
    raw = task_definition(name).read(config, config.data)
    if "train" not in raw.splits:
        raise UserError(f"curve: {config.data}: there is no train split.")
    if config.validation != "none" or "test" not in raw.splits:
        raw = with_held_out_splits(raw, config)
        config = replace(config, validation_share=None, test_share=None)
    examples = raw.splits["train"][: config.limit]
    labels = {label for example in examples for label in gold_labels(example) or ()}
    numbers = any(isinstance(getattr(each, "label", None), float) for each in examples)
    least = 2 if numbers else len(labels)
    halves = [size for power in (4, 3, 2, 1, 0) if (size := len(examples) >> power) >= least]
    sizes = sorted(set(sizes)) or halves
    if sizes[0] < least or sizes[-1] > len(examples):
        raise UserError(
            f"--sizes must be {least} (the labels) to {len(examples):,} (the training examples), "
            f"not {', '.join(map(str, sizes))}."
        )
    configs = {
        f"size-{size}-{seed}": replace(config, seed=seed, out=str(folder / f"size-{size}-{seed}"))
        for size in sizes
        for seed in range(config.seed, config.seed + num_seeds)
    }

    def train(run_config: TrainConfig) -> None:
        size = int(Path(run_config.out or "").name.split("-")[1])
        chosen = nested_order(examples, run_config.seed)[:size]
        splits = raw.splits | {"train": renumbered([examples[index] for index in chosen])}
        train_one(run_config, raw.with_splits(splits))

    facts = {"sizes": sizes, "data": raw.fingerprint}
    results = train_runs(configs, folder, train, SeedResults(folds=facts), on_start=on_start)
    return results, sizes


def _state(folder: Path, config: TrainConfig) -> str:
    """Return whether the run of a seed is ``finished``, ``unfinished`` or ``new``."""
    if not is_run(folder):
        return "new"
    require_same_run(folder, config)
    pin_model(folder, config)
    for name in ("metrics.json", "environment.json"):
        try:
            read_object(folder / name)
        except OSError:
            return "unfinished"
        except UserError as error:
            Reporter().say(f"{error} The seed is scored again.")
            return "unfinished"
    return "finished" if (folder / "README.md").is_file() else "unfinished"
