"""`finetune check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from finetune.cli.options import Command, DataOptions, OutOption
from finetune.cli.output import quiet_libraries, refuse_options, show
from finetune.config.options import DATA, Help, argument
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.registry import PLUGINS, TASKS
from finetune.types import UserError, did_you_mean

if TYPE_CHECKING:
    from finetune.data import Finding


@dataclass(frozen=True, kw_only=True)
class Check(OutOption, DataOptions, Command):
    """Check data, or a recipe and its data: counts, labels, tag schemes, duplicates, lengths.

    Examples:
        finetune check my-data --task nli
        finetune check runs/folds --label-errors --out label-issues.jsonl
    """

    source: Annotated[str | None, argument("DATA, RECIPE or RUNS")] = None
    """Data as in training, a recipe file (.yaml), or, with --label-errors, a folder of --folds."""
    data: Annotated[str, DATA] = ""
    """Data as in training: a folder, file, `train=FILE,test=FILE`, or hub data set."""
    task: Annotated[str | None, Help("TASK")] = None
    """Task of the data, such as `nli` or `relations`; default: inferred from the data."""
    model: str | None = None
    """Check with the tokenizer of this model too: words without subwords, windows, truncation."""
    max_length: int | None = None
    """Longest sequence in tokens, for the check with --model; default: the model's limit, at most
    512."""
    label_errors: bool = False
    """Find training labels of texts that are probably wrong (confident learning): the predictions
    of the test splits of a folder of `--folds` are compared with the labels."""
    out: str | None = None
    """File for all label issues of --label-errors (JSON Lines)."""
    examples: int = 20
    """Number of label issues to print with --label-errors."""
    format: Literal["table", "json"] = "table"
    """Format of the output: a text for reading (`table`) or JSON. JSON is a list of objects with
    level (`info`, `warning` or `error`), check, message and locations. `--json` is short for
    `--format json`."""
    strict: bool = False
    """Exit with code 1 also if there are only warnings."""

    def run(self) -> None:
        """Print the findings; exit with 1 if one of them is an error, or a warning if strict."""
        if self.label_errors:
            if self.source is None:
                raise UserError("--label-errors needs a folder of --folds: finetune check RUNS.")
            used = ("source", "label_errors", "out", "examples", "strict")
            refuse_options(self, used, "--label-errors, which reads the settings of the runs")
            if PLUGINS["check --label-errors"](self) and self.strict:
                sys.exit(1)
            return
        for name in ("out", "examples"):
            if getattr(self, name) != getattr(Check, name):
                raise UserError(f"--{name} needs --label-errors: add it.")
        command, config = self._with_recipe()
        if not command.data:
            raise UserError("check needs a recipe or --data.")
        if (task := command.task) is not None:
            legal = [name for name in TASKS if CONFIGS[name].description.labels]
            if task not in legal:
                raise UserError(
                    f"--task {task}: legal are {', '.join(legal)}.{did_you_mean(task, legal)}"
                )
        command.check(config)

    def _with_recipe(self) -> tuple[Check, TrainConfig | None]:
        source = self.source or ""
        if not source.endswith((".yaml", ".yml")):
            return replace(self, data=self.data or source), None
        from finetune.config.expected_scores import require_metric
        from finetune.config.recipes import load_recipe

        recipe = load_recipe(source)
        config = recipe.config()
        require_metric(recipe.task, config)
        show(f"{source}: a valid recipe for {recipe.task}", error=self.format == "json")
        if self.task not in (None, recipe.task):
            raise UserError(f"{source} is a recipe for {recipe.task}, not {self.task}.")
        options = replace(
            self,
            task=recipe.task,
            data=self.data or config.data,
            columns=self.columns or config.columns,
            encoding=self.encoding if self.encoding != Check.encoding else config.encoding,
            max_length=self.max_length or config.max_length,
        )
        return options, config

    def check(self, config: TrainConfig | None) -> None:
        """Print the findings about the data."""
        quiet_libraries()
        from finetune.data import render
        from finetune.data.checks import Finding, bad_rows
        from finetune.runtime.progress import Reporter, shown_by

        errors: list[str] = []  # of rows that cannot be read
        try:
            with Reporter() as reporter, shown_by(reporter):
                findings = self._findings(config, errors)
        except UserError as error:
            if not errors:
                raise
            findings = [Finding("error", "reading", str(error))]
        findings += bad_rows(errors)
        if self.format == "json":
            show(json.dumps([asdict(f) for f in findings], indent=2, ensure_ascii=False))
        else:
            show(render(findings))
        stopping = ("error", "warning") if self.strict else ("error",)
        if any(finding.level in stopping for finding in findings):
            sys.exit(1)

    def _findings(self, config: TrainConfig | None, errors: list[str]) -> list[Finding]:
        from finetune.data import check_data, input_type_of, read_text, read_tokens
        from finetune.data.checks import Finding
        from finetune.data.labels import with_standard_names
        from finetune.preprocessing.preparation import read_examples

        skipped: Collection[str] = ()
        data: Any = None
        input_type = None if self.task else input_type_of(self.data, self.encoding)
        task = input_type if input_type in ("qa", "choice") else self.task
        if task is not None:
            about = CONFIGS[task].description
            settings = config or CONFIGS[task]()
            settings = replace(settings, columns=self.columns, encoding=self.encoding)
            words = about.words
            if not about.own_reader:
                data = read_examples(settings, self.data, errors)
            if data is None:
                from finetune.tasks import task_class  # which imports torch

                data = task_class(task).read(settings, self.data)
            data = with_standard_names(data) if about.pairs else data
            skipped = about.skipped_checks
        else:
            words = input_type == "tokens"
            data = (read_tokens if words else read_text)(self.data, **self.reading, errors=errors)
        if self.model is None:
            findings = check_data(data, count_subwords=None, max_length=self.max_length or 512)
        else:
            from finetune.preprocessing.tokenizer import check_with_tokenizer

            findings = check_with_tokenizer(data, self.model, words, self.max_length)
        findings = [finding for finding in findings if finding.check not in skipped]
        if self.task is None or errors or any(finding.level == "error" for finding in findings):
            return findings
        from finetune.tasks import task_class

        try:
            task_class(self.task).prepare(settings, data)
        except UserError as error:  # which training would raise
            findings.append(Finding("error", "training", str(error)))
        return findings
