"""The settings of a run: one dataclass for each task.

The strings under the fields are the help of the command line, the documentation of recipe keys and
the reference of the site. Fields are scalars, literals and tuples of strings, so that a YAML file
and a command line can set all of them. Annotations are evaluated when the module is imported, not
each time the command line reads them.
"""

import dataclasses
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_origin

from finetune.config.description import ECE_METRICS, HIERARCHY, PROBLEMS, TaskDescription
from finetune.config.options import (
    COMMON,
    FACTOR,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Affects,
    Help,
    Limit,
    declared_fields,
    matching,
)
from finetune.config.values import conforms, description, text_encoding
from finetune.registry import TASKS, Registry
from finetune.types import ChoiceQuestion, Question, TokenExample, UserError

_LARGEST = 2**53
"""Bound of the whole numbers in settings: larger ones are not exact in floating point."""
DEFAULT_MODEL = "roberta-base"
"""The encoder of runs that set neither --model nor --init-from."""
OTHER_NAMES = {
    "learning_rate": "lr",
    "output_dir": "out",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "max_seq_length": "max_length",
    "model_name_or_path": "model",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "max_grad_norm": "clip",
    "eval_steps": "eval_every",
    "save_steps": "save_every",
    "metric_for_best_model": "metric",
    "label_smoothing_factor": "label_smoothing",
    "dataset_name": "data",
    "max_train_samples": "limit",
    "report_to": "track",
}
"""Settings by their names in the training scripts of transformers."""
ADVICE = {
    "per_device_train_batch_size": "--batch-size N counts the examples of a step on all devices",
    "per_device_eval_batch_size": "--max-tokens N bounds the memory of a forward pass",
    "gradient_accumulation_steps": "--max-tokens N bounds the memory of a step of any batch size",
    "adam": "write adam_beta2 and adam_epsilon in a recipe, or in Python",
    "fp16": "write --precision fp16",
    "bf16": "write --precision bf16",
    "task_name": "write --data NAME, such as mrpc, or finetune run NAME-roberta-base",
    "dataset_config_name": "write --data ID:CONFIGURATION",
    "pad_to_max_length": "leave it out: batches are not padded",
    "trust_remote_code": "leave it out: training runs no code that comes with a model",
    "save_strategy": "a run saves at each evaluation, or with --save-every N after N steps",
    "train_file": "write --data train=FILE,validation=FILE",
    "validation_file": "write --data train=FILE,validation=FILE",
    "eval_strategy": "a run evaluates after each epoch, or with --eval-every N after N steps",
    "evaluation_strategy": "a run evaluates after each epoch, or with --eval-every N after N steps",
    "logging_steps": "leave it out: the log of a run has about 200 lines",
    "save_total_limit": "leave it out: a run keeps the best model and the last checkpoint",
    "overwrite_output_dir": "name a new --out, or continue the run in it with --resume",
    "lr_scheduler_type": "leave it out: the learning rate falls linearly after --warmup",
    "test_file": "write --data train=FILE,test=FILE",
    "text_column_name": "write --columns text=NAME, or words=NAME for words with tags",
    "label_column_name": "write --columns label=NAME, or tags=NAME for words with tags",
    "load_best_model_at_end": "leave it out: a run keeps the best model",
    "seeds": "call train once for each seed",
    "folds": "write finetune TASK --folds N, which trains a run for each",
    "device": "leave it out: a run takes a GPU if there is one (CUDA_VISIBLE_DEVICES names it)",
    "train_dataset": "give the data, or a dict of them by split",
    "eval_dataset": "give data={'train': …, 'validation': …}",
    "resume_from_checkpoint": "write --resume",
    "push_to_hub": "write finetune push RUN OWNER/NAME after training",
    "do_train": "leave it out: a run trains and evaluates",
    "do_eval": "leave it out: a run trains and evaluates",
    "do_predict": "leave it out: a run predicts its test split",
}
"""What stands here in place of further settings of these scripts."""
IN_MEMORY = "(in memory)"
"""The setting ``data`` of runs whose data come from Python."""
MAX_TOKENS, MAX_TOKENS_ON_CUDA = 4096, 32_768
"""Default tokens per forward pass. On a GPU, most optimizer batches then fit into one pass: the
launches of a second one cost more than its rows."""

M = TypeVar("M")

DATA_AND_WEIGHTS = Affects(data=True, weights=True)
"""What a setting of a task affects, unless its mark says otherwise."""
WEIGHTS = Affects(weights=True)
TRAINING = Affects(weights=True, inherited=False)
"""Settings of the training of one run, which its student does not inherit."""
TRAINING_OF_TASK = Affects(weights=True, inherited=False, shared=False)
RESOURCES = Affects()
"""Settings of memory, time and files."""

WITHOUT_OPTION = frozenset(
    "head_lr layer_decay adam_beta2 adam_epsilon clip label_smoothing classifier_dropout lora "
    "freeze".split()
)
"""Settings of recipes, Python and searches, which no command has as an option: papers report them,
and few people change them."""

