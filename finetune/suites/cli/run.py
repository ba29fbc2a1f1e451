"""`finetune run SUITE`."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from finetune.cli.command import TrainingCommand
from finetune.cli.options import FormatOption
from finetune.cli.output import (
    ScoreCell,
    check_output,
    error_line,
    print_table,
    print_tables,
    quiet_libraries,
    show,
    table_text,
)
from finetune.cli.parsing import made, parsed, parsed_known
from finetune.cli.train import TaskCommand, recipe_command, report_run, resumable, task_command
from finetune.config.options import Help, argument
from finetune.config.recipes import RecipeRun
from finetune.config.values import require_count
from finetune.suites.definition import Member, Suite, load_suite
from finetune.types import UserError, abbreviated, did_you_mean, quantity

if TYPE_CHECKING:
    from finetune.config.tasks import TrainConfig
    from finetune.data import Dataset
    from finetune.suites.results import MemberScore, SuiteResults
    from finetune.suites.running import PlannedMember, SuiteReporter, TimeLeft
    from finetune.training.run_folder import RunWriter


@dataclass(frozen=True, kw_only=True)
class SuiteOptions(FormatOption):
    """Options of `finetune run SUITE`, besides the options of every task."""

    out: Annotated[str | None, Help("FOLDER", group="output", common=True)] = None
    """Folder with a folder of seeds for each data set, and the table. Unset is `runs/SUITE`, with
    the encoder of --model. The same command continues there."""
    model: Annotated[str | None, Help(group="model", common=True)] = None
    """Encoder of all runs. A suite may have recipes of its own for some encoders; for all others
    the recipes of its first encoder apply."""
    seeds: int = 1
    """Train N runs of each recipe, with seeds from --seed on. Finished runs are kept."""
    seed: int | None = None
    """Seed of the first run of each recipe; with --submit, of the runs to use."""
    only: str | None = None
    """Names of data sets with commas: run these only, and those whose models they start from."""
    data: Annotated[tuple[str, ...], Help("NAME=DATA …", group="data", common=True)] = ()
    """Data for single data sets of the suite: `genia=my-genia rte=data/rte`."""
    dry_run: bool = False
    """Show the runs in their order (data, steps, state) and train nothing."""
    smoke: bool = False
    """Run a quick check of all recipes with their `smoke` settings."""
    submit: Annotated[str | None, Help("FILE.zip", group="output")] = None
    """Train nothing, and write the files of the benchmark's server from the finished runs: an
    archive with one file for each test set, predicted by the run of --seed, or else by the run with
    the best validation score of each data set."""


@dataclass(frozen=True, kw_only=True)
class SuiteRun(SuiteOptions, TrainingCommand):
    """Train all recipes of a suite, and print one table of their scores.

    All options of training apply too (`finetune classify --help`), to every recipe.

    Examples:
        finetune run glue --model roberta-base --seeds 5
        finetune run small --only sentiment,nli
    """

    suite: Annotated[str, argument("SUITE")]
    """File, or name of a packaged suite (`finetune run` lists suites); with --submit also the
    folder of its runs."""

    def run(self) -> None:
        """Write the files of --submit from a folder of runs; ``parse_suite`` loads other suites."""
        if self.submit is None:
            raise UserError(
                f"{self.suite} is the folder of a suite: name the suite to continue it, with --out "
                f"{self.suite}, or add --submit FILE.zip."
            )
        quiet_libraries()
        _submit(Path(self.suite), self.submit, self.seed)


@dataclass(frozen=True, kw_only=True)
class LoadedSuite(SuiteRun):
    """The run of a suite with the command of each member."""

    loaded: Suite
    commands: Mapping[str, TaskCommand] = field(default_factory=dict)
    """The command of each member to run, in order, as `finetune run RECIPE` parses it."""

    def run(self) -> None:
        """Train the members, print the table, and write it; UserError if a member failed."""
        quiet_libraries()
        from finetune.runtime.launch import (
            is_main_process,
            on_all_processes,
            on_main_process,
        )
        from finetune.runtime.progress import Reporter
        from finetune.suites.running import Events, TimeLeft, check_members, run_members
        from finetune.training.environment import command_line
        from finetune.training.run_folder import hold

        begin = time.monotonic()
        folder = self.folder
        if self.submit is not None:
            return _submit(folder, self.submit, self.seed)
        plan = self.plan()
        on_main_process(lambda: self._begin(folder))
        if self.dry_run:
            return self._print_plan(plan)
        is_main = is_main_process()
        if is_main:
            self._show_additions()
        with hold(folder), resumable(Reporter(quiet=not is_main), command_line):
            checked = on_all_processes(lambda: check_members(plan))
            timer = TimeLeft(checked)
            total = sum(map(_num_runs, plan))
            lines = _Lines(self.loaded, folder, timer, total, is_main, self.commands)
            if is_main:
                lines.write()
            events = Events(
                on_start=lines.start,
                on_end=lines.end,
                on_member=lines.member,
                on_failure=lines.failure,
            )
            failures = run_members(
                plan,
                checked,
                timer,
                _train_one,
                events,
                quiet=not is_main,
                keep_going=_alone(),
            )
        if is_main:
            self._finish(folder, failures, begin)
        return None

    @property
    def folder(self) -> Path:
        """The folder of the suite."""
        from finetune.training.run_folder import RUNS

        if self.out is not None:
            return Path(self.out)
        last = (self.model or "").rstrip("/").split("/")[-1]
        name = "-".join(filter(None, (self.loaded.name, last, "smoke" if self.smoke else "")))
        return RUNS / name

    def plan(self) -> list[PlannedMember]:
        """Return the members with the settings of their runs, in order."""
        from finetune.suites.running import PlannedMember

        found: dict[str, PlannedMember] = {}
        for name, command in self.commands.items():
            member = self.loaded.members[name]
            recipe = member.recipe.smoke_recipe() if self.smoke else member.recipe
            recipe_run = RecipeRun.of(recipe, command.config, member.recipe.config())
            config = replace(command.config, out=str(self.folder / name), resume=False)
            encoder, start = config.model, None
            if member.start is not None:
                start = found[member.start].folder
                own = self.model is not None or "model" in member.recipe.settings
                model = config.model if own else None
                encoder = model or found[member.start].encoder
                config = replace(config, init_from=str(start), model=model)
            found[name] = PlannedMember(
                member=member,
                config=config,
                recipe_run=recipe_run,
                encoder=encoder,
                start=start,
                num_seeds=self.seeds,
            )
        return list(found.values())

    def _begin(self, folder: Path) -> None:
        """Raise UserError if the folder holds anything but a run of this suite."""
        from finetune.data.json_files import read_object
        from finetune.evaluation.runs import RunFolder
        from finetune.runtime.files import entries
        from finetune.suites.results import RESULTS_FILE
        from finetune.training.run_folder import require_own, require_writable

        require_writable(folder)
        if RunFolder.open(folder).is_run or (folder / "seeds.json").is_file():
            raise UserError(f"--out {folder} holds another run: use another --out.")
        if (folder / RESULTS_FILE).is_file():
            before = read_object(folder / RESULTS_FILE, {"suite": str | None}).get("suite")
            if before != self.loaded.name:
                raise UserError(
                    f"--out {folder} holds runs of the suite {before}, not {self.loaded.name}: use "
                    "another --out."
                )
        names = {*entries(folder)} if folder.is_dir() else set()
        own = {*self.loaded.members, *_RESULT_FILES}
        require_own(folder, names <= own or (folder / RESULTS_FILE).is_file())

    def _show_additions(self) -> None:
        """Print which members the selected ones need."""
        chosen = _names(self.only)
        for name in self.commands:
            if chosen and name not in chosen:
                needed = [m.name for m in self.loaded.members.values() if m.start == name]
                needed = [each for each in needed if each in self.commands]
                show(f"{name} is trained too: {abbreviated(needed)} starts from it", error=True)

    def _print_plan(self, plan: Sequence[PlannedMember]) -> None:
        """Print the runs in order; UserError at the end for members that cannot run."""
        from finetune.suites.running import workload

        rows: list[list[Any]] = []
        problems: dict[str, str] = {}
        for planned in plan:
            member = planned.member
            row: list[Any] = [planned.name, member.recipe.name, planned.encoder, member.start]
            row.append(planned.config.data)
            try:
                states = planned.states()
                load = workload(planned)
                kept = sum(state == "finished" for state in states.values())
                row += [load.num_examples, load.num_steps, f"{kept} of {len(states)} runs"]
            except UserError as error:
                problems[planned.name] = str(error)
                row += [None, None, "cannot run"]
            rows.append(row)
        columns = ["member", "recipe", "model", "starts from", "data", "train", "steps", "finished"]
        self._show_additions()
        print_tables(self.format, ("", columns, [_shown(row) for row in rows]))
        if problems:
            listed = " ".join(f"{name}: {problem}" for name, problem in problems.items())
            raise UserError(f"{quantity(len(problems), 'member')} cannot run: {listed}")

    def _finish(self, folder: Path, failures: Mapping[str, str], begin: float) -> None:
        """Print and write the table; UserError if a member failed."""
        from finetune.runtime.progress import clock
        from finetune.suites.results import read_results

        results = read_results(self.loaded, folder, failures, self.commands)
        write_results(results)
        columns, rows = score_table(results)
        if self.format == "json":
            show(json.dumps(results.record(), indent=2, ensure_ascii=False))
        elif self.format == "table":
            print_table(columns, rows, self.loaded.title)
        else:
            print_tables(self.format, ("", columns, rows))
        for line in results.notes():
            self.note(line)
        self.note(
            f"{clock(time.monotonic() - begin)} in all. Everything is in {folder}: "
            f"{', '.join(_RESULT_FILES)} have the table."
        )
        if failures:
            raise UserError(
                f"{len(failures)} of {quantity(len(self.commands), 'data set')} failed "
                f"({abbreviated(failures)}); the reasons are above. The same command runs them "
                "again and keeps the others."
            )


_RESULT_FILES = ("suite.md", "suite.tex", "suite.json", "suite.html")
"""The files with the table."""


@dataclass
class _Lines:
    """The lines about the runs of a suite."""

    suite: Suite
    folder: Path
    timer: TimeLeft
    total: int
    is_main: bool
    chosen: Collection[str]
    number: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        """Write the table of the scores until now."""
        from finetune.suites.results import read_results

        write_results(read_results(self.suite, self.folder, self.failures, self.chosen))

    def start(self, planned: PlannedMember, seed: int, state: str) -> None:
        """Say which run begins, or that it is kept."""
        self.number += 1
        if not self.is_main:
            return
        done = {"finished": "finished: kept", "unfinished": "continued", "new": "started"}[state]
        text = f"[{self.number}/{self.total}] {planned.name} seed {seed}: {done}"
        left = "" if state == "finished" else self.timer.text()
        show(f"{text} ({left})" if left else text, error=True)

    def end(self, planned: PlannedMember, seed: int, seconds: float) -> None:
        """Say how a run has ended."""
        from finetune.evaluation.runs import RunFolder
        from finetune.runtime.progress import clock
        from finetune.suites.results import number

        if not self.is_main:
            return
        metrics = RunFolder.open(planned.folder / f"seed-{seed}").metrics
        found = [
            f"{score} {number(metrics[score.split][score.metric], score.metric)}"
            for score in planned.member.scores
            if score.metric in metrics.get(score.split, {})
        ]
        left = self.timer.text()
        parts = [", ".join(found) or "no score", clock(seconds), *([left] if left else [])]
        text = f"[{self.number}/{self.total}] {planned.name} seed {seed}: {'; '.join(parts)}"
        show(text, error=True)

    def member(self, planned: PlannedMember) -> None:
        """Write the report on all seeds of a member, and the table."""
        if self.is_main:
            report_run(planned.folder)
            self.write()

    def failure(self, planned: PlannedMember, error: Exception) -> str:
        """Print an error, and return it."""
        line, _ = error_line(error)
        show(f"{planned.name}: {line}", error=True)
        self.failures[planned.name] = line.removeprefix("error: ")
        return self.failures[planned.name]


def _train_one(
    planned: PlannedMember,
    reporter: SuiteReporter,
    config: TrainConfig,
    data: Dataset,
    folder: RunWriter,
) -> object:
    """Train a run of a suite."""
    from finetune import api
    from finetune.training.environment import command_line

    return api.train_once(
        planned.member.recipe.task,
        config,
        data,
        command=command_line(),
        folder=folder,
        recipe_run=planned.recipe_run,
        repeatable=True,
        reporter=reporter,
        report=report_run,
    )


def _num_runs(planned: PlannedMember) -> int:
    return planned.num_seeds


def _alone() -> bool:
    """Return whether one process trains: several could not agree to go on after an error."""
    from finetune.runtime.processes import num_processes

    return num_processes() == 1


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _shown(row: Sequence[Any]) -> list[Any]:
    return ["" if value is None else value for value in row]


def score_table(results: SuiteResults) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of the scores of a suite, the average last."""
    from finetune.suites.results import number

    columns = ["data set", "split", "metric", "score", "seeds", "published", "verdict"]
    rows = [
        [
            score.member.name,
            score.score.split,
            score.score.metric,
            _cell(score.mean, score.deviation, score.score.metric),
            len(score.seeds),
            _published(score, results.sources),
            score.verdict.verdict if score.verdict and score.seeds else "",
        ]
        for score in results.shown
    ]
    average = results.average
    if average is not None and average.seeds:
        mean = _cell(average.mean, average.deviation)
        published = number(average.published)
        rows.append(["average", "", "", mean, len(average.seeds), published, ""])
    return columns, rows


