"""A trained model to ask from Python: texts or words in, labels with their offsets out.

>>> import finetune
>>> finetune.load("runs/x").predict(["What a film."])  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from finetune.config.tasks import choices
from finetune.data.word_splitting import split_words
from finetune.inference.loop import predict
from finetune.runtime.launch import make_accelerator
from finetune.tasks import Task, model_folder, saved_task
from finetune.types import (
    Example,
    LabelSet,
    Prediction,
    TextExample,
    TokenExample,
    UserError,
    perhaps,
)

Input = str | Sequence[str]
"""A text; a pair of texts (for a model of pairs); or words (for a model that tags words)."""


class Predictor:
    """A trained model on its device, with all that is needed to ask it."""

    def __init__(
        self,
        folder: str | Path,
        *,
        decoding: str | None = None,
        batching: str = "auto",
        max_tokens: int | None = None,
    ) -> None:
        """Load a model from a run folder or from the folder of the model itself.

        ``decoding`` takes the place of the one it was trained with. ``max_tokens`` (None is what
        the device bears) and ``batching`` change memory and speed only. Raises ValueError where
        the folder holds no model of ours.
        """
        self.task, self.model = load_model(
            folder, decoding=decoding, batching=batching, max_tokens=max_tokens
        )
        self.accelerator = make_accelerator()
        self.model.to(self.accelerator.device)

    @property
    def labels(self) -> LabelSet:
        """The label names, in the order of the classes."""
        return self.task.labels

    def predict(
        self, inputs: Sequence[Input], *, documents: Sequence[Any] | None = None
    ) -> list[Prediction]:
        """One answer for each input, in order; ``id`` is the input's place.

        An input is a text; (text, text) for a model of pairs; a text or a list of words for a
        model that tags words. A text is split into words, and its answer has their character
        offsets. For a model with ``--context``, ``documents`` names the document of each input, in
        any way that compares (None: of its own): inputs that stand together and name the same one
        are read in each other's context. Raises ValueError for an input of another kind.
        """
        if isinstance(inputs, str):
            raise UserError(f"predict takes a list of inputs: write predict([{inputs!r:.40}]).")
        examples = [to_example(self.task, index, item) for index, item in enumerate(inputs)]
        if documents is not None:
            examples = list(self.task.in_context(_named(self.task, examples, documents)))
        return predict(self.task, self.model, examples, self.accelerator) if examples else []


def load(
    folder: str | Path,
    *,
    decoding: str | None = None,
    batching: str = "auto",
    max_tokens: int | None = None,
) -> Predictor:
    """The trained model of a run folder (its best one) or model folder, ready to be asked."""
    return Predictor(folder, decoding=decoding, batching=batching, max_tokens=max_tokens)


def load_model(
    folder: str | Path, *, decoding: str | None, batching: str, max_tokens: int | None
) -> tuple[Task, Any]:
    """The task and the head that a folder holds."""
    place = model_folder(folder)
    task = saved_task(place)
    changed: dict[str, Any] = {"batching": batching, "max_tokens": max_tokens}
    if decoding is not None:
        legal = choices(type(task.config), "decoding")
        if decoding not in legal:
            what = f"legal are {', '.join(legal)}" if legal else f"{task.name} models have none"
            raise UserError(f"--decoding {decoding}: {what}.{perhaps(decoding, legal)}")
        changed["decoding"] = decoding
    task.config = replace(task.config, **changed)
    return task, task.head(place)


def _named(task: Task, examples: Sequence[Any], documents: Sequence[Any]) -> list[TokenExample]:
    """The examples with the names of their documents."""
    if getattr(task.config, "context", "none") == "none":
        raise UserError(
            "documents go with a model that was trained with --context: leave them out."
        )
    if len(documents) != len(examples):
        raise UserError(
            f"documents must name one for each of the {len(examples)} inputs (or be None there), "
            f"not {len(documents)}."
        )
    named = zip(examples, documents, strict=True)
    return [replace(e, document=None if d is None else str(d)) for e, d in named]


def to_example(task: Task, index: int, item: Input, where: str = "") -> Example:
    """An input as the example that a task's model answers; ValueError where it cannot be."""
    where = where or f"input {index}"
    if task.words:
        return _words(index, item, where)
    first, second = (item, None) if isinstance(item, str) else _pair(item, where)
    return fitting(task, TextExample(index, first, second, where=where))


def fitting(task: Task, example: TextExample) -> TextExample:
    """The example, if it is one text for a model of texts, or two for a model of pairs."""
    if task.pairs is True and example.pair is None:
        raise UserError(
            f"{example.where}: this model compares two texts and got one: give the second, with "
            "--pair or in a column text_pair (in Python as (text, text))."
        )
    if task.pairs is False and example.pair is not None:
        raise UserError(
            f"{example.where}: this model was trained on single texts and got a pair: leave the "
            "second text out."
        )
    return example


def _pair(item: Any, where: str) -> tuple[str, str]:
    if not isinstance(item, list | tuple) or len(item) != 2 or not _all_texts(item):
        raise UserError(f"{where}: {item!r:.60} is neither a text nor a pair of texts.")
    return item[0], item[1]


def _words(index: int, item: Any, where: str) -> TokenExample:
    if isinstance(item, str):
        words, offsets = split_words(item)
        return TokenExample(index, tuple(words), text=item, offsets=tuple(offsets), where=where)
    if not isinstance(item, list | tuple) or not _all_texts(item):
        raise UserError(f"{where}: {item!r:.60} is neither a text nor a list of words.")
    return TokenExample(index, tuple(item), where=where)


def _all_texts(items: Sequence[Any]) -> bool:
    return all(isinstance(item, str) for item in items)