_NUMBER = r"[0-9]{1,3}(\.[0-9]{1,6})?"
"""A number in a setting such as `focal:2`."""
EPOCHS = Limit(lambda value: 0 < value <= 1e9, "above 0 and at most 1e9")
SEED = Limit(lambda value: 0 <= value < 2**32, "from 0 to 4294967295")
FREEZE = matching(
    "none|embeddings|[0-9]{1,4}",
    "none, embeddings, or a number of layers (the whole encoder: --tuning head)",
)
_CONTEXT = matching("none|doc|0*[1-9][0-9]{0,5}", "none, doc, or a number of subwords, 1 or more")
LOSS_NAME = matching(
    f"ce|(focal|logit-adjusted)(:{_NUMBER})?",
    "ce, focal, focal:GAMMA, logit-adjusted or logit-adjusted:TAU (for weights see "
    "--class-weights)",
)
_LORA = matching(
    "0*[1-9][0-9]{0,3}(:[^:,]+(,[^:,]+)*)?",
    "a rank from 1 to 9999, perhaps with names of layers, such as 8:query,value",
)
VALIDATION = matching(
    r"auto|none|0?\.(?=0*[1-9])[0-9]{1,9}", "auto, none, or a share between 0 and 1 to hold out"
)
REPLAYED = re.compile(r"(.+):([0-9]{1,6}(?:\.[0-9]{1,6})?)")
REPLAY = matching(
    r"(?!.*:0+(\.0+)?$).+",
    "the folder of a run, perhaps with a share above 0, such as runs/old:0.5",
)


class ScheduleDefaults(NamedTuple):
    """Defaults of the schedule of a run."""

    least_epochs: int = 3
    most_epochs: int = 10
    """Epochs of small data: as many as make 500 steps, from ``least_epochs`` to these."""
    num_steps: int | None = None
    """The number of steps, whatever the settings; None is the number that they give."""
    once: bool = False
    """Whether the model is evaluated once, at the end, and is for few examples."""


