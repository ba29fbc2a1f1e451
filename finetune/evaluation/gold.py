"""Gold to lay answers beside: of a file, or in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from finetune.data import read_gold, read_text_file, read_token_file
from finetune.data.labels import settle_gold
from finetune.types import Example, TextExample, TokenExample


class Gold:
    """Gold of a file, or examples that are in memory, each form read once.

    ``name`` is for messages, and the file unless there are ``examples``. ``columns`` names columns
    by role where they cannot be guessed, ``format`` is that of the file if its name lies. ``train``
    are the examples that the system was trained on, where they are known.
    """

    def __init__(
        self,
        name: str,
        columns: Mapping[str, str] | None = None,
        examples: Sequence[Example] | None = None,
        format: str | None = None,
        train: Sequence[Example] | None = None,
    ) -> None:
        self.name, self.train = name, train
        self._columns, self._examples, self._format = columns or {}, examples, format

    @property
    def from_column(self) -> bool:
        """Whether it is a column of a file of predictions."""
        return self._format == "conll" and self._examples is None

    @cached_property
    def texts(self) -> list[TextExample]:
        """Texts with labels."""
        if self._examples is None:
            return settle_gold(list(read_text_file(self.name, columns=self._columns)))
        return [example for example in self._examples if isinstance(example, TextExample)]

    @cached_property
    def tagged(self) -> list[TokenExample]:
        """Sentences with tags in the scheme of the file."""
        if self._examples is None:
            return list(read_token_file(self.name, columns=self._columns, format=self._format))
        return [example for example in self._examples if isinstance(example, TokenExample)]

    @cached_property
    def marked(self) -> list[TokenExample]:
        """Sentences with spans."""
        if self._examples is None:
            return read_gold(self.name, columns=self._columns)
        return self.tagged


def training_examples(file: str, columns: Mapping[str, str] | None, form: str) -> Sequence[Example]:
    """The examples of a file that a system was trained on, whose answers have a form."""
    data = Gold(file, columns)
    return data.tagged if form == "tags" else data.marked if form == "spans" else data.texts
