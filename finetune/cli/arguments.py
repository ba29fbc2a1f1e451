"""The commands' own arguments, and how all arguments are read and documented."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from finetune.config.field_docs import field_docs
from finetune.config.tasks import CONFIGS, flag
from finetune.types import UserError, perhaps

ALSO = (
    "Also: --recipe FILE takes the settings of a recipe, over which flags win; --dry-run shows the "
    "plan (data, labels, lengths, steps, memory) and trains nothing; --smoke is a quick check with "
    "the recipe's `smoke` settings; --seeds N trains N seeds from --seed on, each in its folder "
    "seed-N of the run folder (finished ones are kept, so the same command continues), and sums "
    "them up: mean, deviation, median, runs that learnt nothing, verdict."
)
"""Help of the flags of training that are no settings."""

PHASES = ("train", "predict", "span")
"""What `finetune bench` can measure."""


@dataclass(frozen=True, kw_only=True)
class RecipesCommand:
    """List the recipes, the scores they claim, and those that your runs of them reached."""

    folder: str = "recipes"
    """Folder to look in, with its subfolders; without such a folder, what came with the package."""
    runs: str = "runs"
    """Folder of your runs; a run says which recipe it followed, whatever its folder is called."""


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """Look at data for problems: counts, labels, schemes, duplicates, lengths. No model needed,
    but for --label-errors."""

    data: str = ""
    """As in training: folder, file, `train=FILE,test=FILE`, or hub data set."""
    task: Literal["classify", "nli", "tag", "ner"] | None = None
    """The task the data are for; unset looks at the data."""
    columns: tuple[str, ...] = ()
    """Columns where names cannot be guessed, as `role=column`."""
    model: str | None = None
    """Also look through this model's tokenizer: vanishing words, windows, truncation."""
    max_length: int | None = None
    """Longest sequence in tokens, for the forecast; unset is the model's limit, at most 512."""
    label_errors: bool = False
    """Also find training labels that are probably wrong: --model is trained on all folds of the
    data but one and asked about that one, in turn (confident learning)."""
    folds: int = 5
    """Into how many folds; examples of one document or text share one."""
    epochs: float | None = None
    """Passes over the data of each fold's training; unset is as in training."""
    out: str | None = None
    """File for all suspects, as JSON Lines. Unfinished folds are kept beside it: after an
    interruption the same command goes on."""
    examples: int = 20
    """How many suspects to print."""

    def require_legal(self) -> None:
        """Raise ValueError for settings of a search for wrong labels that is not asked for."""
        if self.label_errors:
            return
        for name in ("folds", "epochs", "out", "examples"):
            if getattr(self, name) != getattr(CheckCommand, name):
                raise UserError(
                    f"--{name} goes with --label-errors: add that, or leave --{name} out."
                )


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
    """File to write (with --glue-submission: the folder); unset prints (writes here)."""
    glue_submission: str | None = None
    """Write the file that the GLUE benchmark takes (RTE.tsv, …). The task is the one whose data the
    model was trained on, or the one named: CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE, WNLI,
    AX. Without --file, that data's test split is answered."""
    columns: tuple[str, ...] = ()
    """Columns where names cannot be guessed, as `role=column`."""
    decoding: str | None = None
    """Another way to decide than the model was trained with: greedy or constrained for `tag`;
    flat, nested or overlapping for `ner`."""
    batching: Literal["auto", "packed", "padded"] = "auto"
    """As in training: speed only."""
    max_tokens: int | None = None
    """Tokens per forward pass: memory and speed only. Unset is as in training; on a CPU it is never
    more than 1024."""


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
    """A metric that `finetune score` or `finetune analyse` prints, or that of one label, tag or
    type (`f1:NAME`, `span_f1_strict:PER`), or of one group in a table of the analysis
    (`span_f1_length:3`). Unset is the one that selects models in training."""
    split: str = "test"
    """Which predictions of run folders."""
    train: str | None = None
    """File the systems were trained on, to tell seen from unseen names and words. Unset: what a run
    folder says."""
    unit: Literal["example", "document"] = "example"
    """What is drawn: sentences or texts, or whole documents where gold has some."""
    resamples: int = 10_000
    """Number of resamples of each test."""
    seed: int = 0
    """Seed of the resamples."""
    columns: tuple[str, ...] = ()
    """Columns of the gold (and training) file where names cannot be guessed, as `role=column`."""
    json: bool = False
    """Print JSON in place of the table."""