def default_max_tokens(device: str) -> int:
    """The default tokens per forward pass on a type of device (``cpu``, ``cuda``, …)."""
    return MAX_TOKENS_ON_CUDA if device == "cuda" else MAX_TOKENS


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The encoder, and which of its weights are trained."""

    group: ClassVar[str] = "model"
    affects: ClassVar[Affects] = TRAINING

    model: Annotated[str | None, COMMON] = None
    """Pretrained encoder: hub id, short name such as `minilm`, or folder. `ID@REVISION` pins a
    branch, tag or commit; the default is the newest commit, which the run records. `minilm` is the
    small encoder of the extra `offline`. Default: `roberta-base`, or the encoder of --init-from."""
    init_from: Annotated[str | None, Help("RUN")] = None
    """Start from the encoder of this run folder, saved model or hub id. A head of the same type
    keeps the weights of labels with the same names; weights of new labels, and always those of
    `ner`, are random. If --model is set too, it must have the same architecture."""
    tuning: Annotated[Literal["full", "lora", "bitfit", "head", "mask"], COMMON] = "full"
    """Weights to train besides the head: the whole encoder (`full`), low-rank matrices added to its
    linear layers (`lora`; needs the extra `peft`), its biases (`bitfit`), none (`head`), or a mask
    that sets weights of its linear layers to 0 (`mask`). All save a complete model; `lora` also
    saves a small `adapter/`."""
    lora: Annotated[str, _LORA] = "8"
    """Rank of the matrices of `--tuning lora`, perhaps with names of the linear layers to adapt
    (`8:query,value`); default: all of the encoder. α equals the rank (Hu et al., 2021)."""
    freeze: Annotated[str, FREEZE] = "none"
    """Weights to freeze: `none`, `embeddings`, or N (the embeddings and the N lowest layers)."""
    bilstm: Annotated[bool, Affects(weights=True, inherited=False)] = False
    """Put a bidirectional LSTM between encoder and head (Rahman et al., 2024). Plain transformers
    cannot load the saved model."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The data, and their splits."""

    group: ClassVar[str] = "data"
    affects: ClassVar[Affects] = Affects(data=True, scores=True, shared=False)

    data: Annotated[str, COMMON] = ""
    """A folder, a file, `train=FILE,test=FILE`, or a hub data set (`mnli`). A folder has
    train/validation/test files, or is written by datasets' save_to_disk. `FILE+FILE` reads several
    files as one. A hub data set may name its configuration: `nyu-mll/glue:mrpc`."""
    columns: Annotated[tuple[str, ...], Help("ROLE=COLUMN …", common=True)] = ()
    """Names of the columns to read, if they are not recognized: `text=review label=stars`. Roles
    are text, pair, label and negative, or words, tags, spans, relations and document. Without a
    header, columns are numbered from 0."""
    encoding: Annotated[str, Affects(data=True, shared=False)] = "utf-8"
    """Text encoding of the data files, such as `cp1252`, `utf-16` or `gb18030`."""
    validation: Annotated[str, Help("SHARE"), VALIDATION] = "auto"
    """Fraction of the training data to hold out for selecting the best model, if the data have no
    validation split. `auto` holds out 0.1, at most about 10,000 examples; `none` trains on all rows
    and keeps the last model. Labels are stratified, equal texts stay together, and so do documents
    if there are 20 or more."""
    test_sets: Annotated[tuple[str, ...], Help("NAME=DATA …")] = ()
    """More test sets, each scored as the split test_NAME: `de=xnli:de fr=french.jsonl`. If a test
    set has several splits, its test split is scored."""
    limit: Annotated[int | None, COMMON, POSITIVE, Affects(weights=True, shared=False)] = None
    """Train on the first N training examples."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The optimizer, its schedule, and the arithmetic."""

    group: ClassVar[str] = "training"
    affects: ClassVar[Affects] = WEIGHTS

    epochs: Annotated[float | None, COMMON, EPOCHS, TRAINING_OF_TASK] = None
    """Passes over the training data; default: 3, or up to 10 if 3 have fewer than 500 steps."""
    steps: Annotated[int | None, POSITIVE, TRAINING_OF_TASK] = None
    """Number of optimizer steps, instead of --epochs."""
    batch_size: Annotated[int, COMMON, POSITIVE, TRAINING_OF_TASK] = 32
    """Examples per optimizer step, summed over all devices."""
    max_tokens: Annotated[int | None, COMMON, POSITIVE, RESOURCES] = None
    """Tokens per forward pass: affects memory and speed, never results. Default: 4096, or 32768 on
    a CUDA device. A step with more tokens takes several passes (gradient accumulation)."""
    max_length: Annotated[int | None, COMMON, POSITIVE, Affects(weights=True, shared=False)] = None
    """Longest sequence in tokens; default: the model's limit, at most 512."""
    lr: Annotated[float | None, COMMON, POSITIVE, TRAINING] = None
    """Peak learning rate of the encoder; default: 2e-5, or 1e-4 for a small encoder (hidden size
    below 512). --tuning multiplies the default: lora by 20, bitfit by 50, head by 100, mask by
    5."""
    head_lr: Annotated[float | None, POSITIVE, TRAINING_OF_TASK] = None
    """Peak learning rate of the new head; default: --lr, or 10 times --lr for `ner`."""
    layer_decay: Annotated[float, FACTOR, TRAINING] = 1.0
    """Factor by which the learning rate decreases from each layer to the layer below; 1 means no
    decay, 0.8 to 0.9 is usual."""
    warmup: Annotated[float, NOT_NEGATIVE, TRAINING] = 0.1
    """Steps of linear warm-up, or, if below 1, their fraction of all steps. A linear decay to 0
    follows."""
    weight_decay: Annotated[float, NOT_NEGATIVE, TRAINING] = 0.01
    """Decoupled weight decay of weight matrices; biases and norms have none."""
    adam_beta2: Annotated[float, SHARE, TRAINING] = 0.999
    """Adam's β2; some papers use 0.98."""
    adam_epsilon: Annotated[float, POSITIVE, TRAINING] = 1e-8
    """Adam's ε; some papers use 1e-6."""
    clip: Annotated[float, NOT_NEGATIVE, TRAINING] = 1.0
    """Norm to which larger gradients are clipped; 0 turns clipping off."""
    seed: Annotated[int, COMMON, SEED, Affects(data=True, weights=True, inherited=False)] = 1
    """Seed of the new head, the data order and dropout."""
    metric: Annotated[str | None, Affects(scores=True, shared=False)] = None
    """Validation metric that selects the best model; default: the main metric of the task."""
    custom_metrics: Annotated[
        tuple[str, ...], Help("FILE.py:FUNCTION …"), Affects(scores=True, acts="runs a Python file")
    ] = ()
    """Custom metrics: functions of gold and predictions, which --metric can name. The files are
    executed."""
    custom_loss: Annotated[
        str | None, Help("FILE.py:FUNCTION"), Affects(weights=True, acts="runs a Python file")
    ] = None
    """Custom loss: a function of the logits and the targets of a batch that returns the sum of the
    losses and the number to divide it by. The file is executed."""
    eval_every: Annotated[int | None, POSITIVE, TRAINING_OF_TASK] = None
    """Steps between evaluations on the validation split; default: one epoch."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the forward and backward pass; the optimizer keeps float32 weights. `auto` is
    bf16 if the hardware supports it, else fp32. `fp16`, with loss scaling, is for GPUs without
    bf16."""
    gradient_checkpointing: Annotated[bool, Affects(inherited=False)] = False
    """Save memory: recompute activations in the backward pass, which takes a third more time."""