def _cell(mean: float | None, deviation: float | None, metric: str | None = None) -> ScoreCell:
    from finetune.suites.results import number

    shown = None if deviation is None else number(deviation, metric)
    return ScoreCell(number(mean, metric), shown)


def _published(score: MemberScore, sources: Sequence[str]) -> str:
    from finetune.suites.results import number

    if score.verdict is None:
        return ""
    expected = score.verdict.expected
    value = number(expected.value, expected.metric)
    return f"{value} [{sources.index(expected.cited) + 1}]"


def write_results(results: SuiteResults) -> None:
    """Write the table of a suite to its folder in all formats."""
    from finetune.runtime.files import write_text
    from finetune.suites.page import page

    columns, rows = score_table(results)
    markdown = [f"# {results.suite.title}", table_text("markdown", "", columns, rows)]
    markdown.append("\n".join(f"- {line}" for line in results.notes()))
    texts = {
        "suite.md": "\n\n".join(markdown) + "\n",
        "suite.tex": table_text("latex", results.suite.title, columns, rows)
        + "\n"
        + "".join(f"% {line}\n" for line in results.notes()),
        "suite.json": json.dumps(results.record(), indent=2, ensure_ascii=False) + "\n",
        "suite.html": page(results, columns, [[*map(_plain, row)] for row in rows]),
    }
    for name, text in texts.items():
        write_text(results.folder / name, text)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, ScoreCell) else value


