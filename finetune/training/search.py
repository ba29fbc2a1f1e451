"""Search over settings with Optuna: its loop, its storage, its sampler and its pruner.

The tree-structured Parzen estimator (Bergstra et al., 2011) proposes all settings together
(Falkner et al., 2018, BOHB). The same command continues a search that was stopped.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config.search_space import Range, SearchSpace, parse_space
from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.data.preparation import most_rows
from finetune.data.sources import PartOf, is_test
from finetune.evaluation.custom_metrics import custom_metrics
from finetune.registry import install_command
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
from finetune.types import UserError

if TYPE_CHECKING:
    from optuna import Study
    from optuna import Trial as OptunaTrial
    from optuna.trial import FrozenTrial

DATABASE, STUDY = "search.db", "search"
_KEPT = ("config.json", "log.jsonl", "metrics.json")
"""Files to keep of an ended trial; the best trial keeps all."""
AS_GIVEN = "as given"
"""The attribute of the trial with the settings of the command."""
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}


@dataclass(frozen=True)
class Trial:
    """An ended trial; the first one has the settings of the command.

    A pruned trial has the score of its last evaluation, and a failed one has the reason.
    """

    number: int
    state: str
    settings: Mapping[str, Any]
    score: float | None
    seconds: float
    error: str | None


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, the best first and those without a score last."""

    folder: Path
    task: str
    metric: str
    space: SearchSpace
    trials: Sequence[Trial]

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best score."""
        return next((trial for trial in self.trials if trial.state == "finished"), None)

    def require_best(self) -> Trial:
        """Return the best trial; UserError if none has a score."""
        if self.best is None:
            reason = next((trial.error for trial in self.trials if trial.error), "unknown")
            raise UserError(f"search: no trial has a score. The first failed: {reason}")
        return self.best

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows: the trials, the best first."""
        rows = [
            [t.number, t.state, t.score, round(t.seconds), *map(t.settings.get, self.space)]
            for t in self.trials
        ]
        return ["trial", "state", self.metric, "seconds", *self.space], rows

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        trials = [asdict(trial) for trial in self.trials]
        best = self.best and self.best.number
        return {"task": self.task, "metric": self.metric, "best": best, "trials": trials}


