"""Examples in order: in memory, or in columns of Arrow on disk if they are many.

``Examples`` is the one holder of examples: nothing else asks where they are. It also computes
statistics of its examples, which checks and splits need instead of the texts: hashes and sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload
from unicodedata import normalize

import xxhash

from finetune.data.columns import Columns, names_of, packed, stored, write_batches
from finetune.runtime.progress import progress_task
from finetune.types import EXAMPLES, ChoiceQuestion, Example, TextExample, TokenExample

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]

T = TypeVar("T")

MOST_IN_MEMORY = 200_000
"""Most examples of a split that are kept in memory."""
CHUNK = 8192
"""Number of examples that are read from disk, or tokenized, at a time."""
BLANK, DAMAGED = 1, 2
"""Flags of an example with an empty text, and of one with U+FFFD, the mark of a lost character."""
COLUMN_STATS = {
    "text": "uint64",
    "document": "uint64",
    "words": "uint32",
    "characters": "uint32",
    "flags": "uint8",
}
"""The type of each statistic: ``text`` has hashes of the normalized texts, ``document`` hashes of
the documents (0 for none). Two different texts among n have the same 64-bit hash with a
probability of about n^2 / 2^65: 1e-5 for 20 million examples."""

_STATS_PREFIX = "fact "
"""The beginning of the name of a column of a statistic; fingerprints depend on it."""
_EXAMPLE_TYPES: Mapping[str, type[Any]] = {cls.__name__: cls for cls in EXAMPLES}
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Examples(Sequence[Any]):
    """Examples of one type: texts, words, or named tuples without ``id``.

    Examples that are made of others (``take``, ``map``, ``replace``) leave these as they are.
    """

    is_large: ClassVar[bool] = False
    """Whether the examples are on disk, where each pass over them takes long."""

    def __init__(self, examples: Iterable[Any] = ()) -> None:
        """Hold examples in memory."""
        self._examples = list(examples)
        self._column_stats: Mapping[str, Numbers] = {}

    @staticmethod
    def of(rows: Sequence[Any]) -> Examples:
        """Convert a sequence of examples to ``Examples``."""
        return rows if isinstance(rows, Examples) else Examples(rows)

    @property
    def example_type(self) -> type[Any]:
        """The class of the examples."""
        return type(self._examples[0]) if self._examples else TextExample

    @property
    def are_words(self) -> bool:
        """True for sentences of words, False for texts."""
        return self.example_type is TokenExample

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._examples)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        return self._example(range(len(self))[index])

    def _example(self, index: int) -> Any:
        return self._examples[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{len(self):,} {self.example_type.__name__}>"

    def columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """The values of some fields of each example."""
        return zip(*map(self.column, names), strict=True)

    def column(self, name: str) -> Iterator[Any]:
        """The values of one field in order."""
        return map(attrgetter(name), self._examples)

    def codes(self, name: str) -> tuple[list[Any], Numbers]:
        """The different values of a field, in the order of their first examples, and the
        number of the value of each example [N]. 1, 1.0 and "1" differ."""
        import numpy as np

        values, numbers, codes = list[Any](), dict[Any, int](), list[int]()
        for value in self.column(name):
            key = value if type(value) is str else (repr(value),)
            if (code := numbers.get(key)) is None:
                code = numbers[key] = len(values)
                values.append(value)
            codes.append(code)
        return values, np.array(codes, np.int32)

    def golds(self) -> Iterator[list[str] | None]:
        """The labels of each example, as its ``gold_labels``."""
        return itertools.starmap(self.example_type.labels_of, self.columns(*self.example_type.GOLD))

    def gold_counts(self) -> tuple[Counter[str], int]:
        """Count how often each label occurs, and the examples without gold."""
        counts, without = Counter[str](), 0
        golds: Iterable[tuple[list[str] | None, int]] = ((gold, 1) for gold in self.golds())
        if len(self.example_type.GOLD) == 1:
            values, codes = self.codes(self.example_type.GOLD[0])
            numbers = Counter(codes.tolist())
            golds = (
                (self.example_type.labels_of(value), numbers[i]) for i, value in enumerate(values)
            )
        for gold, number in golds:
            without += number * (gold is None)
            for name in gold or ():
                counts[name] += number
        return counts, without

    def locations(self, indices: Iterable[int]) -> list[str]:
        """The ``file:line`` of a few examples."""
        return [str(self[int(index)].where) for index in indices]

    def stats(self, name: str) -> Numbers:
        """A statistic of each example [N], by its name in ``COLUMN_STATS``."""
        self._column_stats = self._column_stats or compute_column_stats(self._examples)
        return self._column_stats[name]

    def take(self, indices: Numbers | Sequence[int]) -> Examples:
        """Select the examples at some indices, with the ids that they have."""
        return Examples(self._examples[int(index)] for index in indices)

    def keep(self, which: Iterable[bool]) -> Examples:
        """Select the examples whose flag in ``which`` is true; they keep their ids."""
        return self.take(indices_of(which))

    def renumbered(self) -> Examples:
        """Copy the examples with ``id`` = index."""
        return self.replace("id", range(len(self)))

    def replace(self, name: str, values: Iterable[Any]) -> Examples:
        """Copy the examples with other values of a field."""
        return Examples(
            example
            if getattr(example, name) is value
            else dataclasses.replace(example, **{name: value})
            for example, value in zip(self._examples, values, strict=True)
        )

    def map(self, change: Callable[[int, Any], Any]) -> Examples:
        """Apply ``change`` to each index and its example; it must keep the ``id``."""
        return collected(itertools.starmap(change, enumerate(self)), "converting")

    def content(self, title: str) -> Iterator[bytes]:
        """Yield the content of the examples in lines, as JSON; ``title`` is shown meanwhile."""
        cls, more = self.example_type, ("targets", "negative", "votes")
        fields = self.columns(*cls.CONTENT)
        contents = (f"{_encode(cls.content_of(*values))}\n" for values in fields)
        if cls is TextExample and not any(set(self.column(n)) - {None} for n in more):
            labels, codes = self.codes("label")
            written = [_encode(label) for label in labels]
            pairs = ("null" if pair is None else _encode(pair) for pair in self.column("pair"))
            columns = self.column("text"), pairs, codes
            contents = (  # takes half the time
                f'["text",{_encode(text)},{pair},{written[code]}]\n'
                for text, pair, code in zip(*columns, strict=True)
            )
        for batch in _batches(contents, title, len(self)):
            yield "".join(batch).encode()

    def digest(self) -> str:
        """Hash the content, ids and order of the examples; ``where`` is no part."""
        digest = xxhash.xxh3_128(_encode(list(self.column("id"))).encode())
        for lines in self.content("reading"):
            digest.update(lines)
        return digest.hexdigest()

    def save(self, folder: Path, name: str) -> dict[str, Any]:
        """Write the examples to files of a folder, whose names begin with ``name``.

        Returns:
            A description for ``load``, of JSON.
        """
        if self:
            with (folder / f"{name}.arrow").open("wb") as file:
                write_batches(file, self._packed())
        cls = self.example_type.__name__ if self else None
        return {"kind": cls, "is_large": self.is_large}

    def _packed(self) -> Iterator[pa.RecordBatch]:
        return map(_packed, _batches(self))

    @staticmethod
    def load(folder: Path, name: str, saved: Mapping[str, Any]) -> Examples:
        """Read the examples that ``save`` has described from their files."""
        if saved["kind"] is None:
            return Examples()
        with (folder / f"{name}.arrow").open("rb") as file:
            mapped = _Mapped(Columns(_EXAMPLE_TYPES[saved["kind"]], file))
        return mapped if saved["is_large"] else Examples(mapped)


class _Mapped(Examples):
    """Examples on disk, or some of them in any order.

    Args:
        all: The columns of all examples.
        rows: The chosen examples; None is all.
        replaced: Other values of some fields of the chosen examples, in memory.
    """

    is_large = True

    def __init__(
        self,
        all: Columns,
        rows: Numbers | None = None,
        replaced: Mapping[str, pa.ChunkedArray] | None = None,
    ) -> None:
        import numpy as np

        self.all, self.replaced = all, replaced or {}
        self.rows = np.arange(len(all.table), dtype=np.uint32) if rows is None else rows
        self._last: tuple[int, list[Any]] = (-1, [])

    @property
    def example_type(self) -> type[Any]:
        return self.all.example_type

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return itertools.starmap(self.example_type, self.columns(*names_of(self.example_type)))

    def _example(self, index: int) -> Any:
        start = index // CHUNK * CHUNK
        if self._last[0] != start:
            self._last = start, list(self[start : start + CHUNK])
        return self._last[1][index - start]

    def columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        for chunk in self._chunks(names):
            yield from zip(*map(self._values, chunk.items()), strict=True)

    def column(self, name: str) -> Iterator[Any]:
        for chunk in self._chunks([name]):
            yield from self._values((name, chunk[name]))

    def _values(self, column: tuple[str, pa.ChunkedArray]) -> list[Any]:
        return self.all.fields[column[0]].values(column[1])

    def stats(self, name: str) -> Numbers:
        numbers: Numbers = self.all.table.column(_STATS_PREFIX + name).to_numpy()
        self.all.release()
        return numbers[self.rows]

    def take(self, indices: Numbers | Sequence[int]) -> Examples:
        import numpy as np

        indices = np.asarray(indices, np.int64)
        replaced = {name: column.take(indices) for name, column in self.replaced.items()}
        return _Mapped(self.all, self.rows[indices], replaced)

    def replace(self, name: str, values: Iterable[Any]) -> Examples:
        import pyarrow as pa

        field = self.all.fields[name]
        column = pa.chunked_array(map(field.array, _batches(values)), field.type)
        if len(column) != len(self):
            raise ValueError(f"{len(column):,} values of {name} for {self!r}")
        return _Mapped(self.all, self.rows, {**self.replaced, name: column})

    def digest(self) -> str:
        digest = xxhash.xxh3_128(self.all.digest)
        digest.update(self.rows.tobytes())
        for name, column in self.replaced.items():
            digest.update(_encode([name, self.all.fields[name].values(column)]).encode())
        return digest.hexdigest()

    def _packed(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for chunk in self._chunks(self.all.table.column_names):
            yield pa.table(chunk).combine_chunks().to_batches()[0]

    def _chunks(self, names: Sequence[str]) -> Iterator[dict[str, pa.ChunkedArray]]:
        shared = [name for name in names if name not in self.replaced]
        for start in range(0, len(self), CHUNK):
            table = self.all.selected(shared, self.rows[start : start + CHUNK])
            yield {
                name: table.column(name)
                if name in shared
                else self.replaced[name].slice(start, CHUNK)
                for name in names
            }
            if start // CHUNK % 64 == 63:
                self.all.release()


def indices_of(which: Iterable[bool]) -> Numbers:
    """The indices of the true values."""
    import numpy as np

    mask = which if isinstance(which, np.ndarray) else np.array(list(which), bool)
    return np.flatnonzero(mask)


def collected(examples: Iterable[Any], title: str = "reading") -> Examples:
    """Collect the examples of a stream: on disk if they are many. ``title`` is shown meanwhile."""
    first, remaining = list[list[Any]](), _batches(examples, title)
    for batch in remaining:
        first.append(batch)
        if sum(map(len, first)) > MOST_IN_MEMORY:
            kept = (first.pop(0) for _ in range(len(first)))  # a batch is free once it is packed
            batches = itertools.chain(kept, remaining)
            return _Mapped(stored(type(batch[0]), map(_packed, batches)))
    return Examples(itertools.chain.from_iterable(first))


def _batches(values: Iterable[T], title: str = "", number: int | None = None) -> Iterator[list[T]]:
    remaining, done = iter(values), 0
    shown = progress_task(title, number) if title else nullcontext(lambda done: None)
    with shown as show:
        while batch := list(itertools.islice(remaining, CHUNK)):
            yield batch
            show(done := done + len(batch))


def _packed(examples: Sequence[Any]) -> pa.RecordBatch:
    stats = compute_column_stats(examples) if type(examples[0]) in EXAMPLES else {}
    return packed(examples, {_STATS_PREFIX + name: numbers for name, numbers in stats.items()})


def compute_column_stats(examples: Sequence[Example]) -> Mapping[str, Numbers]:
    """Compute the statistics of examples by name."""
    import numpy as np

    texts = [example.texts() for example in examples]
    flat = list(itertools.chain.from_iterable(texts))
    joined = normalized = _normalized(flat)
    if len(flat) > len(texts):
        parts = iter(normalized)
        joined = ["\x00".join(itertools.islice(parts, len(strings))) for strings in texts]
    owner = np.repeat(np.arange(len(texts)), list(map(len, texts)))

    def sums(numbers: Iterable[int]) -> Numbers:
        return np.bincount(owner, np.fromiter(numbers, np.float64, len(flat)), len(texts))

    shared = (example.shared() for example in examples)
    blank = sums(map(operator.not_, normalized)) > 0
    words = sums(map(_num_words, flat, normalized))
    cls = type(examples[0]) if examples else TextExample
    if cls is ChoiceQuestion:  # which needs no context
        choices = map(attrgetter("choices"), examples)
        blank = np.array([not all(map(str.strip, strings)) for strings in choices])
    elif cls is TokenExample:
        words = np.array(list(map(len, map(attrgetter("words"), examples))))
    damaged = sums("\ufffd" in text for text in flat) > 0
    stats = {
        "text": np.fromiter(map(_hash, joined), np.uint64, len(texts)),
        "document": np.fromiter((0 if t is None else _hash(t) or 1 for t in shared), np.uint64),
        "words": words,
        "characters": sums(map(len, flat)),
        "flags": BLANK * blank + DAMAGED * damaged,
    }
    return {name: stats[name].astype(type) for name, type in COLUMN_STATS.items()}


def normalized_texts(example: Example) -> tuple[str, ...]:
    """Convert the texts of an example to one form of case, width and white space."""
    return tuple(_normalized(example.texts()))


def _normalized(texts: Iterable[str]) -> list[str]:
    return [
        " ".join((text.lower() if text.isascii() else normalize("NFKC", text).casefold()).split())
        for text in texts
    ]


def _num_words(text: str, normalized: str) -> int:
    return normalized.count(" ") + bool(normalized) if text.isascii() else len(text.split())


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
