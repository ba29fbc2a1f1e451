"""The commands' own arguments, and how all arguments are read and documented."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from finetune.config import CONFIGS, field_docs, flag

ALSO = (
    "Also: --recipe FILE takes the settings of a recipe, over which flags win; --dry-run shows the "
    "plan (data, labels, lengths, steps, memory) and trains nothing."
)
"""Help of the flags of training that are no settings."""


@dataclass(frozen=True, kw_only=True)
class RecipesCommand:
    """List the recipes and the scores they claim."""

    folder: str = "recipes"
    """Folder to look in, with its subfolders."""


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """Look at data for problems: counts, labels, schemes, duplicates, lengths. No model needed."""

    data: str = ""
    """As in training: folder, file, `train=FILE,test=FILE`, or hub data set."""
    task: Literal["classify", "nli", "tag", "ner"] | None = None
    """The task the data are for; unset looks at the data."""
    columns: tuple[str, ...] = ()
    """Columns where names cannot be guessed, as `role=column`."""
    model: str | None = None
    """Also look through this model's tokenizer: vanishing words, windows, truncation."""
    max_length: int = 512
    """Longest sequence in tokens, for the forecast."""


@dataclass(frozen=True, kw_only=True)
class PredictCommand:
    """Answer new texts with a trained model: one JSON line for each input, in input order."""

    text: str | None = None
    """One text."""
    pair: str | None = None
    """The second text, for a model of pairs."""
    file: str | None = None
    """Texts or words to answer: JSON Lines, CSV, TSV, plain lines or CoNLL columns; `-` reads
    standard input."""
    output: str | None = None
    """File to write; unset prints."""
    columns: tuple[str, ...] = ()
    """Columns where names cannot be guessed, as `role=column`."""
    decoding: str | None = None
    """Another way to decide than the model was trained with: greedy or constrained for `tag`;
    flat, nested or overlapping for `ner`."""
    batching: Literal["auto", "packed", "padded"] = "auto"
    """As in training: speed only."""
    max_tokens: int = 4096
    """Tokens per forward pass: memory and speed only."""


@dataclass(frozen=True, kw_only=True)
class ExportCommand:
    """Write a trained model (classify, nli, tag) as an ONNX graph, checked against torch."""

    output: str | None = None
    """New folder for the graph, tokenizer and labels; written whole or not at all."""


@dataclass(frozen=True, kw_only=True)
class ScoreCommand:
    """Score a file of predictions (JSON Lines) against a file of gold labels."""

    columns: tuple[str, ...] = ()
    """Columns of the gold file where names cannot be guessed, as `role=column`."""


@dataclass(frozen=True, kw_only=True)
class AnalyseCommand:
    """Take one system's answers apart: scores of parts, calibration, and mistakes to read."""

    gold: str | None = None
    """File of gold, which may also be named behind the predictions. Unset takes the last column but
    one of predictions in columns, or the data that a run folder names."""
    split: str = "test"
    """Which predictions of a run folder."""
    train: str | None = None
    """File the system was trained on, to tell seen from unseen names and words. Unset: what a run
    folder says."""
    columns: tuple[str, ...] = ()
    """Columns of the gold (and training) file where names cannot be guessed, as `role=column`."""
    examples: int = 10
    """How many mistakes of each kind to show."""
    json: bool = False
    """Print JSON in place of tables."""


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare two systems on the same examples: is their difference more than chance?"""

    gold: str | None = None
    """File of gold. Unset takes the last column but one of predictions in columns, or the data
    that a run folder names."""
    metric: str | None = None
    """A metric that `finetune score` prints, or that of one label, tag or type: `f1:NAME`,
    `span_f1_strict:PER`. Unset is the one that selects models in training."""
    split: str = "test"
    """Which predictions of run folders."""
    unit: Literal["example", "document"] = "example"
    """What is drawn: sentences or texts, or whole documents where gold has some."""
    resamples: int = 10_000
    """Number of resamples of each test."""
    seed: int = 0
    """Seed of the resamples."""
    columns: tuple[str, ...] = ()
    """Columns of the gold file where names cannot be guessed, as `role=column`."""
    json: bool = False
    """Print JSON in place of the table."""


def parse(kind: type[Any], arguments: Sequence[str], command: str, *, more: str = "") -> Any:
    """Read arguments into a dataclass; wrong ones end the program with what is legal.

    ``more`` is help for what tyro does not see: positional arguments and flags taken before.
    """
    import tyro

    docs = field_docs(kind)
    for entry in dataclasses.fields(kind):
        entry.metadata = MappingProxyType({"help": docs[entry.name]})
    return tyro.cli(
        kind,
        args=list(arguments),
        prog=f"finetune {command}",
        description=f"{kind.__doc__}{chr(10) * 2 if more else ''}{more}",
        config=(tyro.conf.OmitArgPrefixes,),
    )


def joined(arguments: Sequence[str], *flags: str) -> list[str]:
    """The arguments, these flags and their values as one: a value may then begin with a dash.

    >>> joined(["--text", "-1", "--file", "x"], "--text")
    ['--text=-1', '--file', 'x']
    """
    result: list[str] = []
    for argument in arguments:
        if result and result[-1] in flags:
            result[-1] += f"={argument}"
        else:
            result.append(argument)
    return result


def options_table(task: str) -> str:
    """A task's options as a Markdown table, from the field documentation."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    docs = field_docs(CONFIGS[task])
    for entry in dataclasses.fields(CONFIGS[task]):
        default = "" if entry.default in (None, (), "") else f"`{entry.default}`"
        rows.append(f"| `{flag(entry.name)}` | {default} | {docs[entry.name]} |")
    return "\n".join(rows)
