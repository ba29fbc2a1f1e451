"""Search over settings with Optuna: its loop, its storage, its sampler and its pruner.

The tree-structured Parzen estimator (Bergstra et al., 2011) proposes all settings together
(Falkner et al., 2018, BOHB). The same command continues a search that was stopped.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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

from finetune.config.options import Limit
from finetune.config.recipes import typed_setting
from finetune.config.tasks import CONFIGS, TrainConfig, affects_of, flag, marks, setting_types
from finetune.config.values import require_count
from finetune.data import Dataset
from finetune.data.preparation import most_rows
from finetune.data.sources import PartOf, is_test
from finetune.evaluation.custom_metrics import custom_metrics
from finetune.runtime.files import FolderInUse, SaveError, entries, is_free
from finetune.runtime.launch import make_accelerator
from finetune.runtime.memory import is_out_of_memory, memory_kept
from finetune.runtime.progress import Reporter
from finetune.tasks import load_task, task_class
from finetune.tasks.definition import starting_config
from finetune.training.callbacks import Callback, EvaluationEvent
from finetune.training.optimizer import TUNING_FACTORS, default_learning_rate, result_settings
from finetune.training.repeated_runs import runs_folder
from finetune.training.run_folder import Diverged, open_run, require_own, require_writable
from finetune.training.trainer import fit
from finetune.types import UserError, abbreviated, did_you_mean

DATABASE = "search.db"
_KEPT = ("config.json", "log.jsonl", "metrics.json")
"""Files to keep of an ended trial; the best trial keeps all."""
_AS_GIVEN = "as given"
"""The attribute of the trial with the settings of the command."""
_SYNTAX = "NAME=A,B,C, or NAME=LOW:HIGH for numbers (NAME=LOW:HIGH:log on a logarithmic scale)"


def parse_space(task: str, items: Sequence[str] | Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Parse the distributions of a search space, by setting.

    Args:
        task: The task.
        items: Texts such as ``lr=1e-5:1e-3:log`` and ``batch_size=8,16``; or a mapping of settings
            to the part after the equals sign, or to a list of values.

    Raises:
        UserError: A setting is unknown or must not vary, or a value has another type or is illegal.
    """
    types, limits = setting_types(CONFIGS[task]), marks(CONFIGS[task], Limit)
    affected = affects_of(CONFIGS[task]).items()
    legal = [name for name, affects in affected if affects.results and not affects.scores]
    if not isinstance(items, Mapping):
        pairs = [item.partition("=")[::2] for item in items]
        items = dict(pairs)
        if len(items) < len(pairs):
            raise UserError("--space names a setting twice: write each one once.")
    space = dict[str, BaseDistribution]()
    for spelled, listed in items.items():
        name = spelled.replace("-", "_")
        if name not in legal:
            raise UserError(
                f"--space {name}: not a setting of {task} to search over."
                f"{did_you_mean(name, legal)} Legal are {abbreviated(legal, 60)}."
            )
        texts, is_range = listed, False
        if isinstance(listed, str):
            numeric = {int, float} & {types[name], *get_args(types[name])}
            is_range = ":" in listed and bool(numeric)
            texts = listed.removesuffix(":log").split(":" if is_range else ",")
        if not listed or (is_range and len(texts) != 2):
            raise UserError(f"--space {spelled}={listed}: write {_SYNTAX}.")
        values = [typed_setting(task, name, str(part).strip()) for part in texts]
        for value in values:
            if name in limits and value is not None and not limits[name].legal(value):
                wanted = limits[name].wanted
                raise UserError(f"--space {name}: {flag(name)} must be {wanted}, not {value!r}.")
        try:
            space[name] = CategoricalDistribution(values)
            if is_range:
                kind = IntDistribution if isinstance(values[0], int) else FloatDistribution
                space[name] = kind(values[0], values[1], listed.endswith(":log"))
        except (ValueError, TypeError) as error:
            raise UserError(f"--space {spelled}={listed}: {error}") from error
    return space


