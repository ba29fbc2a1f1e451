"""Search over settings with Optuna: its storage, its sampler and its pruner.

The tree-structured Parzen estimator (Bergstra et al., 2011) proposes all settings together
(Falkner et al., 2018, BOHB). The same command continues a search that was stopped.
"""

from __future__ import annotations

import math
import re
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, get_args

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import DatabaseError

from finetune.config.recipes import typed_setting
from finetune.config.tasks import (
    CONFIGS,
    OTHER_NAMES,
    TrainConfig,
    affects_of,
    flag,
    setting_types,
    settings,
)
from finetune.config.values import MOST_RUNS, conforms, require_count
from finetune.data import Dataset
from finetune.data.sources import PartOf
from finetune.evaluation.custom_metrics import custom_metrics
from finetune.preprocessing.preparation import most_rows
from finetune.runtime.files import SaveError, entries, is_free
from finetune.runtime.launch import make_accelerator
from finetune.runtime.memory import memory_kept
from finetune.runtime.progress import Reporter
from finetune.runtime.terminal import is_out_of_memory
from finetune.tasks import load_task, task_class
from finetune.tasks.definition import starting_config
from finetune.training.callbacks import Callback, EvaluationEvent
from finetune.training.optimizer import TUNING_FACTORS, default_learning_rate
from finetune.training.repeated_runs import runs_folder
from finetune.training.run_folder import Diverged, open_run, require_own, require_writable
from finetune.training.trainer import fit
from finetune.types import UserError, abbreviated, did_you_mean

DATABASE = "search.db"
_SYNTAX = "NAME=A,B,C, or NAME=LOW:HIGH for numbers (NAME=LOW:HIGH:log on a logarithmic scale)"