Resume = bool | Literal["auto"]
"""True continues a run, False starts one; ``"auto"`` continues a run if there is one."""


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The run folder, and where else results go."""

    group: ClassVar[str] = "output"
    affects: ClassVar[Affects] = Affects(inherited=False)

    out: Annotated[
        str | None,
        Help("FOLDER", common=True),
        Affects(inherited=False, shared=False, acts="writes to a folder of this machine"),
    ] = None
    """Run folder; default: a new folder in `runs/`."""
    resume: Annotated[
        Resume,
        Help("[auto]", common=True),
        Affects(inherited=False, acts="continues what is in a folder of this machine"),
    ] = False
    """Continue the run in --out from its last checkpoint; `auto` starts a new run if there is none.
    Without --out, the newest run of the same name continues."""
    save_every: Annotated[int | None, POSITIVE] = None
    """Steps between checkpoints (`last/`); default: one at each evaluation."""
    track: Annotated[
        Literal["none", "tensorboard", "mlflow", "wandb", "trackio", "comet_ml"],
        Affects(inherited=False, acts="sends scores to a service"),
    ] = "none"
    """Also send losses and scores to this tracker."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(OutputSettings, TrainingSettings, DataSettings, ModelSettings):
    """Settings of every task."""

    description: ClassVar[TaskDescription]
    unused: ClassVar[tuple[str, ...]] = ()
    """Settings of all tasks that do not apply to this one: they are no options of its command."""

    @property
    def new_encoder(self) -> str | None:
        """Name of the configuration of an encoder with random weights, in place of ``model``."""
        return None

    @property
    def schedule(self) -> ScheduleDefaults:
        """The defaults of --epochs, --steps and --eval-every."""
        return ScheduleDefaults()

    @property
    def replayed(self) -> tuple[str, float] | None:
        """The run whose data are mixed in, and the number of its examples for each new one."""
        return None

    @property
    def trains_language_model(self) -> bool:
        """True if training keeps the checkpoint's language-model head in place of a new head."""
        return False

    @property
    def lr_factor(self) -> float:
        """Default learning rate in multiples of the usual one of fine-tuning."""
        return 1.0

    def _resolved(self) -> dict[str, Any]:
        hints = setting_types(type(self)).items()
        resolved = {name: _as_setting(name, getattr(self, name), hint) for name, hint in hints}
        for name in ("validation", "lora", "freeze"):  # Python and YAML may give a number
            resolved[name] = str(getattr(self, name))
        if self.model is None and self.init_from is None and self.new_encoder is None:
            resolved["model"] = DEFAULT_MODEL
        return resolved

    def __post_init__(self) -> None:
        vars(self).update(self._resolved())
        hints = setting_types(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not conforms(value, hints[field.name]):
                wanted = description(hints[field.name])
                raise UserError(f"{flag(field.name)} must be {wanted}, not {value!r:.60}.")
            finite = not isinstance(value, float) or math.isfinite(value)
            if not finite or (isinstance(value, int) and abs(value) > _LARGEST):
                raise UserError(
                    f"{flag(field.name)} must be a finite number, not {value!r:.60}, and whole "
                    f"numbers at most {_LARGEST}."
                )
        require_legal(type(self), vars(self))
        column_map(self.columns)
        named_test_sets(self.test_sets)
        text_encoding(self.encoding)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.unused:
            self._refuse(self.unused, f"does not apply to {self.description.name}: leave it out.")
        if self.validation == "none":
            self._refuse(
                ("metric", "calibrate"),
                "needs validation data: leave it out, or leave out --validation none.",
            )
        if self.tuning != "lora":
            self._refuse(("lora",), "needs --tuning lora: leave it out.")
        if self.tuning == "head":
            reason = "does not go with --tuning head, which freezes the whole encoder"
            self._refuse(("freeze",), f"{reason}: leave it out.")
        if self.max_length and self.max_tokens and self.max_length > self.max_tokens:
            raise UserError(
                f"--max-length {self.max_length} exceeds --max-tokens {self.max_tokens} (one "
                "sequence must fit into a forward pass): raise --max-tokens."
            )

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            if (value := getattr(self, name, None)) != getattr(type(self), name, None):
                raise UserError(f"{flag(name)} {value} {reason}")

    def tokens_on(self, device: str) -> int:
        """The tokens per forward pass on a type of device (``cpu``, ``cuda``, …)."""
        return self.max_tokens or default_max_tokens(device)


@dataclass(frozen=True, kw_only=True)
class LabelConfig(TrainConfig):
    """Settings of the tasks that predict labels."""

    class_weights: Annotated[str, COMMON] = "none"
    """Weight of each class in the loss: `none`, `auto` or `a=1,b=2.5`. `auto` is the inverse
    frequency."""
    loss: Annotated[str, LOSS_NAME] = "ce"
    """Loss: cross entropy (`ce`), focal loss (`focal:GAMMA`), which gives less weight to correctly
    predicted examples (γ is 2 by default), or logit-adjusted cross entropy (`logit-adjusted:TAU`),
    which adds τ (default 1) times the logarithms of the class frequencies to the logits, for
    balanced errors."""
    label_smoothing: Annotated[float, SHARE] = 0.0
    """Fraction of the gold probability that the loss spreads evenly over all classes, or over yes
    and no of each of several labels (Szegedy et al., 2016); 0.1 is usual."""
    sampling: Annotated[
        Literal["none", "balanced"], Affects(data=True, weights=True, inherited=False)
    ] = "none"
    """Oversample rare classes: `balanced` draws all classes equally often. The size of an epoch
    stays the same."""
    replay: Annotated[str | None, Help("RUN[:SHARE]"), REPLAY] = None
    """Mix in data of an earlier run, so that a model that learns new labels keeps the old ones:
    SHARE examples for each new one (default 1). Its test split is also scored, as test_old."""

    def loss_number(self, name: str) -> float | None:
        """The number of a loss, γ of `focal` or τ of `logit-adjusted`; None if it is another."""
        loss, _, number = self.loss.partition(":")
        return float(number or {"focal": 2, "logit-adjusted": 1}[name]) if loss == name else None

    @property
    def replayed(self) -> tuple[str, float] | None:
        if self.replay is None:
            return None
        match = REPLAYED.fullmatch(self.replay)
        return (match[1], float(match[2])) if match else (self.replay, 1.0)

    def _check_combinations(self) -> None:
        super()._check_combinations()
        if self.custom_loss:
            self._refuse(
                ("loss", "label_smoothing", "class_weights"),
                "is part of the built-in loss, which --custom-loss replaces: leave one of them "
                "out.",
            )
        if self.loss_number("logit-adjusted") is not None:
            self._refuse(
                ("class_weights", "sampling"),
                f"must be left out with --loss {self.loss}, which itself corrects for the "
                "frequency of the classes.",
            )
        if self.loss_number("focal") is not None:
            self._refuse(
                ("label_smoothing",),
                f"does not go with --loss {self.loss}, which depends on the probability of one "
                "gold class: leave one of them out.",
            )


@dataclass(frozen=True, kw_only=True)
class TextConfig(LabelConfig):
    """Settings of the tasks that label texts or pairs of texts."""

    long_text: Literal["truncate", "window"] = "truncate"
    """Treatment of texts over --max-length: `truncate` and count them, or read them in overlapping
    windows and average the scores (`window`)."""
    classifier_dropout: Annotated[float | None, SHARE] = None
    """Dropout before the classifier; default: the model's, or 0 with --pair-encoder bi or poly."""
    pair_encoder: Literal["cross", "bi", "poly"] = "cross"
    """Encode a pair of texts together (`cross`), or each text alone and compare their vectors
    (`bi`, `poly`). The latter is less accurate, but vectors of candidates are computed once and can
    be ranked for any query. `poly` compares 16 vectors of the first text."""
    per_class: Annotated[int | None, POSITIVE] = None
    """Train on N random examples of each label. --seed chooses them; a larger N includes the
    examples of a smaller one."""
    few_shot: Annotated[bool, COMMON] = False
    """Train in two phases, for a few examples of each label (SetFit; Tunstall et al., 2022): the
    encoder learns vectors of texts with a cosine of 1 for equal labels and 0 for different ones;
    then a logistic regression is fitted to them (with `--tuning head` the only phase). By default,
    --epochs is 20, or fewer if 20 have more than 500 steps, with one evaluation, at the end. Plain
    transformers load the encoder of the saved model, without the classifier."""
    positive: Annotated[str | None, Help("LABEL")] = None
    """Positive label of the metric `f1`, if there are two labels. Default: X for the labels X and
    not X, yes for labels such as yes and no, else the label that is rarer in training."""
    calibrate: Literal["none", "temperature"] = "none"
    """Calibrate probabilities by temperature scaling on the validation split. Predicted labels do
    not change. `finetune predict` applies the temperature; pipelines of transformers and ONNX
    graphs do not."""

    @property
    def schedule(self) -> ScheduleDefaults:
        if not self.few_shot:
            return ScheduleDefaults()
        steps = 1 if self.tuning == "head" else None  # which changes no weight
        return ScheduleDefaults(1, 20, steps, once=True)

    def _check_combinations(self) -> None:
        super()._check_combinations()
        if not self.few_shot:
            return
        self._refuse(
            ("loss", "label_smoothing", "pair_encoder", "classifier_dropout", "head_lr"),
            "does not apply to --few-shot, whose classifier is a logistic regression on the "
            "vectors of texts: leave it out.",
        )
        if self.long_text == "window":
            raise UserError("--long-text window: --few-shot reads one sequence of each text.")
        if self.tuning == "head":
            reason = "--few-shot --tuning head, which fits the classifier once: leave it out."
            self._refuse(("epochs", "steps"), f"does not apply to {reason}")


def _custom_text_head(settings: Mapping[str, Any]) -> bool:
    return settings.get("pair_encoder", "cross") != "cross" or bool(settings.get("few_shot"))


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(TextConfig):
    """Text classification: one label, several labels, or a number for each text (or pair).

    Examples:
        finetune classify --model roberta-base --data sst2
        finetune classify --model minilm --data train=train.csv,test=test.csv --columns text=review
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="classify",
        title="text classification",
        joint=True,
        metrics=(*dict.fromkeys(chain.from_iterable(PROBLEMS.values())), *HIERARCHY),
        custom_head=_custom_text_head,
    )
    data: str = "sst2"
    problem: Annotated[Literal["auto", "single", "multi", "regression"], COMMON] = "auto"
    """Predict one label (`single`), any number of labels (`multi`), or a number (`regression`);
    `auto` decides by the training labels."""
    label_separator: Annotated[
        str | None,
        Help("TEXT"),
        matching("(?s).+", "at least one character"),
        Affects(scores=True, shared=False),
    ] = None
    """Separator of the levels of hierarchical labels, such as `/` in sport/football. Predictions
    are also scored at each level, and by the ancestors that gold and predicted labels share
    (`hierarchical_f1`). Training and predictions do not change."""


@dataclass(frozen=True, kw_only=True)
class NliConfig(TextConfig):
    """Natural language inference and other classification of text pairs.

    Examples:
        finetune nli --model roberta-base
        finetune nli --model minilm --data examples/data/nli --epochs 2
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="nli",
        title="classification of text pairs",
        example_data="nli",
        pairs=True,
        joint=True,
        metrics=PROBLEMS["single"],
        custom_head=_custom_text_head,
    )
    data: str = "mnli"


