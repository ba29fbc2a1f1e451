"""The base class of commands, and groups of options that mean the same in several commands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finetune.cli.output import TableFormat, show
from finetune.config.options import COMMON, Help, argument
from finetune.config.tasks import column_map
from finetune.types import UserError

if TYPE_CHECKING:
    from finetune.evaluation.predictions import GoldSource


class Command(ABC):
    """A command is a frozen dataclass: its fields are the options, and ``run`` carries it out."""

    trains: ClassVar[bool] = False
    """True if the command trains; training continues after its output is closed."""

    @property
    def shares_work(self) -> bool:
        """True if all processes of a launch run the command, False for the main process only."""
        return False

    @abstractmethod
    def run(self) -> None:
        """Carry out the command."""


class TrainingCommand(Command):
    """A command that trains, or with ``dry_run`` shows the plan."""

    dry_run: bool

    trains = True

    @property
    def shares_work(self) -> bool:
        """True, except that one process shows the plan."""
        return not self.dry_run


@dataclass(frozen=True, kw_only=True)
class FormatOption:
    """The option of the commands that print tables."""

    group: ClassVar[str] = "output"

    format: TableFormat = "table"
    """Format of the output: a text for reading (`table`), or tables for other programs. JSON has
    all results and CSV all digits; LaTeX (booktabs) and Markdown are rounded. Notes go to standard
    error. `--json` is short for `--format json`."""

    def note(self, text: str) -> None:
        """Print a line of the text output; for other formats, print it as a note."""
        show(text, error=self.format != "table")


@dataclass(frozen=True, kw_only=True)
class OutOption:
    """The option of the commands that write rows."""

    group: ClassVar[str] = "output"

    out: Annotated[str | None, Help("FILE", common=True)] = None
    """File to write; its suffix sets the format: .jsonl, .json, .csv or .parquet. Without --out,
    rows are printed."""


@dataclass(frozen=True, kw_only=True)
class ModelArgument:
    """The argument of the commands that read an encoder."""

    model: Annotated[str, argument("MODEL")]
    """Encoder: a short name, model folder, run folder, or hub id (ID or ID@REVISION)."""


@dataclass(frozen=True, kw_only=True)
class EncodingOption:
    """The option of the commands that read files of text."""

    group: ClassVar[str] = "data"

    encoding: str = "utf-8"
    """Text encoding of the files, such as `cp1252`, `utf-16` or `gb18030`. Predictions in JSON
    Lines are UTF-8."""


@dataclass(frozen=True, kw_only=True)
class DataOptions(EncodingOption):
    """Options of the commands that read data."""

    group: ClassVar[str] = "data"

    columns: Annotated[tuple[str, ...], Help("ROLE=COLUMN …", common=True)] = ()
    """Names of the columns to read, if they are not recognized: `text=review label=stars`. Roles
    are text, pair, label and negative, or words, tags, spans, relations and document. Without a
    header, columns are numbered from 0. With a run, the default is the columns that it was trained
    on, if the file has them."""

    @property
    def reading(self) -> dict[str, Any]:
        """The options as arguments of functions that read data."""
        return {"columns": column_map(self.columns), "encoding": self.encoding}


@dataclass(frozen=True, kw_only=True)
class InputOptions(DataOptions):
    """Options of the commands that read texts or words of any format."""

    group: ClassVar[str] = "data"

    text: Annotated[tuple[str, ...], Help("TEXT …")] = ()
    """One or more texts. Write --text=TEXT if a text begins with a dash."""
    file: str | None = None
    """File of texts or words; `-` reads standard input. Formats are JSON Lines, CSV, TSV, plain
    lines, CoNLL columns and more. A folder or a pattern such as 'new/*.jsonl' names several
    files."""

    @property
    def is_stream(self) -> bool:
        """Whether the input is standard input or a pipe, which is read once."""
        from finetune.data.files import is_pipe

        return self.file == "-" or is_pipe(Path(self.file or ""))

    def require_input(self, command: str) -> None:
        """Raise UserError unless there is one of the options, and files that can be opened."""
        from finetune.data.files import open_data
        from finetune.data.sources import input_files

        if bool(self.text) == (self.file is not None) or self.file == "":
            raise UserError(f"{command} needs either --text or --file (- is standard input).")
        if self.file is not None and not self.is_stream:
            open_data(input_files(self.file)[0], encoding=self.encoding)


@dataclass(frozen=True, kw_only=True)
class MetricOptions(DataOptions):
    """Options of the commands that score predictions."""

    group: ClassVar[str] = "data"

    positive: Annotated[str | None, Help("LABEL")] = None
    """Positive label of the metric `f1`, if there are two labels. Default: the positive label of
    the run, else a choice by name as in training, else the label that is rarer in gold."""
    costs: Annotated[str | None, Help("FILE")] = None
    """File of the costs of mistakes, for the metric `mean_cost`; the format is that of `finetune
    thresholds`. Default: the costs of the run."""

    def gold_source(self, gold: str | None, **more: Any) -> GoldSource:
        """Describe where the gold is, and how to read it."""
        from finetune.evaluation.decisions.costs import read_costs
        from finetune.evaluation.predictions import GoldSource

        costs = None if self.costs is None else read_costs(self.costs)
        return GoldSource(gold=gold, positive=self.positive, costs=costs, **self.reading, **more)


@dataclass(frozen=True, kw_only=True)
class GoldOptions(MetricOptions):
    """Options of the commands that compare predictions with gold."""

    group: ClassVar[str] = "data"

    gold: Annotated[str | None, Help("FILE")] = None
    """File of gold labels. Default: the gold labels in the predictions of a run."""
    train: Annotated[str | None, Help("DATA")] = None
    """Training data of the models, for scores of seen and unseen names and words. Default: the
    vocabulary in the run folder."""

    @property
    def source(self) -> GoldSource:
        """The file of the gold, and the settings to read it."""
        return self.gold_source(self.gold, train=self.train)


@dataclass(frozen=True, kw_only=True)
class ExplainOption:
    """The option of the commands that tell why a model predicts a label."""

    group: ClassVar[str] = "output"

    explain: Annotated[bool, COMMON] = False
    """Explain each predicted label of `classify`, `nli`, `tag` or `ner` by word attributions: how
    much the label's score drops when the word is left out."""


@dataclass(frozen=True, kw_only=True)
class SeedOption:
    """The option of the commands that draw at random."""

    seed: int = 0
    """Seed of all random choices."""


@dataclass(frozen=True, kw_only=True)
class ResampleOptions(SeedOption):
    """Options of the commands that resample examples."""

    resamples: int = 10_000
    """Number of resamples for each confidence interval or test."""


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """Options of the commands that run a trained model."""

    group: ClassVar[str] = "encoder"

    max_tokens: int | None = None
    """Tokens per forward pass: affects memory and speed, never results. Default: as in training, at
    most 1024 on a CPU."""


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(SpeedOptions):
    """Options of the commands that run an encoder on texts of any length."""

    group: ClassVar[str] = "encoder"

    max_length: int | None = None
    """Longest sequence in tokens; longer texts are read in windows. Default: the model's limit, at
    most 512."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""

    def keywords(self) -> dict[str, Any]:
        """The options as arguments of ``Embedder``."""
        return dict(vars(self))
