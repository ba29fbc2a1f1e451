"""Search over settings with Optuna: trials, pruning, and a storage that outlives its processes.

The tree-structured Parzen estimator (Bergstra et al., 2011) proposes all settings together
(Falkner et al., 2018, BOHB). Each proposal depends on the seed, the number of the trial and the
finished trials alone, so an interrupted and continued search has the same trials as an
uninterrupted one. The storage is a SQLite database in the folder of the search. A trial belongs to
the process that holds its folder; the next process continues a trial without one.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from accelerate import Accelerator

from finetune.config.search_space import Choices, SearchSpace, parse_space
from finetune.config.tasks import TrainConfig
from finetune.data import Dataset
from finetune.data.sources import PartOf, is_test
from finetune.evaluation.custom_metrics import custom_metrics
from finetune.evaluation.runs import RunFolder
from finetune.runtime.files import (
    FolderInUse,
    SaveError,
    clear_folder,
    entries,
    is_free,
    lock_folder,
)
from finetune.runtime.launch import make_accelerator
from finetune.runtime.memory import is_out_of_memory, memory_kept
from finetune.runtime.progress import Reporter
from finetune.tasks import load_task, task_class
from finetune.tasks.base import Task
from finetune.tasks.definition import most_rows, starting_config
from finetune.training.callbacks import Callback, EvaluationEvent
from finetune.training.optimizer import (
    TUNING_FACTORS,
    Schedule,
    default_learning_rate,
    result_settings,
)
from finetune.training.repeated_runs import runs_folder
from finetune.training.run_folder import Diverged, RunWriter, require_own, require_writable
from finetune.training.trainer import fit
from finetune.types import UserError, install_command

if TYPE_CHECKING:
    import optuna
    from optuna import Study

State = Literal["finished", "pruned", "failed", "running"]

DATABASE, STUDY = "search.db", "search"
KEPT = ("config.json", "log.jsonl", "metrics.json")
"""Files to keep of an ended trial; the best trial keeps all."""
STARTUP = 8
"""Trials with random settings before the estimator proposes them."""
PRUNED_AFTER = 4
"""Finished trials that the median of pruning needs, at least."""
STATES: Mapping[str, State] = {
    "RUNNING": "running",
    "COMPLETE": "finished",
    "PRUNED": "pruned",
    "FAIL": "failed",
}
EPOCH = 100
"""Units of training that the storage counts in one epoch, as it counts in whole numbers."""


@dataclass(frozen=True)
class Trial:
    """One trial: its settings and its score on validation."""

    number: int
    """From 0. Trial 0 has the settings of the command; the search chooses all others."""
    state: State
    settings: Mapping[str, Any]
    """Values of the settings of the space; empty for trial 0."""
    score: float | None
    """Score of the best model; for a pruned trial, the score of its last evaluation."""
    seconds: float
    epochs: float
    """Passes over the training data until the last evaluation."""
    error: str | None = None
    """The reason why it failed."""
    same_as: int | None = None
    """The number of an earlier trial with the same settings, whose result this one has."""


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, the best of them, and the importance of the settings."""

    folder: Path
    task: str
    metric: str
    lower_is_better: bool
    space: SearchSpace
    trials: Sequence[Trial]
    best: Trial | None
    importances: Mapping[str, float]
    """Fractions of the variance of the scores (fANOVA); empty with few trials."""

    def require_best(self) -> Trial:
        """Return the best trial; UserError if none has a score."""
        if self.best is not None:
            return self.best
        reasons = [each.error for each in self.trials if each.error]
        raise UserError(
            f"search: no trial of {len(self.trials)} has a score. The first failed: "
            f"{reasons[0] if reasons else 'unknown'}"
        )

    def table(self, *, exact: bool = False) -> tuple[list[str], list[list[Any]]]:
        """Return columns and rows: the trials, the best first.

        Numbers of settings are text, with all digits, unless ``exact``.
        """
        sign = 1 if self.lower_is_better else -1
        order = sorted(
            self.trials, key=lambda t: (t.state != "finished", sign * (t.score or 0.0), t.number)
        )
        rows = [
            [
                each.number,
                each.state if each.same_as is None else f"as trial {each.same_as}",
                each.score,
                round(each.epochs, 2) or None,
                round(each.seconds),
                *(
                    value if exact or not isinstance(value, float) else f"{value:g}"
                    for value in map(each.settings.get, self.space)
                ),
            ]
            for each in order
        ]
        return ["trial", "state", self.metric, "epochs", "seconds", *self.space], rows

    def record(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "task": self.task,
            "metric": self.metric,
            "space": {name: str(dimension) for name, dimension in self.space.items()},
            "best": self.best and self.best.number,
            "importances": dict(self.importances),
            "trials": [asdict(each) for each in self.trials],
        }


