"""The interface that every task implements: encoding, loss, decoding and scores.

A task is immutable and holds no data. ``Any`` in a signature is the configuration, record, example
or prediction class of the task, or the output of its head: subclasses narrow it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from finetune.config.tasks import LabelConfig, TrainConfig
from finetune.data import Dataset, check_data, unmeasured_labels, with_held_out_splits
from finetune.data.json_files import read_object
from finetune.data.label_names import renamed
from finetune.data.sources import is_test
from finetune.evaluation.metrics import DEFAULT_METRICS
from finetune.models.families import FAMILIES, position_limit
from finetune.models.loading import (
    is_hub_id,
    load_config,
    model_commit,
    new_config,
    resolve_model,
)
from finetune.models.top_layers import TOP_LAYERS
from finetune.models.warm_start import WarmStart, find_warm_start
from finetune.preprocessing.encodings import Encoded, Encodings, Ragged
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import TASK_FILE
from finetune.types import (
    Batch,
    Encoding,
    Example,
    LabelSet,
    Partial,
    TextExample,
    UserError,
    quantity,
)

if TYPE_CHECKING:
    import torch

C = TypeVar("C")

OVERLAP = 64
CHUNK = 8192
"""Number of examples to tokenize at a time."""
FITTED: Mapping[str, Any] = {"temperature": None, "thresholds": {}}
"""Fields of records that are fitted on the validation split after training; their defaults."""


@dataclass(frozen=True, kw_only=True)
class TaskRecord(ABC):
    """Everything that is saved with a model in order to use it again (``finetune.json``).

    Each task adds the fields that it derives from training data or fits on validation data.
    """

    config: TrainConfig
    labels: LabelSet
    max_length: int  # in tokens, special tokens included
    pairs: bool | None = None
    """Whether examples are pairs of texts; None for words and for data of both kinds."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of predictions, as in ``DEFAULT_METRICS``."""

    @property
    def metric(self) -> str:
        """Name of the metric that selects the best model (higher is better)."""
        return self.config.metric or DEFAULT_METRICS[self.kind]

    @property
    def overlap(self) -> int:
        """Number of tokens that neighboring windows of a long text share."""
        overlap, largest = self.config.overlap, self.max_length // 2
        if overlap is not None and overlap > largest:
            raise UserError(
                f"--overlap {overlap} is over half of --max-length {self.max_length}: write "
                f"{largest} or less."
            )
        return min(OVERLAP, largest) if overlap is None else overlap

    def extra_fields(self) -> dict[str, Any]:
        """Return the fields under ``extra`` in ``finetune.json``."""
        own = dataclasses.fields(self)[3:]  # without config, labels and max_length
        values = {field.name: getattr(self, field.name) for field in own}
        if values.get("temperature", 1.0) is None:  # not fitted
            del values["temperature"]
        return values

    def unfitted(self) -> Self:
        """Return the record without the values fitted by an earlier training run."""
        own = self.extra_fields()
        return replace(self, **{name: value for name, value in FITTED.items() if name in own})