def parse_space(task: str, values: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Parse the distributions of a search space, by setting.

    The values are texts such as ``1e-5:1e-3:log`` and ``8,16``, or lists. Raises UserError if a
    setting is unknown or must not vary, or a value has another type or is illegal.
    """
    types, affected = setting_types(CONFIGS[task]), affects_of(CONFIGS[task]).items()
    varying = [name for name, affects in affected if affects.results and not affects.scores]
    legal = [name for name in varying if name not in CONFIGS[task].unused]
    space = dict[str, BaseDistribution]()
    if not isinstance(values, Mapping):
        raise UserError(f"space must be a dict such as {{'lr': [1e-5, 3e-5]}}, not {values!r:.60}.")
    for spelled, listed in values.items():
        name = spelled.replace("-", "_")
        name = OTHER_NAMES.get(name, name)
        if name not in legal:
            raise UserError(
                f"--space {name}: not a setting of {task} to search over."
                f"{did_you_mean(name, legal)} Legal are {abbreviated(legal, 60)}."
            )
        is_number = {int, float} & {types[name], *get_args(types[name])}
        bounds = re.fullmatch("([^:,]+):([^:,]+)(:log)?", str(listed)) if is_number else None
        texts = bounds.groups()[:2] if bounds else listed
        if not isinstance(texts, list | tuple):
            texts = str(texts).split(",")
        try:
            typed = [typed_setting(task, name, str(text).strip()) for text in texts]
            space[name] = CategoricalDistribution(typed)
            if bounds:
                number = IntDistribution if isinstance(typed[0], int) else FloatDistribution
                space[name] = number(typed[0], typed[1], log=bounds[3] is not None)
        except (ValueError, TypeError, UserError) as error:
            raise UserError(f"--space {spelled}={listed}: {error} Write {_SYNTAX}.") from error
    return space


def _require_legal(config: TrainConfig, space: Mapping[str, Any]) -> None:
    # some values exclude others, and those trials fail; every one would if all combinations do
    values = [
        of.choices if isinstance(of, CategoricalDistribution) else [of.low, of.high]
        for of in space.values()
    ]
    combinations = product(*values)
    for combination in islice(combinations, 1000):
        try:
            replace(config, **dict(zip(space, combination, strict=True)))
            return
        except UserError as error:
            reason = str(error)
    if next(combinations, None) is None:
        raise UserError(f"--space: no combination of these values is legal, such as {reason}")


def _as_option(name: str, values: Any) -> str:
    if isinstance(values, CategoricalDistribution):
        return f"{name}={','.join(map(str, values.choices))}"
    return f"{name}={values.low:g}:{values.high:g}" + (":log" if values.log else "")


def default_space(config: TrainConfig) -> dict[str, str]:
    """The space without --space; the epochs stay, so that all trials take about the same time."""
    width = starting_config(config).hidden_size
    lr = default_learning_rate(width) * max(config.lr_factor, TUNING_FACTORS[config.tuning])
    ranges = {"lr": f"{lr / 5:g}:{lr * 5:g}:log", "batch_size": "8,16,32,64"}
    ranges |= {"warmup": "0:0.3", "weight_decay": "0,0.01,0.1"}
    for name, (least, most) in (config.description.searched or {}).items():
        ranges[name] = f"{lr * least:g}:{lr * most:g}:log"
    default = type(config)()
    free = [name for name in ranges if getattr(config, name) == getattr(default, name)]
    return {name: ranges[name] for name in free}


def search_folder(config: TrainConfig, task: str, trials: int, minutes: float | None) -> Path:
    """Choose the folder of a search; UserError if it or the limits are illegal."""
    require_count("--trials", trials, most=MOST_RUNS)
    if config.resume:
        raise UserError("search: the same command continues a search: leave --resume out.")
    if minutes is not None and not (conforms(minutes, float) and minutes > 0):
        raise UserError(f"--minutes must be a number above 0, not {minutes!r}.")
    if config.validation == "none":
        raise UserError("search: --validation none leaves no score to search by: leave it out.")
    folder = runs_folder(config, task, "search")
    require_writable(folder)
    require_own(folder, is_free(folder) or DATABASE in entries(folder))
    return folder


class Search:
    """A search in a folder that this process holds, on data without the test split."""

    def __init__(
        self,
        folder: Path,
        task: str,
        config: TrainConfig,
        space: Mapping[str, Any] | None = None,
        data: Any = None,
        *,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        reporter: Reporter,
    ) -> None:
        """Read the data, and open the storage of the search or create it.

        The arguments are as in ``api.search``; ``data`` replace ``config.data``. Raises UserError
        if settings do not go together, or the folder holds another search.
        """
        self.folder, self.task, self.metrics, self.reporter = folder, task, metrics, reporter
        self.space = parse_space(task, space or default_space(config))
        self.config = replace(config, out=None)
        _require_legal(self.config, self.space)
        if not isinstance(data, Dataset):
            source = config.data if data is None else data
            source = PartOf(source, without_test=True, most_rows=most_rows(config))
            data = task_class(task).read(self.config, source)
        self.data = data.with_splits(data.without_tests())
        self.loaded = load_task(self.config, task, self.data)
        self.metric = self.loaded[0].state.metric
        custom = custom_metrics(config.custom_metrics, metrics or {}).get(self.metric)
        minimize = custom is not None and custom.lower_is_better
        affected, values = affects_of(type(config)), settings(self.config).items()
        self._attrs = {name: value for name, value in values if affected[name].results}
        self._attrs |= {"task": task, "data": self.data.fingerprint}
        self._attrs["space"] = " ".join(map(_as_option, self.space, self.space.values()))
        self._attrs["direction"] = "minimize" if minimize else "maximize"
        self.study = _open_study(folder, self._attrs)
        self.accelerator = make_accelerator(self.config)

    @property
    def trials(self) -> list[FrozenTrial]:
        """The trials that have ended: finished ones with the best first, then pruned, then failed.

        A pruned trial has the score of its last evaluation, a failed one the attribute ``error``.
        """
        ended = filter(_has_ended, self.study.get_trials())
        sign = 1 if self.study.direction.name == "MINIMIZE" else -1
        return sorted(ended, key=lambda trial: (trial.state, sign * (trial.value or 0.0)))

    @property
    def best(self) -> FrozenTrial | None:
        """The finished trial with the best score."""
        return next((t for t in self.trials if t.state is TrialState.COMPLETE), None)

    def best_config(self) -> TrainConfig:
        """Build the settings of the best trial, with its folder; UserError if none has a score."""
        if (best := self.best) is None:
            raise UserError("search: no trial has a score: the reasons are above.")
        return replace(self.config, **best.params, out=str(self._folder(best.number)))

    def run(self, trials: int, minutes: float | None, on_end: Callable[[], object]) -> None:
        """Run the missing trials, none after ``minutes``; ``on_end`` is called after each."""
        end = time.monotonic() + (math.inf if minutes is None else 60 * minutes)
        for trial in self.study.get_trials():
            if stopped := trial.state is TrialState.RUNNING:
                self.study.tell(trial.number, state=TrialState.FAIL)
            folder = self._folder(trial.number)
            if stopped or (not _has_ended(trial) and folder.exists()):
                self.study.enqueue_trial(trial.params)
                shutil.rmtree(folder, ignore_errors=True)
        num_ended = len(self.trials)
        # trial 0 has no setting of the space, so that others need a group of their own
        self.study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=8, multivariate=True, group=True, seed=self.config.seed + num_ended
        )
        for _ in range(num_ended, trials):
            if time.monotonic() >= end:
                break
            # the first trial that ends has the settings of the command
            ended = self._carry_out(self.study.ask(self.space if self.trials else {}))
            self.study.set_user_attr("facts", self._attrs)
            result = ended.user_attrs.get("error") or f"{self.metric} {ended.value:.4f}"
            self.reporter.log(f"trial {ended.number}: {ended.state.name.lower()}, {result}")
            for worse in self.trials[1:]:
                shutil.rmtree(self._folder(worse.number), ignore_errors=True)
            on_end()

    def _carry_out(self, trial: optuna.Trial) -> FrozenTrial:
        shown = " ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in trial.params.items()
        )
        self.reporter.log(f"trial {trial.number}: {shown or 'the settings of the command'}")
        try:
            score = self._train(trial)
            if not math.isfinite(score):
                raise Diverged(f"its {self.metric} is {score}")
            return self.study.tell(trial, score)
        except optuna.TrialPruned:
            return self.study.tell(trial, state=TrialState.PRUNED)
        except Exception as error:
            reason = failure(error)
            if reason is None or (not trial.params and not isinstance(error, Diverged)):
                raise  # with the settings of the command all trials would fail
            trial.set_user_attr("error", reason)
            return self.study.tell(trial, state=TrialState.FAIL)

    def _train(self, trial: optuna.Trial) -> float:
        config = replace(self.config, **trial.params, out=str(self._folder(trial.number)))
        prune = [_Prune(trial, self.metric)]
        with open_run(config, self.accelerator) as folder, memory_kept():
            task, data = load_task(config, self.task, self.data)
            result = fit(
                task, data, config, folder, self.reporter, callbacks=prune, metrics=self.metrics
            )
        split = min(name for name in result.metrics if name.startswith("validation"))
        return result.metrics[split][self.metric]

    def _folder(self, number: int) -> Path:
        return self.folder / f"trial-{number:03d}"


def _open_study(folder: Path, attrs: Mapping[str, Any]) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{(folder / DATABASE).absolute()}",
            study_name="search",
            direction=attrs["direction"],
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=True,
        )
    except (DatabaseError, optuna.exceptions.StorageInternalError) as error:
        raise UserError(
            f"{folder / DATABASE}: damaged ({error!s:.120}): restore a copy, or use another --out."
        ) from error
    saved = {"direction": study.direction.name.lower(), **study.user_attrs.get("facts", {})}
    for name, value in saved.items():
        if (now := attrs.get(name)) != value:
            raise UserError(
                f"{folder}: holds a search with {flag(name)} {value!s:.200}, now {now!s:.200}: "
                "continue with the same data and options, or use another --out."
            )
    return study


def _has_ended(trial: FrozenTrial) -> bool:
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or "error" in trial.user_attrs


@dataclass
class _Prune(Callback):
    trial: optuna.Trial
    metric: str

    def on_evaluation(self, event: EvaluationEvent) -> None:
        if math.isfinite(score := event.metrics[self.metric]):
            self.trial.report(score, round(1000 * event.step / event.num_steps))
        if event.step < event.num_steps and self.trial.should_prune():
            raise optuna.TrialPruned


def failure(error: Exception) -> str | None:
    """The reason why a trial failed; None for an error that must end the search."""
    if is_out_of_memory(error):
        return "out of memory"
    is_of_trial = isinstance(error, UserError) and not isinstance(error, SaveError)
    return str(error) if is_of_trial else None