def default_space(config: TrainConfig) -> list[str]:
    """Return the space of a task without --space; settings that the command sets are left out.

    The learning rate goes from a fifth to five times the default. The number of epochs stays, so
    that all trials take about the same time.
    """
    width = starting_config(config).hidden_size
    lr = default_learning_rate(width) * max(config.lr_factor, TUNING_FACTORS[config.tuning])
    ranges = {
        "lr": f"{lr / 5:g}:{lr * 5:g}:log",
        "batch_size": "8,16,32,64",
        "warmup": "0:0.3",
        "weight_decay": "0,0.01,0.1",
    }
    for name, (least, most) in (config.description.searched or {}).items():
        ranges[name] = f"{lr * least:g}:{lr * most:g}:log"
    default = type(config)()
    free = [name for name in ranges if getattr(config, name) == getattr(default, name)]
    return [f"{name}={ranges[name]}" for name in free]


@dataclass(frozen=True)
class Search:
    """A search in a folder, which several processes can run at the same time."""

    task: str
    config: TrainConfig
    """The settings that all trials share."""
    space: SearchSpace
    folder: Path
    data: Dataset
    """The data without the test split."""
    loaded: tuple[Task, Dataset]
    """The task and the prepared data of these settings."""
    lower_is_better: bool
    study: Study
    accelerator: Accelerator
    reporter: Reporter
    metrics: Mapping[str, Callable[..., Any]] | None

    @property
    def metric(self) -> str:
        """The metric that the search improves."""
        return self.loaded[0].record.metric

    def run(
        self, trials: int, minutes: float | None = None, on_end: Callable[[], object] = lambda: None
    ) -> bool:
        """Run trials until their number or their total time reaches a limit.

        ``on_end`` is called after each trial that this process ends, while only this process may
        write in the folder. A trial that has begun when the time is over is still finished.

        Returns:
            False if other processes still run trials.

        Raises:
            Interrupted: After Ctrl-C; the same call continues.
        """
        while True:
            with contextlib.ExitStack() as held:
                with lock_folder(self.folder, wait=True):
                    self._remove_files()  # a killed process may have left some
                    trial = self._claim(trials, minutes, held)
                if trial is None:
                    break
                self._run_trial(trial)
                with lock_folder(self.folder, wait=True):
                    self._remove_files()
                    on_end()
        return all(trial.state != "running" for trial in self.trials())

    def _claim(
        self, trials: int, minutes: float | None, held: contextlib.ExitStack
    ) -> optuna.Trial | None:
        import optuna

        done = self.trials()
        for each in done:
            if each.state == "running":
                with contextlib.suppress(FolderInUse):
                    held.enter_context(lock_folder(self._folder(each.number)))
                    if self.trials()[each.number].state != "running":
                        continue  # its process ended it before it gave up the folder
                    id = self.study.get_trials(deepcopy=False)[each.number]._trial_id
                    return optuna.trial.Trial(self.study, id)
        over = minutes is not None and sum(each.seconds for each in done) >= 60 * minutes
        if len(done) >= trials or over:
            return None
        trial = self.study.ask()
        held.enter_context(lock_folder(self._folder(trial.number)))
        return trial

    def _run_trial(self, trial: optuna.Trial) -> None:
        import optuna

        values = self._choose(trial)
        shown = " ".join(f"{name}={value}" for name, value in values.items())
        self.reporter.say(f"trial {trial.number}: {shown or 'the settings of the command'}")
        states = optuna.trial.TrialState
        if (earlier := self._earlier(trial)) is not None:
            trial.set_user_attr("same_as", earlier.number)
            error = earlier.user_attrs.get("error")
            self._end(trial, earlier.state, earlier.value, error)
            return
        watch = _Watch(trial, self.metric)
        error, score, state = None, None, states.FAIL
        try:
            try:
                score = self._train(trial.number, values, watch)
            finally:
                watch.store_time()
        except optuna.TrialPruned:
            state = states.PRUNED
        except Exception as problem:
            error = failure(problem)
            wrong = isinstance(problem, UserError) and not isinstance(problem, Diverged)
            if error is None or (trial.number == 0 and wrong):  # so will be all others
                raise
        else:
            if math.isfinite(score):
                state = states.COMPLETE
            else:
                error = f"its {self.metric} is {score}"
        self._end(trial, state, score, error)
        if error is not None or torch.cuda.is_available():  # the memory of its model
            gc.collect()
            torch.cuda.empty_cache()

    def _train(self, number: int, values: Mapping[str, Any], watch: _Watch) -> float:
        run = RunFolder.open(self._folder(number))  # held since ``_claim``
        folder = RunWriter(run, self.accelerator)
        config = replace(self.config, **values, out=str(folder.path), resume=folder.run.is_run)
        task, data = load_task(config, self.task, self.data)
        watch.schedule = Schedule.from_config(config, len(data.splits["train"]))
        with memory_kept():
            result = fit(
                task,
                data,
                config,
                folder,
                self.reporter,
                callbacks=[watch],
                metrics=self.metrics,
            )
        split = min(name for name in result.metrics if name.startswith("validation"))
        return result.metrics[split][self.metric]

    def _choose(self, trial: optuna.Trial) -> dict[str, Any]:
        if trial.number == 0:
            return {}
        for name, each in _distributions(self.space).items():
            if isinstance(self.space[name], Choices):
                trial.suggest_categorical(name, each.choices)
            elif self.space[name].whole:  # type: ignore[union-attr]
                trial.suggest_int(name, each.low, each.high, log=each.log)
            else:
                trial.suggest_float(name, each.low, each.high, log=each.log)
        return self._typed(trial.params)

    def _typed(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: each for name, each in self.space.items() if name in parameters}
        return {name: each.typed(parameters[name]) for name, each in chosen.items()}

    def _earlier(self, trial: optuna.Trial) -> Any:
        for each in self.study.get_trials(deepcopy=False):
            ended = each.state.is_finished() and each.number < trial.number
            if ended and each.params and each.params == trial.params:
                return each
        return None

    def _end(
        self, trial: optuna.Trial, state: Any, score: float | None = None, error: str | None = None
    ) -> None:
        if error is not None:
            trial.set_user_attr("error", error)
        value = score if state.name == "COMPLETE" else None
        self.study.tell(trial, value, state)
        note = error or (
            f"{self.metric} {value:.4f}" if value is not None else "others were better"
        )
        self.reporter.say(f"trial {trial.number}: {STATES[state.name]}, {note}")

    def trials(self) -> list[Trial]:
        """Return all trials in their order."""
        return [self._trial(each) for each in self.study.get_trials(deepcopy=False)]

    def _trial(self, each: Any) -> Trial:
        values = each.intermediate_values
        score = each.value if each.state.name == "COMPLETE" else None
        if score is None and values:
            score = values[max(values)]
        return Trial(
            each.number,
            STATES[each.state.name],
            self._typed(each.params),
            score,
            each.user_attrs.get("seconds", 0.0),
            max(values, default=0) / EPOCH,
            each.user_attrs.get("error"),
            each.user_attrs.get("same_as"),
        )

    def _best(self, trials: Sequence[Trial]) -> Trial | None:
        sign = -1 if self.lower_is_better else 1
        finished = [each for each in trials if each.state == "finished"]
        return max(finished, key=lambda t: (sign * (t.score or 0.0), -t.number), default=None)

    def result(self) -> SearchResult:
        """Return the trials until now."""
        trials = self.trials()
        return SearchResult(
            self.folder,
            self.task,
            self.metric,
            self.lower_is_better,
            self.space,
            trials,
            self._best(trials),
            self._importances(trials),
        )

    def _importances(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Return the fraction of the variance of the scores that each setting explains.

        Functional ANOVA of a random forest (Hutter et al., 2014) over the finished trials.
        """
        scores = [each.score for each in trials if each.state == "finished" and each.settings]
        if len(scores) < STARTUP or len(set(scores)) < 2:
            return {}
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances

        found = get_param_importances(
            self.study, evaluator=FanovaImportanceEvaluator(seed=0), params=list(self.space)
        )
        return {name: float(value) for name, value in found.items()}

    def config_of(self, trial: Trial) -> TrainConfig:
        """Return the settings of a trial, with its folder."""
        return replace(self.config, **trial.settings, out=str(self._folder(trial.number)))

    def _folder(self, number: int) -> Path:
        return self.folder / f"trial-{number:03d}"

    def _remove_files(self) -> None:
        trials = self.trials()
        best = self._best(trials)
        for trial in trials:
            folder = self._folder(trial.number)
            if trial.state == "running" or trial == best or not folder.is_dir():
                continue
            for name in entries(folder):
                if name not in KEPT:
                    path = folder / name
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def open_search(
    task: str,
    config: TrainConfig,
    space: Sequence[str] | Mapping[str, Any] = (),
    data: Any = None,
    *,
    trials: int = 1,
    minutes: float | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    reporter: Reporter | None = None,
) -> Search:
    """Read the data without the test split, and open the storage of a search or create it.

    The arguments are as in ``api.search``; ``data`` replace ``config.data``.

    Raises:
        UserError: Settings do not go together, or the folder belongs to another search.
    """
    if trials < 1:
        raise UserError(f"--trials must be 1 or more, not {trials}.")
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes must be above 0, not {minutes}.")
    if config.validation == "none":
        raise UserError("search: --validation none leaves no score to search by: leave it out.")
    if config.test_share is not None:
        raise UserError(
            f"search: --test-share {config.test_share} does not apply, as trials read no test "
            "split: leave it out, or give the data a test split."
        )
    folder = runs_folder(config, task, "search")
    dimensions = parse_space(task, config, space or default_space(config))
    accelerator = make_accelerator(config)
    config = replace(config, out=None, resume=False)
    if not isinstance(data, Dataset):
        source = config.data if data is None else data
        source = PartOf(source, without_test=True, most_rows=most_rows(config))
        data = task_class(task).read(config, source)
    splits = {split: rows for split, rows in data.splits.items() if not is_test(split)}
    data = data.with_splits(splits)
    loaded = load_task(config, task, data)
    own = custom_metrics(config.custom_metrics, metrics or {}).get(loaded[0].record.metric)
    lower_is_better = own is not None and own.lower_is_better
    require_writable(folder)
    require_own(folder, is_free(folder) or DATABASE in entries(folder))
    shared = result_settings(config)
    del shared["data"]  # the fingerprint says more than the spelling of a path
    facts = {
        "task": task,
        **shared,
        "data": data.fingerprint,
        "space": " ".join(f"{name}={each}" for name, each in dimensions.items()),
    }
    with lock_folder(folder, wait=True):
        study = _open_study(folder, facts, config.seed, dimensions, lower_is_better)
    return Search(
        task,
        config,
        dimensions,
        folder,
        data,
        loaded,
        lower_is_better,
        study,
        accelerator,
        reporter or Reporter(),
        metrics,
    )


def _open_study(
    folder: Path,
    facts: Mapping[str, Any],
    seed: int,
    space: SearchSpace,
    lower_is_better: bool,
) -> Study:
    optuna = import_optuna()
    from sqlalchemy import URL
    from sqlalchemy.exc import DatabaseError

    database = URL.create("sqlite", database=str((folder / DATABASE).absolute()))
    try:
        storage = optuna.storages.RDBStorage(
            database.render_as_string(), engine_kwargs={"connect_args": {"timeout": 60}}
        )
        study: Study = optuna.create_study(
            study_name=STUDY,
            storage=storage,
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=PRUNED_AFTER),
            sampler=_sampler(seed, _distributions(space)),
            direction="minimize" if lower_is_better else "maximize",
        )
    except (DatabaseError, optuna.exceptions.StorageInternalError) as error:
        detail = " ".join(str(error.__cause__ or error).split())
        raise UserError(
            f"{folder / DATABASE}: damaged ({detail:.120}): restore it from a copy, or use another "
            "--out."
        ) from error
    saved = study.user_attrs.get("facts", facts)
    if saved != facts and not any(each.state.is_finished() for each in study.get_trials()):
        # the first trial stopped before it ended, perhaps because of a wrong setting
        for trial in folder.glob("trial-*"):
            with lock_folder(trial):
                clear_folder(trial)
        optuna.delete_study(study_name=STUDY, storage=storage)
        return _open_study(folder, facts, seed, space, lower_is_better)
    for name, value in facts.items():
        if saved.get(name) != value:
            raise UserError(
                f"{folder}: holds a search with {name} = {saved.get(name)!r:.200}, now "
                f"{value!r:.200}: continue with the same data and options, or use another --out."
            )
    study.set_user_attr("facts", facts)
    return study


class _Watch(Callback):
    """Stores the scores of a trial and the time that it takes, and prunes it."""

    def __init__(self, trial: optuna.Trial, metric: str) -> None:
        self.trial, self.metric = trial, metric
        frozen = trial.study.get_trials(deepcopy=False)[trial.number]
        self.reported = dict(frozen.intermediate_values)
        self.before = float(frozen.user_attrs.get("seconds", 0.0))
        self.begin = time.monotonic()
        self.schedule: Schedule | None = None

    def store_time(self) -> None:
        """Store the time of the trial, including its interrupted processes."""
        seconds = self.before + time.monotonic() - self.begin
        self.trial.set_user_attr("seconds", seconds)

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """Store the score; raises TrialPruned where others were better at this point."""
        import optuna

        assert self.schedule is not None
        unit = round(EPOCH * event.step / self.schedule.steps_per_epoch)
        score = event.metrics[self.metric]
        if unit not in self.reported and math.isfinite(score):
            self.reported[unit] = score
            self.trial.report(score, unit)
        self.store_time()
        if event.step < self.schedule.num_steps and self.trial.should_prune():
            raise optuna.TrialPruned


def failure(error: Exception) -> str | None:
    """Return why a trial failed, None for an error that must end the search."""
    if is_out_of_memory(error):
        return "out of memory"
    if isinstance(error, UserError) and not isinstance(error, SaveError | FolderInUse):
        return str(error)
    return None


def import_optuna() -> Any:
    """Return the library; UserError if it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(f"search needs optuna: {install_command('optuna')}.") from error
    return optuna


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Context without the messages of Optuna."""
    optuna = import_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _distributions(space: SearchSpace) -> dict[str, Any]:
    return {name: _distribution(each) for name, each in space.items()}


def _distribution(dimension: Any) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choices):
        return CategoricalDistribution(tuple(dimension.values))
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _sampler(seed: int, distributions: Mapping[str, Any]) -> Any:
    import optuna

    def estimator(trial: Any, name: str = "") -> Any:
        digest = hashlib.sha256(f"{seed} {trial.number} {name}".encode()).digest()
        return optuna.samplers.TPESampler(
            n_startup_trials=STARTUP,
            multivariate=True,
            constant_liar=True,
            seed=int.from_bytes(digest[:4]),
        )

    class Sampler(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            # all of them, although trial 0 has none
            return {name: each for name, each in distributions.items() if not each.single()}

        def sample_relative(self, study: Any, trial: Any, space: Any) -> dict[str, Any]:
            proposed: dict[str, Any] = estimator(trial).sample_relative(study, trial, space)
            return proposed

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return estimator(trial, name).sample_independent(study, trial, name, distribution)

    return Sampler()
