"""What all tasks share: their data by split, their tokenizer, and being saved beside a model."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from finetune.config.tasks import CONFIGS, TrainConfig, from_settings, settings
from finetune.data import Dataset, fingerprint, hold_out
from finetune.models.families import FAMILIES
from finetune.models.loading import load_config
from finetune.models.warm_start import WarmStart, find_warm_start
from finetune.preprocessing.encodings import SEQUENCES, Encoded, Encodings, Ragged
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.tasks import TASK_FILE
from finetune.types import Encoding, Example, LabelSet, TextExample, UserError

if TYPE_CHECKING:
    import torch

OVERLAP = 64
"""Tokens that windows share where nothing is said."""
CHUNK = 8192
"""Examples that are tokenised at a time."""
FITTED = ("temperature", "thresholds")
"""What is remembered with a task and does not change its sequences."""
FORMAT = 1
"""Version of the saved task file."""


class BaseTask(ABC):
    """Data, tokenizer, labels and the saved form; subclasses add the task itself.

    ``extra`` is what a task must remember with its model beyond configuration and labels.
    """

    name: str
    words: bool
    """Whether its input is words (and not whole texts)."""

    def __init__(
        self,
        config: TrainConfig,
        tokenizer: SubwordTokenizer,
        labels: Iterable[str],
        *,
        max_length: int,
        extra: dict[str, Any] | None = None,
        data: Dataset | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.labels = LabelSet(labels)
        self.max_length = max_length
        self.extra = extra or {}
        self.data = data
        self.notes: list[str] = list(data.notes) if data else []
        self.fingerprint = data.fingerprint if data else ""
        self.warm_start: WarmStart | None = None
        self.num_cut = 0
        """Texts or words cut to fit since the count was last set to 0."""
        self.num_alone = 0
        """Examples answered without the context that the task reads: they name no document."""

    @classmethod
    def from_data(cls, config: TrainConfig, data: Dataset | None = None) -> Self:
        """Read the data (unless they are given), derive the labels, load the tokenizer."""
        data = cls.prepare(config, cls.open(config) if data is None else data)
        if "train" not in data.splits:
            raise UserError(
                f"{config.data}: there is no train split (found: {', '.join(data.splits)}). "
                "Name it with --data train=FILE,test=FILE."
            )
        labels, extra = cls.derive(config, data)
        data = hold_out(data)
        warm_start = None
        if config.init_from is not None:
            warm_start = find_warm_start(config, cls.name, labels, extra.get("problem"))
        tokenizer = _tokenizer(config, warm_start, cls.words)
        limit = model_limit(_encoder_config(config, warm_start))
        max_length = tokenizer.max_length(limit, config.max_length)
        if config.limit is not None:
            data = _limited(data, config.limit)
        task = cls(config, tokenizer, labels, max_length=max_length, extra=extra, data=data)
        task.start_from(warm_start)
        return task

    def on(self, data: Dataset) -> Self:
        """The same task, with its labels and all, on other data in the task's form."""
        other = type(self)(
            self.config,
            self.tokenizer,
            self.labels,
            max_length=self.max_length,
            extra=copy.deepcopy(self.extra),
            data=data,
        )
        other.start_from(self.warm_start)
        return other

    def start_from(self, warm_start: WarmStart | None) -> None:
        """Let fresh models begin with a trained one in place of the configured encoder."""
        self.warm_start = warm_start
        if warm_start is not None:
            self.notes.append(warm_start.note)

    @contextlib.contextmanager
    def beginning(self) -> Iterator[dict[str, Any]]:
        """Where the weights of a fresh model are, while the block runs: ``name``, ``revision`` and
        whether its own code may run."""
        trusted = {"trust_remote_code": self.config.trust_remote_code}
        if self.warm_start is None:
            yield {"name": self.config.model, "revision": self.config.revision, **trusted}
            return
        with self.warm_start.checkpoint() as folder:
            yield {"name": folder, "revision": None, **trusted}

    def encoder_config(self) -> Any:
        """The Hugging Face configuration of the encoder of fresh models."""
        return _encoder_config(self.config, self.warm_start)

    @classmethod
    def from_folder(cls, folder: Path, content: dict[str, Any]) -> Self:
        """The task as it was saved beside a model, without data."""
        config = from_settings(CONFIGS[content["task"]], content["config"])
        tokenizer = SubwordTokenizer.saved(folder, words=cls.words)
        return cls(
            config,
            tokenizer,
            content["labels"],
            max_length=content["max_length"],
            extra=content["extra"],
        )

    @classmethod
    @abstractmethod
    def open(cls, config: TrainConfig) -> Dataset:
        """Read the configured data."""

    @classmethod
    def prepare(cls, config: TrainConfig, data: Dataset) -> Dataset:
        """Bring the data into the task's form: labels mapped, rows dropped and counted."""
        return data

    @classmethod
    @abstractmethod
    def derive(cls, config: TrainConfig, data: Dataset) -> tuple[list[str], dict[str, Any]]:
        """Labels, and what else must be remembered, from the training data."""

    @property
    def overlap(self) -> int:
        """Tokens that neighbouring windows of a long text share."""
        asked, most = self.config.overlap, self.max_length // 2
        if asked is not None and asked > most:
            raise UserError(
                f"--overlap {asked} is over half of --max-length {self.max_length}: write "
                f"{most} or less."
            )
        return min(OVERLAP, most) if asked is None else asked

    @property
    def pairs(self) -> bool | None:
        """Whether an example has two texts; None where the data had both kinds."""
        return self.extra.get("pairs")

    def forget(self) -> None:
        """Drop what an earlier training fitted on validation, so that the next begins as it did."""
        self.extra.pop("temperature", None)
        if "thresholds" in self.extra:
            self.extra["thresholds"] = {}

    @property
    def splits(self) -> list[str]:
        """Names of the splits there are."""
        return list(self.data.splits) if self.data else []

    def read(self, split: str) -> list[Example]:
        """The examples of a split."""
        assert self.data is not None, "this task was loaded without data"
        return list(self.data.splits[split])

    def in_context(self, examples: Iterable[Any]) -> Iterator[Any]:
        """Examples to answer with what is read around them: nothing, unless a task reads some."""
        return iter(examples)

    def encode(self, examples: Sequence[Example]) -> Encoded:
        """The sequences of each example, laid flat as they are made."""
        chunks = (examples[start : start + CHUNK] for start in range(0, len(examples), CHUNK))
        with without_collection():
            return Encoded.joined([Encoded.of(self.sequences(chunk)) for chunk in chunks])

    def encoding_key(self, examples: Sequence[Example]) -> str:
        """A hash of all that ``encode(examples)`` follows from, and of some settings besides."""
        common = {field.name for field in dataclasses.fields(TrainConfig)}
        own = {n: v for n, v in settings(self.config).items() if n not in common}
        extra = {name: v for name, v in self.extra.items() if name not in FITTED}
        pieces = self.tokenizer
        facts = [SEQUENCES, self.name, list(self.labels), extra, self.max_length, self.overlap]
        facts += [pieces.uses_segments, pieces.placeholder, pieces.leading_space]
        described = json.dumps([*facts, own, self.tokenizer.backend.to_str()], sort_keys=True)
        ids = json.dumps([example.id for example in examples])
        content = described + ids + fingerprint({"examples": examples})
        return hashlib.sha256(content.encode()).hexdigest()

    @abstractmethod
    def sequences(self, examples: Sequence[Any]) -> list[list[Encoding]]:
        """The sequences of each example: one, or several windows."""

    def collate(self, encodings: Iterable[Encoding]) -> dict[str, torch.Tensor]:
        """The targets of a batch of sequences; none where gold is missing."""
        targets = Encodings.of(encodings).targets
        return {} if targets is None else self.targets_of(targets)

    @abstractmethod
    def targets_of(self, rows: Mapping[str, Ragged]) -> dict[str, torch.Tensor]:
        """The targets of a batch from those of its sequences."""

    def unreadable(self, encoded: Encoded) -> list[str]:
        """A line to read, if the tokenizer has no pieces for much of these sequences."""
        ids = encoded.sequences.ids.values
        return self.tokenizer.unreadable(int((ids == self.tokenizer.unknown).sum()), len(ids))

    def lost(self, examples: Any, encoded: Any) -> list[str]:
        """Every gold label can be answered, unless a task says otherwise."""
        return []

    def calibrate(self, head: Any, gold: Any, predicted: Any) -> Any:
        """Nothing to fit, unless a task has something."""
        return None

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the task file beside a model."""
        self.tokenizer.save_pretrained(folder)
        content = {
            "format": FORMAT,
            "task": self.name,
            "labels": list(self.labels),
            "max_length": self.max_length,
            "extra": self.extra,
            "config": settings(self.config),
        }
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / TASK_FILE).write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Keep Python's garbage collector from looking through millions of new lists for cycles, of
    which they have none: tokenising takes 0.6 times as long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tokenizer(config: TrainConfig, warm_start: WarmStart | None, words: bool) -> SubwordTokenizer:
    """The encoder's, or that of the model to begin with."""
    if warm_start is not None:
        return SubwordTokenizer.saved(warm_start.source, words=words, **warm_start.options)
    return SubwordTokenizer.from_pretrained(
        config.model,
        words=words,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )


def _encoder_config(config: TrainConfig, warm_start: WarmStart | None) -> Any:
    if warm_start is not None:
        return warm_start.config
    return load_config(
        config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
    )


def model_limit(model: Any) -> int | None:
    """How many tokens a model has positions for, by its configuration."""
    limit = getattr(model, "max_position_embeddings", None)
    family = FAMILIES.get(model.model_type)
    after_padding = family is not None and family.positions == "after padding"
    return limit - model.pad_token_id - 1 if limit is not None and after_padding else limit


def _limited(data: Dataset, limit: int) -> Dataset:
    train = data.splits["train"]
    if limit >= len(train):
        return data
    note = f"the first {limit:,} of {len(train):,} training examples are used (--limit)"
    kept, given = (
        {e.label for e in rows if isinstance(e, TextExample)} for rows in (train[:limit], train)
    )
    if len(kept) == 1 < len(given):
        note += f"; all of them are {next(iter(kept))!r}: the data are sorted, shuffle them"
    return dataclasses.replace(
        data, splits={**data.splits, "train": train[:limit]}, notes=[*data.notes, note]
    )
