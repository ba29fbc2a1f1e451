"""Every setting of a run, with its meaning under it.

The strings under the fields are the command line's help, the recipe keys' documentation and the
README's option table; nothing else documents an option. Fields are scalars, literals and tuples,
so that a YAML file and a command line can say all of them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings that every task has."""

    model: str = "roberta-base"
    """Pretrained encoder: a hub id, a short name such as `roberta-base`, a local folder, or
    `minilm` (the small encoder of the extra `offline`)."""
    revision: str | None = None
    """Commit or tag of the hub model; unset takes the newest and records which it was."""
    data: str = ""
    """A folder with train/validation/test files, one file, `train=FILE,test=FILE`, a folder
    written by datasets' save_to_disk, or a hub data set (`mnli`, `nyu-mll/glue:mrpc`)."""
    columns: tuple[str, ...] = ()
    """Which columns to read where the names cannot be guessed, as `role=column`: roles are text,
    pair and label, or words, tags and spans. Columns without a header count from 0."""
    limit: int | None = None
    """Train on the first N training examples only."""
    out: str | None = None
    """Run folder; unset makes a new one under `runs/`."""
    epochs: float | None = None
    """Passes over the training data; unset is 3, and up to 10 where the data is so small that 3
    make fewer than 500 steps (few steps are what makes small runs unstable)."""
    steps: int | None = None
    """Optimizer steps; set, it takes the place of --epochs."""
    batch_size: int = 32
    """Examples per optimizer step, over all devices together."""
    max_tokens: int = 4096
    """Tokens per forward pass on each device: memory and speed only, never results."""
    max_length: int | None = None
    """Longest sequence in tokens; unset takes the model's limit, at most 512."""
    lr: float | None = None
    """Peak learning rate of the encoder; unset is 2e-5, and 1e-4 for small encoders (narrower
    than 512)."""
    head_lr: float | None = None
    """Peak learning rate of the newly added head; unset is the same as --lr."""
    layer_decay: float = 1.0
    """Factor on the learning rate for each layer further down; 1 is none, 0.8 to 0.9 is usual."""
    warmup: float = 0.1
    """Steps of linear warm-up; below 1 a share of all steps. Linear decay to 0 follows."""
    weight_decay: float = 0.01
    """Decoupled weight decay, on weight matrices only (not on biases and norms)."""
    clip: float = 1.0
    """Largest gradient norm; 0 does not clip."""
    seed: int = 1
    """Seed of the head's first weights, the data order and dropout."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of the forward pass; weights stay float32. `auto` is bf16 where the hardware
    has it."""
    batching: Literal["auto", "packed", "padded"] = "auto"
    """Whether sequences share one row without padding; `auto` packs wherever the model family
    allows it. Never changes results."""
    freeze: str = "none"
    """Weights that stay as they are: `none`, `embeddings`, `all` (the whole encoder), or N (the
    embeddings and the N lowest layers)."""
    metric: str | None = None
    """Validation metric that chooses the best model; unset takes the task's own."""
    eval_every: int | None = None
    """Steps between evaluations on the validation split; unset is once an epoch."""
    save_every: int | None = None
    """Steps between checkpoints of `last/`; unset saves at each evaluation."""
    patience: int | None = None
    """Stop after this many evaluations without a better score; unset never stops early."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint (unset: the newest of the same name)."""
    track: Literal["none", "tensorboard", "wandb", "trackio"] = "none"
    """Also send losses and scores to this tracker."""
    trust_remote_code: bool = False
    """Allow a model's own Python code from the hub to run."""

    def __post_init__(self) -> None:
        """Check ranges; every error names the flag and what to write."""
        positive = ("batch_size", "max_tokens", "layer_decay")
        optional = (
            "epochs",
            "lr",
            "limit",
            "steps",
            "max_length",
            "head_lr",
            "eval_every",
            "save_every",
            "patience",
        )
        for name in positive + tuple(n for n in optional if getattr(self, n) is not None):
            self._require(getattr(self, name) > 0, name, "above 0")
        for name in ("warmup", "weight_decay", "clip"):
            self._require(getattr(self, name) >= 0, name, "0 or more")
        self._require(self.layer_decay <= 1, "layer_decay", "at most 1")
        legal = self.freeze in ("none", "embeddings", "all") or self.freeze.isdecimal()
        self._require(legal, "freeze", "none, embeddings, all, or a number of layers")
        for item in self.columns:
            self._require("=" in item, "columns", "role=column, for instance text=sentence", item)
        if self.max_length is not None and self.max_length > self.max_tokens:
            raise ValueError(
                f"--max-length {self.max_length} exceeds --max-tokens {self.max_tokens} (one "
                "sequence must fit into a forward pass): raise --max-tokens."
            )

    def _require(self, legal: bool, name: str, what: str, value: Any = None) -> None:
        if not legal:
            value = getattr(self, name) if value is None else value
            raise ValueError(f"{flag(name)} must be {what}, not {value!r}.")

    @property
    def column_map(self) -> dict[str, str]:
        """The --columns as a mapping from role to column name."""
        return dict(item.split("=", 1) for item in self.columns)


