"""Every setting of a run, with its meaning under it.

The strings under the fields are the command line's help, the recipe keys' documentation and the
README's option table; nothing else documents an option. Fields are scalars, literals and tuples,
so that a YAML file and a command line can say all of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from finetune.config.context import ContextSetting
from finetune.types import UserError

MAX_TOKENS, MAX_TOKENS_ON_CUDA = 4096, 32_768
"""Tokens per forward pass where none are said; on a GPU large enough for most optimizer batches, as
launches cost more there than rows."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings that every task has."""

    model: str = "roberta-base"
    """Pretrained encoder: a hub id, a short name such as `roberta-base`, a local folder, or
    `minilm` (the small encoder of the extra `offline`)."""
    revision: str | None = None
    """Commit or tag of the hub model; unset takes the newest and records which it was."""
    init_from: str | None = None
    """Begin with the encoder of this run folder, saved model or hub id. Its head is taken too if it
    is of the same kind and knows all the new labels by name; else, and with `ner`, it is fresh.
    `--model` is not needed then, and must be of the same shape if given."""
    data: str = ""
    """A folder with train/validation/test files, one file, `train=FILE,test=FILE`, a folder
    written by datasets' save_to_disk, or a hub data set (`mnli`, `nyu-mll/glue:mrpc`)."""
    columns: tuple[str, ...] = ()
    """Which columns to read where the names cannot be guessed, as `role=column`: roles are text,
    pair and label, or words, tags, spans and document. Columns without a header count from 0."""
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
    max_tokens: int | None = None
    """Tokens per forward pass on each device: memory and speed only, never results. Unset is 4096,
    and 32768 on a CUDA device. Steps of more tokens take several passes."""
    max_length: int | None = None
    """Longest sequence in tokens; unset takes the model's limit, at most 512."""
    overlap: int | None = None
    """Tokens that neighbouring windows of an input over --max-length share; unset is 64, at most
    half of --max-length."""
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
    adam_beta2: float = 0.999
    """Decay of Adam's mean of squared gradients; some sources use 0.98."""
    adam_epsilon: float = 1e-8
    """What Adam adds to the root of that mean; some sources use 1e-6."""
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
    active_vocabulary: Literal["auto", "on", "off"] = "auto"
    """Whether only the embeddings of pieces that occur in the data are trained, and the others
    decay as they would: `auto` does where under 60 % occur. Never changes results."""
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
    push_to_hub: str | None = None
    """Upload the best model, with its model card, to this id on the Hugging Face hub when training
    has ended; whether you are signed in is looked at before it starts. `finetune push` does so
    later."""
    trust_remote_code: bool = False
    """Allow a model's own Python code from the hub to run."""

    def __post_init__(self) -> None:
        """Check ranges; every error names the flag and what to write."""
        positive = ("batch_size", "layer_decay", "adam_epsilon")
        optional = (
            "epochs", "lr", "limit", "steps", "max_tokens", "max_length", "head_lr", "eval_every",
            "save_every", "patience",
        )  # fmt: skip
        for name in positive + tuple(n for n in optional if getattr(self, n) is not None):
            self._require(getattr(self, name) > 0, name, "above 0")
        for name in ("warmup", "weight_decay", "clip"):
            self._require(getattr(self, name) >= 0, name, "0 or more")
        self._require(self.overlap is None or self.overlap >= 0, "overlap", "0 or more")
        self._require(self.layer_decay <= 1, "layer_decay", "at most 1")
        self._require(0 <= self.adam_beta2 < 1, "adam_beta2", "0 or more and below 1")
        legal = self.freeze in ("none", "embeddings", "all") or self.freeze.isdecimal()
        self._require(legal, "freeze", "none, embeddings, all, or a number of layers")
        for item in self.columns:
            self._require("=" in item, "columns", "role=column, for instance text=sentence", item)
        limits = self.max_length, self.max_tokens
        if None not in limits and limits[0] > limits[1]:  # type: ignore[operator]
            raise UserError(
                f"--max-length {self.max_length} exceeds --max-tokens {self.max_tokens} (one "
                "sequence must fit into a forward pass): raise --max-tokens."
            )

    def _require(self, legal: bool, name: str, what: str, value: Any = None) -> None:
        if not legal:
            value = getattr(self, name) if value is None else value
            raise UserError(f"{flag(name)} must be {what}, not {value!r}.")

    def tokens_on(self, device: str) -> int:
        """Tokens per forward pass on a kind of device (``cpu``, ``cuda``, …)."""
        return self.max_tokens or (MAX_TOKENS_ON_CUDA if device == "cuda" else MAX_TOKENS)

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
    classifier_dropout: float | None = None
    """Dropout before the classifier; unset is the model's own."""
    calibrate: Literal["none", "temperature"] = "none"
    """Fit on the validation split a temperature that divides all logits, so that probabilities say
    how often answers are right; the best label stays the best. It is kept with the task: `finetune
    predict` applies it, pipelines of transformers and ONNX graphs do not."""

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        share = self.classifier_dropout
        self._require(share is None or 0 <= share < 1, "classifier_dropout", "0 to below 1")


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(TextConfig):
    """Text classification: one label, several labels, or a number for each text (or pair)."""

    data: str = "sst2"
    problem: Literal["auto", "single", "multi", "regression"] = "auto"
    """One label of several, any number of labels, or a number; `auto` looks at the labels."""
    threshold: float = 0.5
    """Probability (after --calibrate) from which a label applies, with several labels."""

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        self._require(0 < self.threshold < 1, "threshold", "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class NliConfig(TextConfig):
    """Natural language inference and other classification of text pairs."""

    data: str = "mnli"


@dataclass(frozen=True, kw_only=True)
class TagConfig(ContextSetting, TrainConfig):
    """Word tagging: named entities, parts of speech, chunks."""

    data: str = "conll2003"
    scheme: Literal["auto", "IO", "BIO", "BIOES"] = "auto"
    """Tag scheme to train in; `auto` is BIO for spans and the tags as they are for the rest."""
    label_pieces: Literal["first", "all"] = "first"
    """Train on each word's first piece, or on all (where `B-` continues as `I-`)."""
    word_score: Literal["first", "mean", "max"] = "first"
    """A word's scores: its first piece's, or over its pieces the mean of log-probabilities or
    the largest probability."""
    decoding: Literal["constrained", "greedy"] = "constrained"
    """The best sequence of tags that the scheme allows (Viterbi), or the best tag of each word
    alone. Tags that are no spans are the same under both."""
    calibrate: Literal["none", "temperature"] = "none"
    """Fit on the validation split a temperature that divides all logits, so that probabilities say
    how often answers are right; the tags stay as they are. It is kept with the task: `finetune
    predict` applies it, pipelines of transformers and ONNX graphs do not."""
    crf: bool = False
    """Score whole sequences of tags with a linear-chain CRF over words; its best legal sequence
    is the answer."""
    crf_lr: float | None = None
    """Peak learning rate of the CRF's transitions; unset is 0.05 (they start at 0 and have few
    weights)."""

    def __post_init__(self) -> None:
        """Check ranges, and that the CRF goes with the rest."""
        super().__post_init__()
        if self.crf_lr is not None:
            self._require(self.crf_lr > 0, "crf_lr", "above 0")
            self._require(self.crf, "crf_lr", "left out without --crf")
        if self.crf:
            self._require(self.label_pieces == "first", "label_pieces", "first with --crf")
            self._require(self.word_score == "first", "word_score", "first with --crf")
            self._require(self.decoding != "greedy", "decoding", "constrained with --crf")
            self._require(self.calibrate == "none", "calibrate", "none with --crf")


@dataclass(frozen=True, kw_only=True)
class NerConfig(ContextSetting, TrainConfig):
    """Named entities as labelled spans of words, nested ones too."""

    data: str = "conll2003"
    head_lr: float | None = None
    """Peak learning rate of the newly added head; unset is 10 times that of the encoder (its
    networks are larger than a classifier, and start from nothing)."""
    representation: Literal["boundary", "ffn", "attention", "biaffine"] = "boundary"
    """What a span is scored from: its first and last word and the mean of its words; the same
    with networks of their own for start and end; with attention over its words in place of the
    mean; or start times end (biaffine)."""
    word_vectors: Literal["first", "mean"] = "first"
    """A word's vector: that of its first piece, or the mean over its pieces."""
    max_width: int | None = None
    """Widest candidate span in words; unset is the width that holds 99.5 % of the training spans
    (biaffine: no limit)."""
    multi_label: bool = False
    """Let one extent have several labels: a sigmoid for each type instead of a softmax over the
    types and none."""
    negatives: float = 1.0
    """Share of the candidates without a label that each training step learns from, drawn anew."""
    calibrate: Literal["none", "one", "types"] = "none"
    """Choose on the validation split the probability from which a span is one: the same for
    all types or one for each; `none` is 0.5 (more likely than no span)."""
    decoding: Literal["auto", "flat", "nested", "overlapping"] = "auto"
    """Which spans may stand together: none that share a word, none that cross, or any. The most
    probable such set is the answer. `auto` is nested where training spans overlap, else flat."""

    def __post_init__(self) -> None:
        """Check ranges."""
        super().__post_init__()
        self._require(self.max_width is None or self.max_width > 0, "max_width", "above 0")
        self._require(0 < self.negatives <= 1, "negatives", "above 0 and at most 1")
        wide = None not in (self.max_width, self.max_length) and self.max_width > self.max_length  # type: ignore[operator]
        if wide:
            raise UserError(
                f"--max-width {self.max_width} exceeds --max-length {self.max_length} (words "
                "never outnumber tokens): lower --max-width."
            )


CONFIGS: dict[str, type[TrainConfig]] = {
    "classify": ClassifyConfig,
    "nli": NliConfig,
    "tag": TagConfig,
    "ner": NerConfig,
}
"""The configuration class of each task."""

RESULT_FREE = frozenset({"out", "resume", "track", "save_every", "trust_remote_code"}) | {
    "push_to_hub", "max_tokens", "batching", "active_vocabulary"
}  # fmt: skip
"""Settings that cannot change what a run computes; all others make results incomparable."""

REMOVED = frozenset({"cuda_graphs"})
"""Settings that models saved by earlier versions may have; they never changed results."""


def flag(name: str) -> str:
    """The command line's spelling of a field: ``batch_size`` is ``--batch-size``."""
    return "--" + name.replace("_", "-")


def choices(config: type[TrainConfig], name: str) -> tuple[str, ...]:
    """The legal values of a field of a configuration class that takes one of several names; none
    where there is no such field."""
    return get_args(get_type_hints(config).get(name))


def settings(config: TrainConfig) -> dict[str, Any]:
    """The configuration as plain JSON values, in field order."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config).items()
    }


def from_settings(config: type[TrainConfig], values: dict[str, Any]) -> TrainConfig:
    """The inverse of ``settings``; settings that were removed since are ignored."""
    kept = {name: value for name, value in values.items() if name not in REMOVED}
    return config(**{n: tuple(v) if isinstance(v, list) else v for n, v in kept.items()})