@dataclass(frozen=True, kw_only=True)
class ChoiceConfig(TrainConfig):
    """Multiple choice: choose the right answer to a question, perhaps about a context.

    Examples:
        finetune choice --model roberta-base --data swag
        finetune choice --model minilm --data examples/data/choice --epochs 2
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="choice",
        title="multiple choice",
        example_data="choice",
        examples=ChoiceQuestion,
        example_file="QUESTIONS.jsonl",
        windows=False,
        grouped=True,
        skipped_checks=("labels",),
        metrics=("accuracy", *ECE_METRICS),
        pipeline="multiple-choice",
        auto_class="AutoModelForMultipleChoice",
        predicts="one of the choices of a question",
        example='{"question": "Where does a fish live?", "choices": ["in water", "on the moon"]}',
    )
    data: str = "swag"
    classifier_dropout: Annotated[float | None, SHARE] = None
    """Dropout before the score of a choice; default: the model's."""
    calibrate: Literal["none", "temperature"] = "none"
    """Calibrate probabilities by temperature scaling on the validation split. Predicted choices do
    not change."""


@dataclass(frozen=True, kw_only=True)
class WordConfig(LabelConfig):
    """Settings of the tasks that read sentences as words."""

    context: Annotated[str, COMMON, _CONTEXT] = "none"
    """Context of each sentence from its document: `none`, N subwords on each side, or `doc`, which
    fills both sides evenly up to --max-length. Words of the context are whole, and have no
    prediction and no loss. Sentences over --max-length are read in windows without context."""

    def _resolved(self) -> dict[str, Any]:
        return super()._resolved() | {"context": str(self.context)}  # Python may give an int


