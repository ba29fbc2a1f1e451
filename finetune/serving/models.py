"""A trained model as the server runs it: JSON examples in, rows of `finetune predict` out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from finetune.config.tasks import marks_words
from finetune.inference.predictor import Predictor, to_example
from finetune.preprocessing.inputs import Input
from finetune.serving.batcher import Batcher
from finetune.serving.limits import Limits
from finetune.types import UserError, quantity


class TooLarge(Exception):
    """An example or a request exceeds a limit; the message names both."""


class Item(NamedTuple):
    """An example of a request: its number there, from 0, the id in its row, and the input."""

    number: int
    id: str | int
    input: Input


class ServedModel:
    """A model with its queue. Use it as a context, which ends the queue's thread."""

    def __init__(self, name: str, predictor: Predictor, limits: Limits) -> None:
        if marks_words(predictor.task.record.config):
            raise UserError(f"{name}: models of marked words cannot be served: use predict --file.")
        if predictor.task.name == "relations":
            raise UserError(f"{name}: models of relations cannot be served: use predict --file.")
        self.name, self.predictor, self.limits = name, predictor, limits
        task = predictor.task
        self.keys: tuple[str, ...] = (
            ("text", "words") if task.reads_words else ("text", "text_pair")
        )
        if task.record.pairs is False:
            self.keys = ("text",)
        self.batcher = Batcher(
            self._predict,
            batch_size=limits.batch_size,
            batch_total=limits.max_characters,
            max_waiting=limits.max_waiting,
            name=f"predict-{name}",
        )

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *_: Any) -> None:
        self.batcher.close()

    def describe(self) -> dict[str, Any]:
        """Return the name, the task, the labels and the keys of an example, as JSON values."""
        record = self.predictor.task.record
        return {
            "name": self.name,
            "task": self.predictor.task.name,
            "labels": list(record.labels),
            "keys": list(self.keys),
            "pairs": record.pairs,
            "max_tokens": record.max_length,
        }

    def items(self, body: Any) -> list[Item]:
        """Read the examples of a request.

        Raises:
            UserError: If the body is not what the model reads.
            TooLarge: If a limit is exceeded.
        """
        if not isinstance(body, dict):
            raise UserError('the body must be an object, such as {"text": "..."}.')
        examples = body.get("examples", [body])
        if "examples" in body and (len(body) > 1 or not isinstance(examples, list)):
            raise UserError('"examples" must be a list, and the only key.')
        if not examples:
            raise UserError('"examples" is empty: give at least one.')
        if len(examples) > self.limits.max_examples:
            raise TooLarge(
                f"{quantity(len(examples), 'example')} in a request: at most "
                f"{self.limits.max_examples:,}."
            )
        return [self._item(index, example) for index, example in enumerate(examples)]

    def _item(self, index: int, example: Any) -> Item:
        where = f"example {index}"
        if isinstance(example, str):
            example = {"text": example}
        if not isinstance(example, dict):
            raise UserError(f"{where}: must be a text or an object, not {_kind(example)}.")
        if unknown := [key for key in example if key not in (*self.keys, "id")]:
            raise UserError(
                f"{where}: unknown key {unknown[0]!r:.80}: this model reads {', '.join(self.keys)}."
            )
        id = example.get("id", index)
        if not isinstance(id, str | int) or isinstance(id, bool):
            raise UserError(f'{where}: "id" must be a text or a whole number, not {_kind(id)}.')
        given = [key for key in self.keys if key in example]
        for key in given:
            value = example[key]
            legal = isinstance(value, str)
            if key == "words":
                legal = isinstance(value, list) and all(isinstance(word, str) for word in value)
            if not legal:
                kind = "a list of texts" if key == "words" else "a text"
                raise UserError(f'{where}: "{key}" must be {kind}, not {_kind(value)}.')
        if "words" in given and "text" in given:
            raise UserError(f'{where}: give "text" or "words", not both.')
        pairs = self.predictor.task.record.pairs
        if given[:1] not in (["text"], ["words"]) or (pairs is True and len(given) < 2):
            needed = f"text and {self.keys[1]}" if pairs else " or ".join(self.keys)
            raise UserError(f"{where}: give {needed}.")
        values: list[Any] = [example[key] for key in given]
        item = Item(index, id, values[0] if len(values) == 1 else tuple(values))
        if (size := item_size(item)) > self.limits.max_characters:
            raise TooLarge(
                f"{where}: {quantity(size, 'character')}: at most {self.limits.max_characters:,}."
            )
        return item

    def _predict(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Predict items of several requests: the rows that ``finetune predict`` writes."""
        examples = [
            to_example(self.predictor.task, number, item.input, f"example {item.number}")
            for number, item in enumerate(items)
        ]
        predictions = self.predictor.predict(examples)
        pairs = zip(predictions, items, strict=True)
        return [prediction.record() | {"id": item.id} for prediction, item in pairs]


def item_size(item: Item) -> int:
    """Return the number of characters of an example; each word of a list counts one more."""
    if isinstance(item.input, str):
        return len(item.input)
    return sum(map(len, item.input)) + len(item.input)


_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false",
          float: "a number", int: "a number"}  # fmt: skip


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")