def default_space(config: TrainConfig) -> list[str]:
    """Return the space of a task without --space; settings that the command sets are left out.

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
    """Return the folder of a search; UserError if it or the limits are illegal."""
    if trials < 1:
        raise UserError(f"--trials must be 1 or more, not {trials}.")
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
        self.lower_is_better = custom is not None and custom.lower_is_better
        self.study = _open_study(folder, facts, lower_is_better=self.lower_is_better)
        self.accelerator = make_accelerator(self.config)
        self.reporter = reporter or Reporter()

    def run(self, trials: int, minutes: float | None, on_end: Callable[[], object]) -> None:
        """Run trials until their number or their total time reaches a limit; earlier ones count.

        A trial that has begun when the time is over is finished. ``on_end`` is called after each.
        """

        def after(study: Study, trial: FrozenTrial) -> None:
            self._remove_files()
            on_end()

        self._enqueue_stopped()
        ended = self.result().trials
        left = None if minutes is None else 60 * minutes - sum(t.seconds for t in ended)
        if len(ended) < trials and (left is None or left > 0):
            self.study.sampler = _sampler(self.config.seed + len(ended))
            number = trials - len(ended)
            self.study.optimize(self._score, number, left, callbacks=[after], gc_after_trial=True)

    def _enqueue_stopped(self) -> None:
        trials = self.study.get_trials()
        for trial in trials:
            stopped = trial.state.name == "RUNNING"
            if stopped:
                self.study.tell(trial.number, state=type(trial.state).FAIL)
            folder = self._folder(trial.number)
            if stopped or (not _has_ended(trial) and folder.exists()):
                self.study.enqueue_trial(trial.params, trial.user_attrs)
                shutil.rmtree(folder, ignore_errors=True)
        if not trials:
            self.study.enqueue_trial({}, {AS_GIVEN: True})

    def _score(self, trial: OptunaTrial) -> float:
        import optuna

        for name, values in self.space.items() if AS_GIVEN not in trial.user_attrs else ():
            if not isinstance(values, Range):
                trial.suggest_categorical(name, values)
            elif values.whole:
                trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
            else:
                trial.suggest_float(name, values.low, values.high, log=values.log)
        settings, name = self._settings(trial), f"trial {trial.number}"
        shown = " ".join(f"{setting}={value}" for setting, value in settings.items())
        self.reporter.log(f"{name}: {shown or 'the settings of the command'}")
        try:
            score = self._train(trial, settings)
            if not math.isfinite(score):
                raise Diverged(f"its {self.metric} is {score}")
        except optuna.TrialPruned:
            self.reporter.log(f"{name}: pruned, others were better")
            raise
        except Exception as error:
            reason = failure(error)
            if reason is None or (not settings and not isinstance(error, Diverged)):
                raise  # with the settings of the command all trials would fail
            trial.set_user_attr("error", reason)
            self.reporter.log(f"{name}: failed, {reason}")
            return math.nan  # Optuna's sign of a failed trial
        self.reporter.log(f"{name}: finished, {self.metric} {score:.4f}")
        return score

    def _train(self, trial: OptunaTrial, settings: Mapping[str, Any]) -> float:
        config = replace(self.config, **settings, out=str(self._folder(trial.number)))
        prune = [_Prune(trial, self.metric)]
        with open_run(config, self.accelerator) as folder, memory_kept():
            task, data = load_task(config, self.task, self.data)
            result = fit(
                task, data, config, folder, self.reporter, callbacks=prune, metrics=self.metrics
            )
        split = min(name for name in result.metrics if name.startswith("validation"))
        return result.metrics[split][self.metric]

    def _settings(self, trial: OptunaTrial | FrozenTrial) -> dict[str, Any]:
        settings = dict(trial.params)
        for name, value in settings.items():
            values = self.space[name]
            if isinstance(values, Range) and not values.whole:  # three digits are enough
                settings[name] = min(max(float(f"{value:.3g}"), values.low), values.high)
        return settings

    def result(self) -> SearchResult:
        """Return the trials that have ended."""
        trials = []
        for trial in filter(_has_ended, self.study.get_trials()):
            assert trial.duration is not None
            settings, state = self._settings(trial), STATES[trial.state.name]
            seconds, error = trial.duration.total_seconds(), trial.user_attrs.get("error")
            trials.append(Trial(trial.number, state, settings, trial.value, seconds, error))
        sign = 1 if self.lower_is_better else -1
        trials.sort(key=lambda t: (t.state != "finished", sign * (t.score or 0.0), t.number))
        return SearchResult(self.folder, self.task, self.metric, self.space, trials)

    def config_of(self, trial: Trial) -> TrainConfig:
        """Return the settings of a trial, with its folder."""
        return replace(self.config, **trial.settings, out=str(self._folder(trial.number)))

    def _folder(self, number: int) -> Path:
        return self.folder / f"trial-{number:03d}"

    def _remove_files(self) -> None:
        result = self.result()
        folders = [self._folder(trial.number) for trial in result.trials if trial != result.best]
        for folder in filter(Path.is_dir, folders):
            for path in (folder / name for name in entries(folder) if name not in _KEPT):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _open_study(folder: Path, facts: Mapping[str, Any], *, lower_is_better: bool) -> Study:
    try:
        import optuna
        from sqlalchemy.exc import DatabaseError
    except ImportError as error:
        raise UserError(f"search needs optuna: {install_command('optuna')}.") from error

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = f"sqlite:///{(folder / DATABASE).absolute()}"
    try:
        study: Study = optuna.create_study(
            storage=storage,
            study_name=STUDY,
            direction="minimize" if lower_is_better else "maximize",
            load_if_exists=True,
        )
    except (DatabaseError, optuna.exceptions.StorageInternalError) as error:
        reason = f"{error.__cause__ or error!s:.120}"
        raise UserError(
            f"{folder / DATABASE}: damaged ({reason}): restore a copy, or use another --out."
        ) from error
    saved = study.user_attrs.get("facts", facts)
    if saved != facts and not any(map(_has_ended, study.get_trials())):
        optuna.delete_study(study_name=STUDY, storage=storage)  # stopped before a trial ended
        return _open_study(folder, facts, lower_is_better=lower_is_better)
    for name, value in facts.items():
        if saved.get(name) != value:
            raise UserError(
                f"{folder}: holds a search with {name} = {saved.get(name)!r:.200}, now "
                f"{value!r:.200}: continue with the same data and options, or use another --out."
            )
    study.set_user_attr("facts", facts)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    return study


def _sampler(seed: int) -> Any:
    from optuna.samplers import TPESampler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # groups are experimental; trial 0 needs them
        return TPESampler(n_startup_trials=8, multivariate=True, group=True, seed=seed)


def _has_ended(trial: FrozenTrial) -> bool:
    return trial.state.name in ("COMPLETE", "PRUNED") or "error" in trial.user_attrs


@dataclass
class _Prune(Callback):
    trial: OptunaTrial
    metric: str

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Store the score; raises TrialPruned where others were better at this point."""
        import optuna

        if math.isfinite(score := event.metrics[self.metric]):
            self.trial.report(score, round(1000 * event.step / event.num_steps))
        if event.step < event.num_steps and self.trial.should_prune():
            raise optuna.TrialPruned


def failure(error: Exception) -> str | None:
    """Return why a trial failed, None for an error that must end the search."""
    if is_out_of_memory(error):
        return "out of memory"
    known = isinstance(error, UserError) and not isinstance(error, SaveError | FolderInUse)
    return str(error) if known else None