def default_space(config: TrainConfig) -> list[str]:
    """The space of a task without --space, except settings that the command sets.

    The learning rate goes from a fifth to five times the default. The number of epochs stays, so
    that all trials take about the same time.
    """
    width = starting_config(config).hidden_size
    lr = default_learning_rate(width) * max(config.lr_factor, TUNING_FACTORS[config.tuning])
    ranges = {"lr": f"{lr / 5:g}:{lr * 5:g}:log", "batch_size": "8,16,32,64"}
    ranges |= {"warmup": "0:0.3", "weight_decay": "0,0.01,0.1"}
    for name, (least, most) in (config.description.searched or {}).items():
        ranges[name] = f"{lr * least:g}:{lr * most:g}:log"
    default = type(config)()
    free = [name for name in ranges if getattr(config, name) == getattr(default, name)]
    return [f"{name}={ranges[name]}" for name in free]


def search_folder(config: TrainConfig, task: str, trials: int, minutes: float | None) -> Path:
    """Choose the folder of a search; UserError if it or the limits are illegal."""
    require_count("--trials", trials)
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes must be above 0, not {minutes}.")
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
        space: Sequence[str] | Mapping[str, Any] = (),
        data: Any = None,
        *,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        """Read the data, and open the storage of the search or create it.

        The arguments are as in ``api.search``; ``data`` replace ``config.data``. Raises UserError
        if settings do not go together, or the folder holds another search.
        """
        self.folder, self.task, self.metrics = folder, task, metrics
        self.space = parse_space(task, space or default_space(config))
        self.config = replace(config, out=None, resume=False)
        if not isinstance(data, Dataset):
            source = config.data if data is None else data
            source = PartOf(source, without_test=True, most_rows=most_rows(config))
            data = task_class(task).read(self.config, source)
        rows = {name: rows for name, rows in data.splits.items() if not is_test(name)}
        self.data = data.with_splits(rows)
        self.loaded = load_task(self.config, task, self.data)
        self.metric = self.loaded[0].state.metric
        custom = custom_metrics(config.custom_metrics, metrics or {}).get(self.metric)
        facts = {"task": task, **result_settings(self.config), "data": self.data.fingerprint}
        facts["space"] = " ".join(f"{name}={values}" for name, values in self.space.items())
        minimize = custom is not None and custom.lower_is_better
        self.study = _open_study(folder, facts, minimize=minimize)
        self.accelerator = make_accelerator(self.config)
        self.reporter = reporter or Reporter()

    @property
    def trials(self) -> list[FrozenTrial]:
        """The trials that have ended, the best first and those without a score last.

        Trial 0 has the settings of the command. A pruned trial has the score of its last
        evaluation, and the reason of a failed one is its attribute ``error``.
        """
        ended = filter(_has_ended, self.study.get_trials())
        sign = 1 if self.study.direction.name == "MINIMIZE" else -1
        return sorted(ended, key=lambda t: (not _is_complete(t), sign * (t.value or 0.0), t.number))

    @property
    def best(self) -> FrozenTrial | None:
        """The finished trial with the best score."""
        return next(filter(_is_complete, self.trials), None)

    def best_config(self) -> TrainConfig:
        """Build the settings of the best trial, with its folder; UserError if none has a score."""
        if (best := self.best) is None:
            raise UserError("search: no trial has a score: the reasons are above.")
        return replace(self.config, **best.params, out=str(self._folder(best.number)))

    def run(self, trials: int, minutes: float | None, on_end: Callable[[], object]) -> None:
        """Run trials until their number or their total time reaches a limit; earlier ones count.

        A trial that has begun when the time is over is finished. ``on_end`` is called after each.
        """
        self._enqueue_stopped()
        ended = self.trials
        left = None if minutes is None else 60 * minutes - sum(map(seconds_of, ended))
        if len(ended) >= trials or (left is not None and left <= 0):
            return

        def after(study: optuna.Study, trial: FrozenTrial) -> None:
            result = trial.user_attrs.get("error") or f"{self.metric} {trial.value:.4f}"
            self.reporter.log(f"trial {trial.number}: {trial.state.name.lower()}, {result}")
            self._remove_files()
            on_end()

        seed = self.config.seed + len(ended)
        # trial 0 has no setting of the space, so that others need a group of their own
        self.study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=8, multivariate=True, group=True, seed=seed
        )
        self.study.optimize(self._score, trials - len(ended), left, callbacks=[after])

    def _enqueue_stopped(self) -> None:
        trials = self.study.get_trials()
        for trial in trials:
            if stopped := trial.state is TrialState.RUNNING:
                self.study.tell(trial.number, state=TrialState.FAIL)
            folder = self._folder(trial.number)
            if stopped or (not _has_ended(trial) and folder.exists()):
                self.study.enqueue_trial(trial.params, trial.user_attrs)
                shutil.rmtree(folder, ignore_errors=True)
        if not trials:
            self.study.enqueue_trial({}, {_AS_GIVEN: True})

    def _score(self, trial: optuna.Trial) -> float:
        for name, values in self.space.items() if _AS_GIVEN not in trial.user_attrs else ():
            if isinstance(values, CategoricalDistribution):
                trial.suggest_categorical(name, values.choices)
            elif isinstance(values, IntDistribution):
                trial.suggest_int(name, values.low, values.high, log=values.log)
            elif isinstance(values, FloatDistribution):
                trial.suggest_float(name, values.low, values.high, log=values.log)
        self.reporter.log(f"trial {trial.number}: {settings_text(trial.params)}")
        try:
            score = self._train(trial)
            if not math.isfinite(score):
                raise Diverged(f"its {self.metric} is {score}")
            return score
        except Exception as error:
            reason = failure(error)
            if reason is None or (not trial.params and not isinstance(error, Diverged)):
                raise  # with the settings of the command all trials would fail
            trial.set_user_attr("error", reason)
            return math.nan  # Optuna's sign of a failed trial

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

    def _remove_files(self) -> None:
        best = self.best
        folders = [self._folder(trial.number) for trial in self.trials if trial != best]
        for folder in filter(Path.is_dir, folders):
            for path in (folder / name for name in entries(folder) if name not in _KEPT):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def settings_text(settings: Mapping[str, Any]) -> str:
    """The settings of a trial for people, with three digits."""
    pairs = (f"{k}={v:.3g}" if type(v) is float else f"{k}={v}" for k, v in settings.items())
    return " ".join(pairs) or "the settings of the command"


