"""The options of `convert`, `agreement`, `suggest`, `review` and `check --label-errors`.

What each command reads, computes and prints is in the file of its subject, which may load torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from finetune.cli.check import Check
from finetune.cli.options import (
    Command,
    DataOptions,
    FormatOption,
    OutOption,
    ResampleOptions,
    SeedOption,
    SpeedOptions,
)
from finetune.cli.output import check_output, quiet_libraries
from finetune.config.options import DATA, OUTPUT, Help, argument
from finetune.config.tasks import CONFIGS, TrainConfig
from finetune.config.values import MOST_RESAMPLES, require_count
from finetune.runtime.files import is_free, require_replaceable
from finetune.runtime.records import require_suffix
from finetune.types import UserError

SUFFIXES = {
    "jsonl": (".jsonl", ".ndjson"),
    "conll": (".conll", ".txt", ".tsv", ".iob", ".iob2", ".bio", ".conllu"),
    "prodigy": (".jsonl",),
    "doccano": (".jsonl",),
    "label-studio": (".json",),
    "spacy": (".json",),
}
"""The suffixes of the files of a format, if its name is not the only suffix."""


@dataclass(frozen=True, kw_only=True)
class Convert(DataOptions, Command):
    """Convert annotated data, or predictions, to the format of an annotation tool or another.

    Examples:
        finetune convert data.conll --to doccano --out data.jsonl
        finetune convert export.json --to conll --out data.conll
    """

    source: Annotated[str, argument("SOURCE")]
    """File of any format, export of an annotation tool, folder of brat, or predictions of a run."""
    to: Annotated[
        Literal[
            "jsonl",
            "json",
            "csv",
            "tsv",
            "xlsx",
            "parquet",
            "conll",
            "prodigy",
            "doccano",
            "label-studio",
            "brat",
            "spacy",
        ],
        OUTPUT,
    ]
    """Format to write; in tables a cell with spans or several labels is JSON."""
    out: Annotated[str, OUTPUT]
    """File to write, with a suffix of the format; for brat a folder that is empty or absent."""
    columns: tuple[str, ...] = ()
    """Columns if their names are not recognized, as `role=column`; `spans=NAME` reads spans where
    a row has a label too."""
    decisions: Annotated[str | None, Help("FILE", "data")] = None
    """Decisions from the page of `review`, to apply."""

    def run(self) -> None:
        """Write the output, and print its omissions."""
        output = Path(self.out)
        if self.to != "brat":
            check_output(self.out, [Path(self.source)], SUFFIXES.get(self.to, [f".{self.to}"]))
        elif output.exists() and not (output.is_dir() and is_free(output)):
            raise UserError(f"--out {output} exists: name an empty or absent folder.")
        from finetune.annotation.writers import convert

        convert(self)


@dataclass(frozen=True, kw_only=True)
class Agreement(FormatOption, ResampleOptions, DataOptions, Command):
    """Measure how far annotators agree: kappa of labels, F1 of spans, and confused labels.

    Examples:
        finetune agreement anna.jsonl ben.jsonl
        finetune agreement export.json --format markdown
    """

    files: Annotated[tuple[str, ...], argument("FILE …")]
    """One file for each annotator, one export that names the annotator of each row, or one table
    with a column of each (`--columns label=ann+ben`); any format of `finetune convert`."""

    def run(self) -> None:
        """Print the tables; notes go to standard error."""
        require_count("--resamples", self.resamples, most=MOST_RESAMPLES)
        if not self.files:
            raise UserError("agreement needs a file for each annotator, or one with annotators.")
        if len({*self.files}) < len(self.files):
            raise UserError("a file is named twice: its annotator would agree with itself.")
        from finetune.annotation.agreement import print_agreement

        print_agreement(self)


@dataclass(frozen=True, kw_only=True)
class Suggest(OutOption, SpeedOptions, SeedOption, DataOptions, Command):
    """Choose the unlabeled examples that are worth labeling next (active learning).

    Examples:
        finetune suggest runs/topics --file unlabeled.txt --out next.jsonl
        finetune suggest runs/ner --file unlabeled.txt --number 100 --by uncertainty
    """

    folder: Annotated[str, argument("RUN")]
    """Folder of a run or of a model in it."""
    file: Annotated[str, DATA]
    """Unlabeled texts or words in any format of `predict`; `-` is standard input."""
    number: int = 50
    """Number of examples to choose."""
    seed: int = 1
    by: Literal["both", "uncertainty", "diversity", "random"] = "both"
    """Uncertain predictions, diverse texts, or diverse ones among the uncertain; `random` is the
    baseline."""

    def run(self) -> None:
        """Write one line for each chosen example, the best first."""
        if self.number < 1:
            raise UserError(f"--number must be 1 or more, not {self.number}.")
        quiet_libraries()
        from finetune.annotation.suggestion import write_suggestions

        write_suggestions(self)


@dataclass(frozen=True, kw_only=True)
class Review(Command):
    """Write a page to click through suspected or suggested labels, tags and spans.

    Examples:
        finetune review suspects.jsonl --out review.html
        finetune review next.jsonl --out review.html --labels sports politics
    """

    file: Annotated[str, argument("FILE")]
    """Suspects of `check --label-errors --out`, output of `suggest`, or predictions of a run."""
    out: Annotated[str, OUTPUT]
    """HTML file to write: one file that needs no network."""
    columns: Annotated[tuple[str, ...], Help("ROLE=COLUMN …", "data")] = ()
    """Columns of text and pair in predictions with --keep-columns, if they have other names than
    `text` and `text_pair`: `text=Message`."""
    labels: tuple[str, ...] = ()
    """Labels to offer besides the labels of the file."""

    def run(self) -> None:
        """Write the page."""
        path = Path(self.file)
        if not path.is_file():
            what = "a folder: name a file in it" if path.is_dir() else "no such file"
            raise UserError(f"{path}: {what}.")
        check_output(self.out, [path])
        require_replaceable(Path(self.out), "<!doctype html", "--out")
        from finetune.annotation.review_page import write_page

        write_page(self)


def find_label_errors(options: Check, task: str, recipe_config: TrainConfig | None) -> None:
    """Search for label errors, print the most probable ones and write all."""
    if options.model is None and recipe_config is None:
        raise UserError("--label-errors trains a model: name one with --model.")
    require_count("--folds", options.folds, 2)
    given = {"model": options.model, "max_length": options.max_length, "epochs": options.epochs}
    config = replace(
        recipe_config or CONFIGS[task](),
        data=options.data,
        columns=options.columns,
        encoding=options.encoding,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    out = Path(options.out) if options.out else None
    if out is not None and out.is_dir():
        raise UserError(f"--out {out} is a folder: name a file.")
    from finetune.annotation.label_errors import print_label_errors
    from finetune.training.run_folder import require_writable

    if out is not None:
        require_writable(out.parent)
        require_suffix(out, (".jsonl", ".ndjson", ""), "--out")
        require_replaceable(out, '{"file": ')
    print_label_errors(task, config, options.folds, out, options.examples)
