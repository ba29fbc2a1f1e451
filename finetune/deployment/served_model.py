"""A trained model as the server runs it: JSON examples in, rows of `finetune predict` out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    create_model,
)

from finetune.deployment.batcher import Batcher, Limits
from finetune.deployment.onnx_model import GRAPH, SETTINGS, OnnxModel
from finetune.preprocessing.texts import as_example
from finetune.tasks import model_folder
from finetune.types import Example, Prediction, UserError, quantity

if TYPE_CHECKING:  # exported models are served without torch
    from finetune.inference.predictor import Predictor


KEYS: Mapping[str, tuple[Any, str]] = {
    "text": (StrictStr, "The text."),
    "text_pair": (StrictStr, "The second text, for models of pairs."),
    "words": (list[StrictStr], "Words in place of a text."),
    "context": (StrictStr, "A text to choose by."),
    "question": (StrictStr, "The question."),
    "choices": (list[StrictStr], "Its choices, two or more."),
}
"""The keys of an example in a request: types and meanings."""
SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "words": {"text": "Maria Keller flew from Lisbon to Oslo."},
    "choices": {"question": "Where does a fish live?", "choices": ["in water", "on the moon"]},
    "text_pair": {"text": "A man is cooking dinner.", "text_pair": "Somebody prepares food."},
    "text": {"text": "The staff were kind and the room was spotless."},
}
"""An example for the schema of models that read a key."""


class PredictAnswer(BaseModel):
    """The answer to a request: a row for each example, as `finetune predict` writes it."""

    model: str
    predictions: list[dict[str, Any]]
    request_id: str


class ErrorAnswer(BaseModel):
    """The error in a request."""

    error: str
    request_id: str


class TooLarge(Exception):
    """An example or a request exceeds a limit; the message names both."""


class Item(NamedTuple):
    """An example of a request."""

    example: Example
    id: str | int
    """The id in its row."""
    size: int
    """The number of characters that are read of it."""


@dataclass(frozen=True)
class Engine:
    """A loaded model: its task, its inputs, and the function that predicts examples."""

    task: str
    labels: Sequence[str]
    keys: tuple[str, ...]
    pairs: bool | None
    max_length: int
    example: Callable[[int, Any, str], Example]
    """Make an example of a number, of an input or row, and of its name in messages."""
    predict: Callable[[Sequence[Example]], Sequence[Prediction]]
    reads_rows: bool = False
    """Whether the model reads rows, not texts or words."""

    @classmethod
    def of(cls, predictor: Predictor) -> Engine:
        """Return the engine of a model that torch runs."""
        task, record = predictor.task, predictor.task.record
        if not record.input_keys:
            raise UserError(
                f"this model of `finetune {task.name}` reads more than texts and words "
                "(spans), so it cannot be served: use predict --file."
            )
        return cls(
            task.name,
            list(record.labels),
            record.input_keys,
            record.pairs,
            record.max_length,
            record.example,
            predictor.predict,
            record.reads_rows,
        )

    @classmethod
    def of_export(cls, model: OnnxModel) -> Engine:
        """Return the engine of an exported model, which onnxruntime runs."""
        pairs, words = model.settings["pairs"], model.reads_words
        other = ("words",) if words else ("text_pair",) if pairs is not False else ()

        def example(index: int, item: Any, where: str) -> Example:
            return as_example(index, item, words=words, pairs=pairs, where=where)

        return cls(
            model.task,
            list(model.decoder.labels),
            ("text", *other),
            pairs,
            model.settings["max_length"],
            example,
            model.predict_examples,
        )


class ServedModel:
    """A model with its queue. Use it as a context, which starts and ends the queue's thread."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        limits: Limits,
        sha256: str | None = None,
    ) -> None:
        """Make the queue.

        Args:
            name: Name of the model in addresses.
            engine: The loaded model.
            limits: Limits of requests and of the queue.
            sha256: Digest of the weights (``weights_digest``), to be shown.
        """
        self.name, self.engine, self.limits = name, engine, limits
        self.sha256 = sha256
        self.batcher = Batcher(
            self._predict,
            batch_size=limits.batch_size,
            batch_total=limits.max_characters,
            max_waiting=limits.max_waiting,
            name=f"predict-{name}",
        )
        self.request = self._request_type()
        """The type of a request, for pydantic."""

    def __enter__(self) -> ServedModel:
        self.batcher.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.batcher.close()

    def describe(self) -> dict[str, Any]:
        """Return the name, the task, the labels and the keys of an example, as JSON values."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "task": self.engine.task,
            "labels": list(self.engine.labels),
            "keys": list(self.engine.keys),
            "pairs": self.engine.pairs,
            "max_tokens": self.engine.max_length,
        }

    def _request_type(self) -> Any:
        closed = ConfigDict(extra="forbid")
        keys: Any = {
            key: (KEYS[key][0], Field(None, description=KEYS[key][1])) for key in self.engine.keys
        }
        id = Field(None, description="Repeated in the row.")
        kind = next(key for key in SAMPLES if key in self.engine.keys)
        example = create_model(
            f"Example of {self.name}",
            __config__=closed | {"json_schema_extra": {"examples": [dict(SAMPLES[kind])]}},
            id=(StrictStr | StrictInt, id),
            **keys,
        )

        def of_text(given: Any) -> Any:
            return {"text": given} if isinstance(given, str) else given

        one: Any = Annotated[
            example, BeforeValidator(of_text, json_schema_input_type=StrictStr | example)
        ]
        several = create_model(
            f"Examples of {self.name}",
            __config__=closed,
            examples=(list[one], Field(min_length=1)),
        )

        def of_one(body: Any) -> Any:
            is_one = isinstance(body, dict) and "examples" not in body
            return {"examples": [body]} if is_one else body

        return Annotated[several, BeforeValidator(of_one, json_schema_input_type=example | several)]

    def items(self, body: Any) -> list[Item]:
        """Return the examples of a request.

        Raises:
            UserError: If the model cannot read an example.
            TooLarge: If a limit is exceeded.
        """
        if len(body.examples) > self.limits.max_examples:
            raise TooLarge(
                f"{quantity(len(body.examples), 'example')} in a request: at most "
                f"{self.limits.max_examples:,}."
            )
        rows = (each.model_dump(exclude_unset=True) for each in body.examples)
        return [self._item(index, row) for index, row in enumerate(rows)]

    def _item(self, index: int, row: dict[str, Any]) -> Item:
        where, id = f"example {index}", row.pop("id", index)
        given = row if self.engine.reads_rows else self._input(row, where)
        if (size := _size(given)) > self.limits.max_characters:
            raise TooLarge(
                f"{where}: {quantity(size, 'character')}: at most {self.limits.max_characters:,}."
            )
        return Item(self.engine.example(index, given, where), id, size)

    def _input(self, row: Mapping[str, Any], where: str) -> Any:
        keys, pairs = self.engine.keys, self.engine.pairs
        given = [key for key in keys if key in row]
        if "words" in given and "text" in given:
            raise UserError(f'{where}: give "text" or "words", not both.')
        if given[:1] not in (["text"], ["words"]) or (pairs is True and len(given) < 2):
            needed = f"text and {keys[1]}" if pairs else " or ".join(keys)
            raise UserError(f"{where}: give {needed}.")
        values: list[Any] = [row[key] for key in given]
        return values[0] if len(values) == 1 else tuple(values)

    def _predict(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        examples = [replace(item.example, id=number) for number, item in enumerate(items)]
        answered = zip(self.engine.predict(examples), items, strict=True)
        return [prediction.record() | {"id": item.id} for prediction, item in answered]


def load_served(name: str, folder: str | Path, limits: Limits) -> ServedModel:
    """Load the model of a run, model or export folder into memory, with the digest of its weights.


    Raises:
        UserError: There is no model in the folder, or it changed while it was read.
    """
    exported = is_export(folder)
    source = Path(folder) if exported else model_folder(folder)
    before = weights_digest(source)
    try:
        if exported:
            engine = Engine.of_export(OnnxModel(source))
        else:
            from finetune.inference.predictor import Predictor

            engine = Engine.of(Predictor(source))
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    if weights_digest(source) != before:
        raise UserError(f"{source}: its weights changed while they were read: start again.")
    return ServedModel(name, engine, limits, before)


def is_export(folder: str | Path) -> bool:
    """Return whether a folder is one of ``finetune export``."""
    return (Path(folder) / SETTINGS).is_file()


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of the weights: ``cat FOLDER/*.safetensors | sha256sum``.

    For an export, it is the digest of the graph, ``model.onnx``.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob(GRAPH if is_export(folder) else "*.safetensors")):
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _size(value: Any) -> int:
    """Return the number of characters that are read of an input.

    Each word of a list counts one more. Of a multiple choice, the context is read with each choice.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        shared = sum(_size(own) for name, own in value.items() if name != "choices")
        choices = value.get("choices", ())
        return shared * max(1, len(choices)) + _size(choices)
    return sum(map(len, value)) + len(value)