@dataclass(frozen=True, eq=False)
class Task(ABC):
    """The base class of all tasks."""

    record: TaskRecord
    tokenizer: SubwordTokenizer
    _warm_start: WarmStart | None = None

    name: ClassVar[str]
    """The name of the command, as in ``TASKS``."""
    reads_targets: ClassVar[bool] = False
    """Whether the model reads the targets of a batch, also for predictions."""
    reads_words: ClassVar[bool]
    """Whether examples are words (``TokenExample``) and not whole texts (``TextExample``)."""
    skipped_checks: ClassVar[Collection[str]] = ()
    """The data checks that do not apply."""
    reads_windows: ClassVar[bool] = True
    """Whether several sequences of an example are windows of a long one."""
    record_class: ClassVar[type[TaskRecord]]
    _gold: ClassVar[attrgetter[Any]]
    """Return the gold of an example, None if it has none."""

    @classmethod
    def load(cls, config: TrainConfig, data: Any = None) -> tuple[Task, Dataset]:
        """Read and prepare the data, derive the labels, load the tokenizer (``load_task``)."""
        starting_config(config)  # a wrong name of a model is reported before data are downloaded
        if not isinstance(data, Dataset):
            data = cls.read(config, config.data if data is None else data)
        if isinstance(config, LabelConfig) and (config.labels_case == "fold" or config.label_map):
            fold = config.labels_case == "fold"
            data = renamed(data, fold=fold, map_file=config.label_map)
        data = cls.prepare(config, data)
        if "train" not in data.splits:
            raise UserError(
                f"{config.data}: there is no train split (found: {', '.join(data.splits)}). "
                "Name it with --data train=FILE,test=FILE."
            )
        if config.resume:
            data = replace(data, label_order=_saved_labels(config) or data.label_order)
        if not config.predict_unlabeled:
            data = cls._without_unlabeled_tests(data)
        data = _checked(data, cls.skipped_checks)
        derived = cls.derive(config, data)
        data = with_held_out_splits(data, config)
        warm_start, tokenizer = load_tokenizer(
            config, cls, derived["labels"], derived.get("problem")
        )
        limit = sequence_limit(config, tokenizer, warm_start)
        record = cls.record_class(config=config, max_length=limit, **derived)
        data = limited(data, config)
        notes = [*data.notes, *unmeasured_labels(data), *cls.notes(record, data)]
        notes += [warm_start.note] if warm_start else []
        return cls(record, tokenizer, warm_start), replace(data, notes=notes)

    @classmethod
    @abstractmethod
    def read(cls, config: Any, source: Any) -> Dataset:
        """Read ``config.data``, or other data of its kinds or in memory (``resolve``)."""

    @classmethod
    def prepare(cls, config: Any, data: Dataset) -> Dataset:
        """Convert labels for the task; drop rows without gold and count them in the notes."""
        return data

    @classmethod
    def _without_unlabeled_tests(cls, data: Dataset) -> Dataset:
        """Leave out test splits without any gold: nothing can be scored on them."""
        unlabeled = {
            split: examples
            for split, examples in data.splits.items()
            if is_test(split) and all(cls._gold(example) is None for example in examples)
        }
        notes = [
            f"{split}: {quantity(len(examples), 'example')} without labels, which are not "
            "predicted (--predict-unlabeled predicts them)"
            for split, examples in unlabeled.items()
        ]
        splits = {split: data.splits[split] for split in data.splits if split not in unlabeled}
        return replace(data, splits=splits, notes=[*data.notes, *notes])

    @classmethod
    @abstractmethod
    def derive(cls, config: Any, data: Dataset) -> dict[str, Any]:
        """Derive the record's fields from the training data: ``labels`` and those it adds."""

    @classmethod
    def classes(cls, example: Any) -> Collection[str]:
        """Return the classes of an example, which ``--sampling`` balances."""
        return ()

    @classmethod
    def notes(cls, record: Any, data: Dataset) -> list[str]:
        """Return notes for the log on how settings and data fit together."""
        return []

    def encode(self, examples: Sequence[Example]) -> Encoded:
        """Turn examples into sequences of token ids: one for each example, or several windows."""
        chunks = (examples[start : start + CHUNK] for start in range(0, len(examples), CHUNK))
        with _without_garbage_collection():
            encoded = Encoded.joined([Encoded.of(*self._sequences(chunk)) for chunk in chunks])
        return replace(encoded, notes=tuple(self._encoding_notes(examples, encoded)))

    @abstractmethod
    def _sequences(self, examples: Sequence[Any]) -> tuple[list[list[Encoding]], int]:
        """Return the sequences of each example, and how many texts or words were cut to fit."""

    def _encoding_notes(self, examples: Sequence[Any], encoded: Encoded) -> list[str]:
        """Return notes for the log on parts of examples that the model cannot read or predict."""
        ids = encoded.sequences.ids.values
        return self.tokenizer.unreadable(int((ids == self.tokenizer.unknown).sum()), len(ids))

    def collate(self, encodings: Iterable[Encoding]) -> dict[str, torch.Tensor]:
        """Make the targets of a batch of sequences, in their order; none if gold is missing."""
        targets = Encodings.of(encodings).targets
        return {} if targets is None else self._targets(targets)

    @abstractmethod
    def _targets(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """Make the targets of a batch from the targets of its sequences."""

    @abstractmethod
    def head(self, folder: str | Path | None = None) -> Any:
        """Make a new model on the configured encoder, or load the model saved in a folder."""

    @abstractmethod
    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the losses of a batch, and the number to divide it by."""

    @abstractmethod
    def decode(self, logits: Any, batch: Batch) -> list[Partial]:
        """Turn the logits of a batch into one partial result for each sequence."""

    @abstractmethod
    def finish(
        self, example: Any, partials: Sequence[Partial], *, log_probabilities: bool = False
    ) -> Any:
        """Make the prediction for an example from the partial results of its sequences."""

    def score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Compute metrics by name from predictions of examples in order; none without gold."""
        pairs = zip(gold, predicted, strict=True)
        scored = [pair for pair in pairs if self._gold(pair[0]) is not None]
        return self._score(*map(list, zip(*scored, strict=True))) if scored else {}

    @abstractmethod
    def _score(self, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        """Compute metrics of examples that all have gold."""

    def capability(self, kind: type[C]) -> C | None:
        """Return what the task can do besides, by class (``capabilities``); None if it cannot."""
        return next((each for each in self._capabilities() if isinstance(each, kind)), None)

    def _capabilities(self) -> Iterator[object]:
        """Yield everything that ``capability`` finds."""
        yield from ()

    @contextlib.contextmanager
    def _pretrained(self) -> Iterator[dict[str, Any]]:
        """Provide name and options of the checkpoint that a new model starts from."""
        config = self.record.config
        trusted = {"trust_remote_code": config.trust_remote_code}
        trusted |= {name: True for name in TOP_LAYERS if getattr(config, name)}
        if self._warm_start is None:
            yield {"name": config.model, "revision": config.revision, **trusted}
            return
        if self._warm_start.whole:
            yield {"name": self._warm_start.source, **self._warm_start.options}
            return
        with self._warm_start.checkpoint() as folder:
            yield {"name": folder, "revision": None, **trusted}


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keep Python from searching millions of new lists for reference cycles, as they have none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_tokenizer(
    config: TrainConfig, task: type[Task], labels: Sequence[str], problem: Any = None
) -> tuple[WarmStart | None, SubwordTokenizer]:
    """Return the model to begin with, if there is one, and the tokenizer of the encoder."""
    if config.init_from is not None:
        warm_start = find_warm_start(config, task.name, labels, problem)
        source, options = warm_start.source, warm_start.options
        return warm_start, SubwordTokenizer.saved(source, words=task.reads_words, **options)
    return None, SubwordTokenizer.from_pretrained(
        str(config.model),
        words=task.reads_words,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )


def sequence_limit(
    config: TrainConfig, tokenizer: SubwordTokenizer, warm_start: WarmStart | None
) -> int:
    """Return the longest sequence in tokens, special tokens included."""
    encoder = starting_config(config, warm_start)
    limit = position_limit(encoder, FAMILIES.get(encoder.model_type))
    return tokenizer.max_length(limit, config.max_length)


def starting_config(config: TrainConfig, warm_start: WarmStart | None = None) -> Any:
    """Return the Hugging Face configuration of the encoder that a new model starts from."""
    if warm_start is None and config.init_from is not None:
        warm_start = find_warm_start(config, "", (), None)
    if warm_start is not None:
        return warm_start.config
    if config.new_encoder is not None:
        return new_config(config.new_encoder)
    return load_config(
        str(config.model), revision=config.revision, trust_remote_code=config.trust_remote_code
    )


def starting_commit(config: TrainConfig) -> str | None:
    """Return the commit of the hub model that training starts from; None for a local model."""
    name = config.init_from or config.model
    if name is None or not is_hub_id(resolve_model(name)):
        return None
    return model_commit(name, config.revision)


def limited(data: Dataset, config: TrainConfig) -> Dataset:
    """Keep the first ``limit`` training examples, and the first ``limit_eval`` of other splits."""
    splits, notes = dict(data.splits), list(data.notes)
    for split, examples in data.splits.items():
        option, limit = "--limit", config.limit
        if split != "train":
            option, limit = "--limit-eval", config.limit_eval
        if limit is None or limit >= len(examples):
            continue
        splits[split] = examples[:limit]
        note = f"{option}: the first {limit:,} of {quantity(len(examples), 'example')} of {split}"
        labels = {example.label for example in splits[split] if isinstance(example, TextExample)}
        if len(labels) == 1 and None not in labels:
            note += f"; no label but {labels.pop()!r}: the data are sorted, shuffle them"
        notes.append(note)
    return replace(data, splits=splits, notes=notes)


def _saved_labels(config: TrainConfig) -> tuple[str, ...]:
    """Return the labels of the checkpoint of a run to resume: its head has them in this order."""
    path = Path(config.out or "") / "last" / TASK_FILE
    return tuple(read_object(path, {"labels": list[str]})["labels"]) if path.is_file() else ()


def _checked(data: Dataset, skipped: Collection[str]) -> Dataset:
    """Raise UserError for the first error of the data checks; add their warnings to the notes."""
    findings = check_data(data, max_length=None)
    findings = [finding for finding in findings if finding.check not in skipped]
    for finding in findings:
        if finding.level == "error":
            where = finding.locations[0] if finding.locations else data.name
            raise UserError(f"{where}: {finding.message}.")
    warnings = [f"warning: {finding}" for finding in findings if finding.level == "warning"]
    return replace(data, notes=[*data.notes, *warnings])