@dataclass(frozen=True, kw_only=True)
class TagConfig(WordConfig):
    """Word tagging: named entities, parts of speech, chunks.

    Examples:
        finetune tag --model roberta-base --data conll2003
        finetune tag --model minilm --data train=train.conll,test=test.conll --crf
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="tag",
        title="word tagging",
        example_data="ner",
        examples=TokenExample,
        joint=True,
        metrics=(
            "span_precision_conll",
            "span_recall_conll",
            "span_f1_conll",
            "span_f1_strict",
            "tag_accuracy",
            "accuracy",
            "macro_f1",
            "weighted_f1",
            "matthews",
            *ECE_METRICS,
        ),
        pipeline="token-classification",
        own_pipeline="crf-tagger",
        custom_head=lambda settings: bool(settings.get("crf")),
        decoding="legal sequences of tags",
        example="Maria Keller flew from Lisbon to Oslo.",
    )
    data: str = "conll2003"
    scheme: Literal["auto", "IO", "BIO", "BIOES"] = "auto"
    """Tag scheme for training; `auto` uses BIO for spans and leaves other tags unchanged."""
    label_subwords: Literal["first", "all"] = "first"
    """Train on the first subword of each word, or on all its subwords (`B-` continues as `I-`) and
    score it by their mean log-probability."""
    decoding: Literal["constrained", "greedy"] = "constrained"
    """Predict the most probable tag sequence that the scheme allows (Viterbi), or the most probable
    tag of each word (`greedy`). They are the same for tags without a span scheme."""
    calibrate: Literal["none", "temperature"] = "none"
    """Calibrate probabilities by temperature scaling on the validation split. Predicted tags do not
    change. `finetune predict` applies the temperature; pipelines of transformers and ONNX graphs do
    not."""
    crf: Annotated[bool, COMMON] = False
    """Add a linear-chain CRF over words, and predict its best legal tag sequence."""

    def _check_combinations(self) -> None:
        super()._check_combinations()
        names = "label_subwords", "decoding", "calibrate", "class_weights", "loss"
        if self.crf:
            self._refuse((*names, "label_smoothing"), "does not go with --crf: leave it out.")


@dataclass(frozen=True, kw_only=True)
class NerConfig(WordConfig):
    """Named entities as labeled spans of words, also nested ones.

    Examples:
        finetune ner --model roberta-base --data conll2003
        finetune ner --model minilm --data examples/data/nested --decoding nested
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="ner",
        title="named entity recognition over spans",
        example_data="ner",
        examples=TokenExample,
        joint=True,
        metrics=(
            "span_precision_strict",
            "span_recall_strict",
            "span_f1_strict",
            "span_f1_uncalibrated",
        ),
        searched={"head_lr": (1, 50)},
        pipeline="token-classification",
        own_pipeline="span-ner",
        custom_head=lambda settings: True,
        example="The University of Lisbon is in Portugal.",
    )
    unused: ClassVar[tuple[str, ...]] = ("label_smoothing",)  # nearly all candidates have no type
    data: str = "conll2003"
    representation: Literal["boundary", "ffn", "attention"] = "boundary"
    """Representation of a span. `boundary`: its first and last word and the mean of its words;
    `ffn`: the same, with separate networks for start and end; `attention`: attention over its words
    instead of the mean."""
    max_width: Annotated[int | None, POSITIVE] = None
    """Longest candidate span in words; default: long enough for 99.5 % of the training spans."""
    multi_label: bool = False
    """Allow several labels for the same words, by a sigmoid for each type instead of a softmax over
    all types and "no span"."""
    calibrate: Literal["none", "one"] = "none"
    """Choose the probability threshold of predicted spans on the validation split (`one`); `none`
    uses 0.5."""
    decoding: Annotated[Literal["auto", "flat", "nested", "overlapping"], COMMON] = "auto"
    """Predict spans that share no word (`flat`), that may lie inside each other (`nested`), or that
    may overlap in any way (`overlapping`). The most probable set of spans is chosen. `auto` is
    nested if training spans overlap, else flat."""

    def _check_combinations(self) -> None:
        super()._check_combinations()
        if self.max_width and self.max_length and self.max_width > self.max_length:
            raise UserError(
                f"--max-width {self.max_width} exceeds --max-length {self.max_length} (words "
                "never outnumber tokens): lower --max-width."
            )
        if self.loss_number("logit-adjusted") is not None:
            raise UserError(
                f"--loss {self.loss} does not apply to spans, as nearly all candidates have no "
                "type: use --loss focal, or --calibrate one."
            )


