"""Inputs of a trained model: examples from files, tables and Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finetune.data import read_text_file, read_token_file
from finetune.data.rows import RowReader
from finetune.data.tables import Table
from finetune.preprocessing.context import DocumentContext
from finetune.preprocessing.texts import Input, as_example, check_characters, check_pair
from finetune.types import Example, TextExample, UserError


@dataclass(frozen=True)
class Inputs(ABC):
    """The inputs of a model."""

    usual_columns: Mapping[str, str]
    """The columns that training named, by role: they are read where others are not named."""
    context: DocumentContext | None = None
    """The sentences around each sentence that the model reads too; None without."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an example in a request to a server; none if a server cannot read it."""
        return ()

    @abstractmethod
    def read(self, source: str | Path | Table, **options: Any) -> Iterator[Example]:
        """Stream examples, whose ``id`` is the row number from 0.

        Args:
            source: A path, a folder or pattern of several files, ``-`` for standard input, or a
                table.
            options: ``columns`` by role; the text ``encoding`` of the files; ``rows``, a dict that
                gets the values of each row by ``id``; ``wanted``, which tells by its number whether
                to read a row.

        Raises:
            DataError: If a row cannot be read; the message names file and line.
        """

    @abstractmethod
    def example(self, index: int, item: Input, where: str = "") -> Example:
        """Return an input as an example; raise UserError if that is impossible."""


@dataclass(frozen=True)
class TextInputs(Inputs):
    """Texts, or pairs of texts."""

    pairs: bool | None = None
    marked: bool = False
    """Whether a word is marked in each text of a pair."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an example in a request to a server."""
        if self.marked:
            return ()
        return ("text",) if self.pairs is False else ("text", "text_pair")

    def read(self, source: str | Path | Table, **options: Any) -> Iterator[Example]:
        """Stream texts, without their labels."""
        return read_text_file(
            source,
            usual_columns=self.usual_columns,
            pair=self.pairs,
            labels=False,
            targets=self.marked,
            **options,
        )

    def example(self, index: int, item: Input, where: str = "") -> Example:
        """Return a text or a pair as an example."""
        example = as_example(index, item, words=False, pairs=self.pairs, where=where)
        assert isinstance(example, TextExample)
        return self.checked(example)

    def checked(self, example: TextExample) -> TextExample:
        """Return an example; raise UserError for a pair without what the model compares."""
        check_pair(example, self.pairs)
        if self.marked and example.targets is None:
            raise UserError(
                f"{example.where}: this model compares a marked word in each text: give --file "
                "with the columns index and index_pair (in Python TextExamples with targets)."
            )
        return example


@dataclass(frozen=True)
class WordInputs(Inputs):
    """Sentences as words, or texts that are split into words."""

    relations: bool = False
    """Whether the model reads given spans, and relates them."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an example in a request to a server."""
        return () if self.relations else ("text", "words")

    def read(self, source: str | Path | Table, **options: Any) -> Iterator[Example]:
        """Stream sentences."""
        return read_token_file(
            source, usual_columns=self.usual_columns, relations=self.relations, **options
        )

    def example(self, index: int, item: Input, where: str = "") -> Example:
        """Return words, or a text that is split into words, as an example."""
        return as_example(index, item, words=True, pairs=None, where=where)


@dataclass(frozen=True)
class RowInputs(Inputs):
    """Rows whose columns have roles of their own; in Python a dict each."""

    reader: ClassVar[RowReader]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an example in a request to a server."""
        return tuple(role for role in self.reader.roles if role not in self.reader.gold_roles)

    def read(self, source: str | Path | Table, **options: Any) -> Iterator[Example]:
        """Stream examples, without their gold."""
        return self.reader.stream(source, usual_columns=self.usual_columns, **options)

    def example(self, index: int, item: Any, where: str = "") -> Example:
        """Return a row as an example."""
        where = where or f"input {index}"
        if not isinstance(item, Mapping):
            raise UserError(
                f"{where}: {item!r:.60} is no example of this model: give --file with the columns "
                f"{', '.join(self.keys)}; in Python a dict of them."
            )
        example: Example = self.reader.example(index, item, where)
        check_characters(example.texts(), where)
        return example