def _submit(folder: Path, out: str, seed: int | None) -> None:
    """Predict the test splits, and write the archive once all files are complete."""
    from finetune.suites.results import open_suite
    from finetune.suites.submission import submission, write_archive

    check_output(out, folder.glob("*"), (".zip",))
    texts = submission(open_suite(folder), seed=seed, say=partial(show, error=True))
    write_archive(Path(out), texts)
    show(f"{out}: {quantity(len(texts), 'file')}")


def parse_suite(path: str, rest: Sequence[str]) -> SuiteRun:
    """Return the command that runs a suite.

    Args:
        path: The file or name of the suite.
        rest: The other arguments. Those that are not options of the suite are options of every
            member.

    Raises:
        UserError: The suite, an option, or the settings of a member are wrong.
    """
    values, others = parsed_known("run", SuiteOptions, rest)
    options: SuiteOptions = made(SuiteOptions, values)
    if Path(path).is_dir():
        return SuiteRun(suite=path, **vars(options))
    require_count("--seeds", options.seeds)
    suite = load_suite(path, options.model)
    data = _data(suite, options.data)
    members = suite.order(_names(options.only))
    commands = {}
    for member in members:
        task = member.recipe.task
        try:
            own = parsed(task, task_command(task), others)
            own |= {} if options.model is None else {"model": options.model}
            own |= {} if options.seed is None else {"seed": options.seed}
            own |= {"data": data[member.name]} if member.name in data else {}
            own |= {"recipe": str(member.recipe.path), "smoke": options.smoke}
            command = made(task_command(task), own, recipe_command(task, own))
        except UserError as error:
            raise UserError(f"{member.name}: {error}") from error
        _check(member, command)
        commands[member.name] = command
    return LoadedSuite(suite=path, loaded=suite, commands=commands, **vars(options))


def _data(suite: Suite, given: Sequence[str]) -> dict[str, str]:
    """Return the data of --data by member."""
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in suite.members or not value:
            raise UserError(
                f"--data {text}: for a suite write NAME=DATA, with a name of "
                f"{abbreviated(suite.members, 30)}.{did_you_mean(name, suite.members)}"
            )
        found[name] = value
    return found


def _check(member: Member, command: TaskCommand) -> None:
    """Raise UserError for an option that does not apply to a suite."""
    config, recipe = command.config, member.recipe.config()
    for option, given in (
        ("--sizes", command.sizes is not None),
        ("--folds", command.folds is not None or command.repeats != 1 or command.hold_out),
        ("--resume", config.resume),
        ("--push-to-hub", config.push_to_hub is not None),
        ("--init-from", config.init_from != recipe.init_from),
        ("--columns", config.columns != recipe.columns),
    ):
        if given:
            raise UserError(f"{option} does not apply to a suite: leave it out.")