@dataclass(frozen=True, kw_only=True)
class RelationsConfig(WordConfig):
    """Relations between given spans, such as the entities that a `ner` run predicts.

    Examples:
        finetune relations --model roberta-base --data train=train.jsonl,test=test.jsonl
        finetune relations --model minilm --data my-data --pairs all
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="relations",
        title="relations between spans",
        example_data="relations",
        examples=TokenExample,
        given_spans=True,
        example_file="SPANS.jsonl",
        windows=False,
        metrics=(
            "relation_precision_strict",
            "relation_recall_strict",
            "relation_f1_strict",
            "relation_f1",
            "relation_f1_macro",
        ),
        pipeline="token-classification",
        custom_head=lambda settings: True,
    )
    pairs: Annotated[Literal["seen", "all"], COMMON] = "seen"
    """Pairs of spans to classify: `all`, or only pairs whose types have a relation in the training
    data (`seen`). The order of the types counts. Types that do not occur in training are paired
    with all types."""
    classifier_dropout: Annotated[float, SHARE] = 0.1
    """Dropout before the classifier."""


@dataclass(frozen=True, kw_only=True)
class QAConfig(TrainConfig):
    """Extractive question answering: answers that are spans of a given context.

    Examples:
        finetune qa --model roberta-base --data squad_v2
        finetune qa --model minilm --data examples/data/qa --max-answer 10
    """

    description: ClassVar[TaskDescription] = TaskDescription(
        name="qa",
        title="extractive question answering",
        example_data="qa",
        examples=Question,
        pairs=True,
        skipped_checks=("labels", "pairs"),
        auto_class="AutoModelForQuestionAnswering",
        predicts="the part of a context that answers a question, or that there is none",
        example='("Who is cooking dinner?", "A man is cooking dinner.")',
        metrics=("exact_match", "f1", "hasans_exact", "hasans_f1", "noans_exact", "noans_f1"),
        pipeline="question-answering",
        decoding="the best answer over all windows of a context",
    )
    data: str = "squad"
    max_answer: Annotated[int, COMMON, POSITIVE] = 30
    """Longest answer in words."""
    overlap: Annotated[int | None, NOT_NEGATIVE] = None
    """Tokens that neighboring windows of a long context share; default: 128, at most half of
    --max-length."""


CONFIGS = Registry[type[TrainConfig]]({name: paths.config for name, paths in TASKS.items()})
"""The configuration class of each task."""


def flag(name: str) -> str:
    """The option of a field: ``batch_size`` is ``--batch-size``; settings without one are named."""
    return name if name in WITHOUT_OPTION else "--" + name.rstrip("_").replace("_", "-")


def _as_setting(name: str, value: Any, hint: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):  # also those of numpy
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    is_tuple = get_origin(hint) is tuple
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(item, str | Path | numbers.Real):
                raise UserError(f"{flag(name)}: {key} must be a text or a number, not {item!r:.60}")
        items = tuple(f"{key}={item}" for key, item in value.items())
        return items if is_tuple else ",".join(items)
    return tuple(value) if is_tuple and isinstance(value, list) else value


def column_map(columns: Sequence[str]) -> dict[str, str]:
    """Parse `role=column` items into a mapping; commas may separate them, too."""
    items = [part for item in columns for part in re.split(r",(?=\w+=)", item)]
    wanted = "role=column, for instance text=sentence"
    return _by_name("--columns", items, "[^=]*=.*", wanted, "write one column for each role")


def named_test_sets(test_sets: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME=DATA`` items into a mapping from the split ``test_NAME`` to its data."""
    wanted = "NAME=DATA, with letters, digits, - and _ in the name, for instance de=xnli:de"
    sets = _by_name("--test-sets", test_sets, r"\w[\w-]*=.+", wanted, "choose another name")
    return {f"test_{name}": data for name, data in sets.items()}