def seconds_of(trial: FrozenTrial) -> float:
    """The duration of an ended trial in seconds."""
    assert trial.duration is not None
    return trial.duration.total_seconds()


def _open_study(folder: Path, facts: Mapping[str, Any], *, minimize: bool) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    storage = f"sqlite:///{(folder / DATABASE).absolute()}"
    try:
        study = optuna.create_study(
            storage=storage,
            study_name="search",
            direction="minimize" if minimize else "maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
            load_if_exists=True,
        )
    except (DatabaseError, optuna.exceptions.StorageInternalError) as error:
        reason = f"{error.__cause__ or error!s:.120}"
        raise UserError(
            f"{folder / DATABASE}: damaged ({reason}): restore a copy, or use another --out."
        ) from error
    saved = study.user_attrs.get("facts", facts)
    if saved != facts and not any(map(_has_ended, study.get_trials())):
        optuna.delete_study(study_name="search", storage=storage)  # stopped before a trial ended
        return _open_study(folder, facts, minimize=minimize)
    for name, value in facts.items():
        if saved.get(name) != value:
            raise UserError(
                f"{folder}: holds a search with {name} = {saved.get(name)!r:.200}, now "
                f"{value!r:.200}: continue with the same data and options, or use another --out."
            )
    study.set_user_attr("facts", facts)
    return study


def _is_complete(trial: FrozenTrial) -> bool:
    return trial.state is TrialState.COMPLETE


def _has_ended(trial: FrozenTrial) -> bool:
    ended = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return ended or "error" in trial.user_attrs


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
    known = isinstance(error, UserError) and not isinstance(error, SaveError | FolderInUse)
    return str(error) if known else None