@dataclass(frozen=True, kw_only=True)
class ReportCommand:
    """Write one page on a run, or on several side by side: scores with intervals, curves, classes,
    calibration, and mistakes to browse. The file needs no network."""

    out: str | None = None
    """File to write; unset is `report.html` in the run folder, or here for several."""
    split: str | None = None
    """Which predictions; unset is the test split, or the validation split without gold there."""
    examples: int = 300
    """How many examples with mistakes the page holds at most."""


@dataclass(frozen=True, kw_only=True)
class PushCommand:
    """Upload the best model of a run, with its model card, to the Hugging Face hub."""

    private: bool = False
    """Make the repository private, if it is new."""


@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Measure speed and memory against transformers' Trainer and pipelines, and against other
    span heads: same model, same texts, one process, in turns. Trains copies; saves nothing."""

    model: str = "minilm"
    """Encoder: a hub id, a short name, a local folder, or `minilm` (extra `offline`)."""
    shape: Literal["minilm", "roberta-base", "deberta-v3-small"] | None = None
    """In place of --model: random weights of this shape, which need no download."""
    task: Literal["classify", "nli", "tag"] = "classify"
    """What is trained and predicted; unless --data is given, on texts drawn with lengths like
    those of SST-2 (classify), MNLI (nli) or CoNLL-2003 (tag)."""
    data: str = ""
    """Texts to measure on in place of drawn ones: as in training."""
    columns: tuple[str, ...] = ()
    """Columns of --data where names cannot be guessed, as `role=column`."""
    phases: str = "train,predict,span"
    """What to measure, separated by commas."""
    size: Literal["small", "default", "large"] | None = None
    """How much is measured: `default` is for two processor cores, `large` for a GPU (and all cases
    of the span head), `small` only shows that all works; unset looks at the device."""
    batch_size: int | None = None
    """Examples of a training step; unset is 32 (4 where the size is `small`)."""
    rounds: int | None = None
    """Turns of each arm, of which the median counts; unset goes with the size."""
    threads: int | None = None
    """Threads of one operation; unset is what torch takes."""
    json: bool = False
    """Print one JSON object in place of tables."""

    def require_legal(self) -> None:
        """Raise ValueError for a number out of range, and what is no phase."""
        for name in ("batch_size", "rounds", "threads"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise UserError(f"{flag(name)} must be 1 or more, not {number}.")
        for name in self.chosen_phases:
            if name not in PHASES:
                raise UserError(
                    f"--phases {self.phases!r}: {name!r} is none of {', '.join(PHASES)}."
                    f"{perhaps(name, PHASES)}"
                )
        if self.columns and not self.data:
            raise UserError("--columns goes with --data: add that, or leave --columns out.")

    @property
    def chosen_phases(self) -> list[str]:
        """The phases by name, in the order asked for, each once."""
        return list(dict.fromkeys(name.strip() for name in self.phases.split(",")))


def options_table(task: str) -> str:
    """A task's options as a Markdown table, from the field documentation."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    docs = field_docs(CONFIGS[task])
    for entry in dataclasses.fields(CONFIGS[task]):
        default = "" if entry.default in (None, (), "") else f"`{entry.default}`"
        rows.append(f"| `{flag(entry.name)}` | {default} | {docs[entry.name]} |")
    return "\n".join(rows)