def _by_name(
    option: str, items: Sequence[str], pattern: str, wanted: str, advice: str
) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in items:
        if not re.fullmatch(pattern, item, re.DOTALL):
            raise UserError(f"{option} must be {wanted}, not {item!r}.")
        name, _, value = item.partition("=")
        if name in values:
            raise UserError(f"{option} names {name!r} twice: {advice}.")
        values[name] = value
    return values


def max_context_subwords(context: str, max_length: int) -> int:
    """The largest number of subwords of context on one side; 0 for ``none``."""
    return {"none": 0, "doc": max_length}[context] if context.isalpha() else int(context)


def setting_types(config: type[TrainConfig]) -> Mapping[str, Any]:
    """Look up the type of each setting, without its marks."""
    return {name: declared.type for name, declared in declared_fields(config).items()}


def marks(config: type[TrainConfig], mark_type: type[M]) -> Mapping[str, M]:
    """Collect the marks of one class in the annotations of settings, by setting."""
    return {
        name: mark
        for name, declared in declared_fields(config).items()
        for mark in declared.marks
        if isinstance(mark, mark_type)
    }


def require_legal(config: type[TrainConfig], values: Mapping[str, Any]) -> None:
    """Raise UserError if a setting has a value outside its limits."""
    for name, limit in marks(config, Limit).items():
        value = values.get(name)
        if value is not None and not limit.legal(value):
            raise UserError(f"{flag(name)} must be {limit.wanted}, not {value!r:.60}.")


def affects_of(config: type[TrainConfig]) -> Mapping[str, Affects]:
    """Look up the parts of a run that each setting may affect."""
    classes = {name: declared.classes[0] for name, declared in declared_fields(config).items()}
    defaults = {n: vars(cls).get("affects", DATA_AND_WEIGHTS) for n, cls in classes.items()}
    return {**defaults, **marks(config, Affects)}


def affects_results(name: str) -> bool:
    """Whether a setting may change results of a run other than through the data.

    Runs that differ in such a setting cannot be compared. Names of other things may, too.
    """
    mark = affects_of(TrainConfig).get(name)
    return mark is None or mark.results


def settings(config: TrainConfig) -> dict[str, Any]:
    """Convert the configuration to plain JSON values, in field order."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config).items()
    }


def with_current_names(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a saved run by their current names: ``adam`` had two numbers in one text."""
    values = dict(saved)
    if isinstance(numbers_of_adam := values.pop("adam", None), str):
        values["adam_beta2"], values["adam_epsilon"] = map(float, numbers_of_adam.split(","))
    return values


def from_settings(config: type[TrainConfig], values: Mapping[str, Any]) -> TrainConfig:
    """Rebuild the configuration from saved ``settings``."""
    typed: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return config(**typed)