@dataclass(frozen=True, kw_only=True)
class TextConfig(TrainConfig):
    """Settings of the tasks that label whole texts or pairs of texts."""

    class_weights: str = "none"
    """Weight of each class in the loss: `none`, `auto` (inverse frequency), or `a=1,b=2.5`."""
    long_text: Literal["truncate", "window", "error"] = "truncate"
    """What happens to texts over --max-length: cut at the end and counted, read in overlapping
    windows whose scores are averaged, or refused."""
    overlap: int | None = None
    """Tokens that neighbouring windows of a long text share; unset is 64, at most half of
    --max-length."""

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        self._require(self.overlap is None or self.overlap >= 0, "overlap", "0 or more")


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(TextConfig):
    """Text classification: one label, several labels, or a number for each text (or pair)."""

    data: str = "sst2"
    problem: Literal["auto", "single", "multi", "regression"] = "auto"
    """One label of several, any number of labels, or a number; `auto` looks at the labels."""
    threshold: float = 0.5
    """Probability from which a label applies, with several labels."""

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        self._require(0 < self.threshold < 1, "threshold", "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class NliConfig(TextConfig):
    """Natural language inference and other classification of text pairs."""

    data: str = "mnli"


@dataclass(frozen=True, kw_only=True)
class TagConfig(TrainConfig):
    """Word tagging: named entities, parts of speech, chunks."""

    data: str = "conll2003"
    scheme: Literal["auto", "IO", "BIO", "BIOES"] = "auto"
    """Tag scheme to train in; `auto` is BIO for spans and the tags as they are for the rest."""
    label_pieces: Literal["first", "all"] = "first"
    """Train on each word's first piece, or on all (where `B-` continues as `I-`)."""
    word_score: Literal["first", "mean", "max"] = "first"
    """A word's scores: its first piece's, or over its pieces the mean of log-probabilities or
    the largest probability."""
    decoding: Literal["greedy", "constrained"] = "greedy"
    """Best tag of each word alone, or the best sequence of legal tag transitions (Viterbi)."""
    overlap: int | None = None
    """Tokens of context that neighbouring windows of a long text share; unset is 64, at most half
    of --max-length."""

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        self._require(self.overlap is None or self.overlap >= 0, "overlap", "0 or more")


CONFIGS: dict[str, type[TrainConfig]] = {
    "classify": ClassifyConfig,
    "nli": NliConfig,
    "tag": TagConfig,
}
"""The configuration class of each task."""

RESULT_FREE = frozenset(
    {"out", "max_tokens", "batching", "resume", "track", "save_every", "trust_remote_code"}
)
"""Settings that cannot change what a run computes; all others make results incomparable."""


def flag(name: str) -> str:
    """The command line's spelling of a field: ``batch_size`` is ``--batch-size``."""
    return "--" + name.replace("_", "-")


def field_docs(config: type[TrainConfig]) -> dict[str, str]:
    """The documentation under each field of a configuration class and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for node, following in zip(body, body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr):
                docs[node.target.id] = " ".join(following.value.value.split())  # type: ignore
    return docs


def settings(config: TrainConfig) -> dict[str, Any]:
    """The configuration as plain JSON values, in field order."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config).items()
    }


def from_settings(config: type[TrainConfig], values: dict[str, Any]) -> TrainConfig:
    """The inverse of ``settings``."""
    return config(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})
