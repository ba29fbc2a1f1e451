"""Examples in order: in memory, or in columns of Arrow on disk if they are many.

``Examples`` is the one holder of examples: nothing else asks where they are. It also knows facts of
its examples as numbers, which checks and splits need instead of the texts: hashes and sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload
from unicodedata import normalize

import xxhash

from finetune.data.columns import ColumnFile, ColumnWriter, fields_of, names_of
from finetune.runtime.cache import unnamed_file
from finetune.runtime.progress import progress_task
from finetune.runtime.workers import forked_map, num_workers
from finetune.types import (
    EXAMPLES,
    ChoiceQuestion,
    Example,
    TextExample,
    TokenExample,
    UserError,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    _Batch = tuple[type[Any], pa.RecordBatch]
    Numbers = np.ndarray[Any, np.dtype[Any]]

R = TypeVar("R")

MOST_IN_MEMORY = 200_000
"""Most examples of a split that are kept in memory."""
CHUNK = 8192
"""Number of examples that are read from disk, or tokenized, at a time."""
BLANK, DAMAGED = 1, 2
"""Flags of an example with an empty text, and of one with U+FFFD, the mark of a lost character."""
FACTS = {
    "text": "uint64",
    "document": "uint64",
    "words": "uint32",
    "characters": "uint32",
    "flags": "uint8",
}
"""The type of each fact: ``text`` has hashes of the normalized texts, ``document`` hashes of the
documents (0 for none). Two different texts among n have the same 64-bit hash with a probability of
about n^2 / 2^65: 1e-5 for 20 million examples."""

INDEX = "uint32"
"""The type of indices of examples."""
_FACT = "fact "
"""The beginning of the name of a column with a fact."""
_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in EXAMPLES}
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Examples(Sequence[Any]):
    """Examples of one kind: texts, words, or named tuples without ``id``.

    Examples that are made of others (``take``, ``map``, ``replace``) leave these as they are.
    """

    def __init__(self, examples: Iterable[Any] = ()) -> None:
        """Hold examples in memory."""
        self._examples = list(examples)
        self._facts: Mapping[str, Numbers] = {}

    @staticmethod
    def of(rows: Sequence[Any]) -> Examples:
        """Return a sequence of examples as ``Examples``."""
        return rows if isinstance(rows, Examples) else Examples(rows)

    @property
    def kind(self) -> type[Any]:
        """The class of the examples."""
        return type(self._examples[0]) if self._examples else TextExample

    @property
    def are_words(self) -> bool:
        """True for sentences of words, False for texts."""
        return self.kind is TokenExample

    @property
    def is_large(self) -> bool:
        """True if the examples are on disk, where each pass over them takes long."""
        return False

    def __len__(self) -> int:
        return len(self._examples)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._examples)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Any:
        found = self._examples[index]
        return Examples(found) if isinstance(index, slice) else found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(own == each for own, each in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{len(self):,} {self.kind.__name__}>"

    def column(self, name: str) -> Iterator[Any]:
        """Return the values of one field in order."""
        return map(attrgetter(name), self._examples)

    def columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Return the values of some fields of each example."""
        return zip(*map(self.column, names), strict=True)

    def lack(self, name: str) -> bool:
        """Return whether a field is None for any of the examples."""

        def any_none(rows: Examples) -> bool:
            return any(value is None for value in rows.column(name))

        return any(self.each_chunk(any_none))

    def golds(self) -> Iterator[list[str] | None]:
        """Return the labels of each example, as its ``gold_labels``."""
        return itertools.starmap(self.kind.labels_of, self.columns(*self.kind.GOLD))

    def gold_counts(self) -> tuple[Counter[str], int]:
        """Return how often each label occurs, and the number of examples without gold."""
        counts, without = Counter[str](), 0
        golds: Iterable[tuple[list[str] | None, int]] = ((gold, 1) for gold in self.golds())
        if self.kind.GOLD == ("label",):
            different = Counter(self.column("label")).items()
            golds = ((self.kind.labels_of(label), number) for label, number in different)
        for gold, number in golds:
            without += number * (gold is None)
            for name in gold or ():
                counts[name] += number
        return counts, without

    def places(self, indices: Iterable[int]) -> list[str]:
        """Return the ``file:line`` of a few examples."""
        return [str(self[int(index)].where) for index in indices]

    def fact(self, name: str) -> Numbers:
        """Return a fact of each example [N], by its name in ``FACTS``."""
        self._facts = self._facts or computed_facts(self._examples)
        return self._facts[name]

    def take(self, indices: Numbers | Sequence[int]) -> Examples:
        """Return the examples at some indices, with the ids that they have."""
        return Examples(self._examples[index] for index in map(int, indices))

    def keep(self, which: Iterable[bool]) -> Examples:
        """Return the examples of which ``which`` is true, with the ids that they have."""
        import numpy as np

        return self.take(np.fromiter(which, bool, len(self)).nonzero()[0])

    def renumbered(self) -> Examples:
        """Return the examples with ``id`` = index."""
        numbered = enumerate(self._examples)
        return Examples(
            each if each.id == index else dataclasses.replace(each, id=index)
            for index, each in numbered
        )

    def replace(self, name: str, values: Iterable[Any]) -> Examples:
        """Return the examples with other values of a field."""
        pairs = zip(self._examples, values, strict=True)
        return Examples(
            each if getattr(each, name) is value else dataclasses.replace(each, **{name: value})
            for each, value in pairs
        )

    def map(self, change: Callable[[int, Any], Any], title: str = "converting") -> Examples:
        """Return what ``change`` makes of each example and its index; it must keep the ``id``.

        ``change`` also runs in other processes. ``title`` is shown while it does.
        """
        return Examples(itertools.starmap(change, enumerate(self._examples)))

    def each_chunk(self, compute: Callable[[Examples], R]) -> Iterator[R]:
        """Yield what ``compute`` returns for each chunk; it also runs in other processes."""
        yield compute(self)

    def content(self, title: str) -> Iterator[bytes]:
        """Yield the content of the examples in lines, as JSON; ``title`` is shown meanwhile."""
        with progress_task(title, len(self)) as show:
            for number, lines in enumerate(self.each_chunk(_rendered)):
                show(number * CHUNK)
                yield lines

    def digest(self) -> str:
        """Return a hash of the content, ids and order of the examples; ``where`` is no part."""
        digest = xxhash.xxh3_128(_encode(list(self.column("id"))).encode())
        for lines in self.content("reading"):
            digest.update(lines)
        return digest.hexdigest()

    def save(self, folder: Path, name: str, known: list[_Columns]) -> dict[str, Any]:
        """Write what these examples use to files of a folder.

        Args:
            folder: The folder.
            name: The beginning of the names of files of these examples alone.
            known: The columns that have a file already; others are added to it.

        Returns:
            A description for ``load``, of JSON.
        """
        import numpy as np

        if not self:
            return {"kind": None}
        ids = np.fromiter(self.column("id"), INDEX, len(self))
        chunks = (self._examples[i : i + CHUNK] for i in range(0, len(self), CHUNK))
        stored = cast("_Mapped", _written(map(_packed, chunks)))
        numbered = _Mapped(stored.written, ids=ids)
        return {**numbered.save(folder, name, known), "is_large": False}

    @staticmethod
    def load(folder: Path, name: str, saved: Mapping[str, Any]) -> Examples:
        """Return the examples that ``save`` has described, from their files."""
        import numpy as np

        if saved["kind"] is None:
            return Examples()
        with (folder / saved["columns"]).open("rb") as file:
            written = _Columns.of(_KINDS[saved["kind"]], ColumnFile(file), saved["digest"])
        rows, ids = (
            np.load(folder / f"{name}-{part}.npy") if saved[part] else None
            for part in ("rows", "ids")
        )
        found = _Mapped(written, rows, ids)
        return found if saved["is_large"] else Examples(found)


@dataclasses.dataclass(eq=False)
class _Columns:
    """Columns of examples on disk: their fields except ``id``, and their facts.

    ``files`` has the file of a field or a fact by its name, ``sizes`` the number of examples in
    each chunk, which is a record batch.
    """

    kind: type[Any]
    files: dict[str, ColumnFile]
    sizes: Sequence[int]
    known_digest: str = ""

    def __post_init__(self) -> None:
        """Find the types of the fields."""
        self.fields = fields_of(self.kind)

    @staticmethod
    def of(kind: type[Any], file: ColumnFile, digest: str = "") -> _Columns:
        """Return all columns of a file."""
        names = file.batches[0].schema.names
        sizes = [len(batch) for batch in file.batches]
        return _Columns(kind, dict.fromkeys(names, file), sizes, digest)

    def digest(self) -> str:
        """Return a hash of all examples, without ``where``."""
        if not self.known_digest:
            digest = xxhash.xxh3_128(self.kind.__name__.encode())
            for name, file in self.files.items():
                digest.update(f"\x00{name}".encode())
                for buffer in file.buffers(name) if name != "where" else ():
                    digest.update(buffer)
                file.release()
            self.known_digest = digest.hexdigest()
        return self.known_digest

    def values(self, name: str, chunk: int, chosen: Numbers | None = None) -> list[Any]:
        """Return the values of a field in a chunk, all or chosen ones."""
        column = self.files[name].batches[chunk].column(name)
        return self.fields[name].values(column if chosen is None else column.take(chosen))

    def write(self, path: Path) -> None:
        """Write all columns to a file."""
        import pyarrow as pa

        with path.open("wb") as file:
            writer = ColumnWriter(file)
            for chunk in range(len(self.sizes)):
                own = [each.batches[chunk].column(name) for name, each in self.files.items()]
                writer.write(pa.record_batch(own, [*self.files]))
            writer.close()

    def release(self) -> None:
        """Take what was read out of memory."""
        for file in {*self.files.values()}:
            file.release()


class _Mapped(Examples):
    """Examples on disk, or some of them in any order.

    Args:
        columns: All examples.
        rows: The chosen examples; None is all.
        ids: The ``id`` of each; None is its index.
    """

    def __init__(
        self, columns: _Columns, rows: Numbers | None = None, ids: Numbers | None = None
    ) -> None:
        self.written, self.rows, self.ids = columns, rows, ids
        self._size = sum(columns.sizes) if rows is None else len(rows)
        self._last: tuple[int, list[Any]] = (-1, [])

    @property
    def kind(self) -> type[Any]:
        return self.written.kind

    @property
    def is_large(self) -> bool:
        return True

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        numbered = dataclasses.is_dataclass(self.kind)
        first = 0
        for values in self._chunks(names_of(self.kind)):
            number = len(values[0])
            if not numbered:
                yield from map(self.kind, *values)
                continue
            ids: Iterable[int] = range(first, first + number)
            if self.ids is not None:
                ids = self.ids[first : first + number].tolist()
            yield from map(self.kind, ids, *values)
            first += number

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Any:
        import numpy as np

        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        index = range(len(self))[index]
        start = index // CHUNK * CHUNK
        if self._last[0] != start:
            self._last = start, list(self[start : start + CHUNK])
        return self._last[1][index - start]

    def column(self, name: str) -> Iterator[Any]:
        if name == "id":
            return iter(range(len(self))) if self.ids is None else map(int, self.ids)
        return itertools.chain.from_iterable(values for (values,) in self._chunks((name,)))

    def fact(self, name: str) -> Numbers:
        import numpy as np

        name = _FACT + name
        columns = [batch.column(name) for batch in self.written.files[name].batches]
        joined = np.concatenate([column.to_numpy() for column in columns])
        self.written.release()
        return joined if self.rows is None else joined[self.rows]

    def take(self, indices: Numbers | Sequence[int]) -> Examples:
        import numpy as np

        indices = np.asarray(indices)
        rows = indices.astype(INDEX) if self.rows is None else self.rows[indices]
        ids = indices.astype(INDEX) if self.ids is None else self.ids[indices]
        return _Mapped(self.written, rows, ids)

    def renumbered(self) -> Examples:
        return _Mapped(self.written, self.rows)

    def replace(self, name: str, values: Iterable[Any]) -> Examples:
        import numpy as np
        import pyarrow as pa

        own, written, field = list(values), self.written, self.written.fields[name]
        if len(own) != len(self):
            raise ValueError(f"{len(own)} values of {name} for {len(self)} examples")
        rows = np.arange(len(self)) if self.rows is None else self.rows
        order, ends = np.argsort(rows, kind="stable"), np.cumsum(written.sizes)
        bounds = np.searchsorted(rows[order], [0, *ends]).tolist()
        writer = ColumnWriter(unnamed_file())
        for chunk, first in enumerate((ends - written.sizes).tolist()):
            whole = written.values(name, chunk)
            for index in order[bounds[chunk] : bounds[chunk + 1]].tolist():
                whole[int(rows[index]) - first] = own[index]
            writer.write(pa.record_batch([field.array(whole)], [name]))
        files = {**written.files, name: writer.columns()}
        changed = dataclasses.replace(written, files=files, known_digest="")
        return _Mapped(changed, self.rows, self.ids)

    def map(self, change: Callable[[int, Any], Any], title: str = "converting") -> Examples:
        def changed(start: int) -> tuple[list[Any], None]:
            own = enumerate(self[start : start + CHUNK], start)
            return list(itertools.starmap(change, own)), None

        starts = range(0, len(self), CHUNK)
        workers = max(1, min(num_workers(), len(starts)))
        with progress_task(title, len(self)) as show:
            found = gathered(changed, starts, lambda number, _: show(number), workers)
        if self.ids is None or not len(self):
            return found
        return _Mapped(cast("_Mapped", found).written, ids=self.ids)

    def each_chunk(self, compute: Callable[[Examples], R]) -> Iterator[R]:
        starts = range(0, len(self), CHUNK)
        workers = max(1, min(num_workers(), len(starts)))
        yield from forked_map(lambda start: compute(self[start : start + CHUNK]), starts, workers)

    def digest(self) -> str:
        digest = xxhash.xxh3_128(self.written.digest().encode())
        for numbers in (self.rows, self.ids):
            digest.update(b"-" if numbers is None else numbers.tobytes())
        return digest.hexdigest()

    def save(self, folder: Path, name: str, known: list[_Columns]) -> dict[str, Any]:
        import numpy as np

        written = self.written
        if written not in known:
            known.append(written)
        file = f"columns-{known.index(written)}.arrow"
        if not (folder / file).exists():
            written.write(folder / file)
        saved = {"kind": self.kind.__name__, "columns": file, "is_large": True}
        for part, numbers in ("rows", self.rows), ("ids", self.ids):
            saved[part] = numbers is not None
            if numbers is not None:
                np.save(folder / f"{name}-{part}.npy", numbers)
        return {**saved, "digest": written.digest()}

    def _segments(self) -> Iterator[tuple[int, Numbers]]:
        import numpy as np

        if self.rows is None:
            return
        block = 64 * CHUNK
        ends = np.cumsum(self.written.sizes)
        for first in range(0, len(self.rows), block):
            rows = self.rows[first : first + block].astype(np.int64)
            numbers = np.searchsorted(ends, rows, side="right")
            places = rows - (ends - self.written.sizes)[numbers]
            cuts = np.flatnonzero(np.diff(numbers)) + 1
            for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
                yield int(numbers[start]), places[start:end]

    def _chunks(self, names: Sequence[str]) -> Iterator[list[list[Any]]]:
        parts: Iterable[tuple[int, Numbers | None]] = self._segments()
        if self.rows is None:
            parts = ((number, None) for number in range(len(self.written.sizes)))
        for count, (number, chosen) in enumerate(parts, 1):
            yield [self.written.values(name, number, chosen) for name in names]
            if count % 64 == 0:
                self.written.release()


def collected(examples: Iterable[Any], title: str = "reading") -> Examples:
    """Return the examples of a stream; ``title`` is shown while they come."""
    examples = iter(examples)
    with progress_task(title, unit="row") as show:
        head: list[Any] = []
        while len(head) <= MOST_IN_MEMORY:
            if not (chunk := list(itertools.islice(examples, CHUNK))):
                return Examples(head)
            head += chunk
            show(len(head))
        first = len(head)
        rest = itertools.chain(_emptied(head), examples)
        chunks = iter(lambda: list(itertools.islice(rest, CHUNK)), [])
        return gathered(
            lambda own: (own, None), chunks, lambda number, _: show(max(number, first)), 1
        )


def gathered(
    make: Callable[[Any], tuple[list[Any], R]],
    chunks: Iterable[Any],
    seen: Callable[[int, R], None],
    workers: int | None = None,
) -> Examples:
    """Return the examples that ``make`` returns for each chunk, on disk.

    Args:
        make: Returns the examples of a chunk, and anything else; it runs in other processes.
        chunks: What ``make`` gets, one at a time.
        seen: Gets the number of examples so far, and what else ``make`` returned, in this process.
        workers: The number of processes; None takes all processors.
    """

    import pyarrow.compute  # noqa: F401 - once, not in each process

    def made(chunk: Any) -> tuple[_Batch | None, R]:
        examples, more = make(chunk)
        return _packed(examples) if examples else None, more

    def batches() -> Iterator[_Batch]:
        number = 0
        for own, more in forked_map(made, chunks, workers):
            if own is not None:
                number += len(own[1])
                yield own
            seen(number, more)

    return _written(batches())


def _packed(examples: Sequence[Any]) -> _Batch:
    import pyarrow as pa

    kind, columns = type(examples[0]), dict[str, pa.Array]()
    for name, field in fields_of(kind).items():
        values = list(map(attrgetter(name), examples))
        try:
            columns[name] = field.array(values)
        except UnicodeEncodeError as error:
            raise UserError(
                f"{name}: {error.object[error.start : error.end]!r} is half of a surrogate pair "
                "(UTF-16), not a character: remove it, or write both halves."
            ) from error
    if kind in _KINDS.values():
        facts = computed_facts(examples)
        columns |= {_FACT + name: pa.array(numbers) for name, numbers in facts.items()}
    return kind, pa.record_batch(list(columns.values()), list(columns))


def _written(batches: Iterable[_Batch]) -> Examples:
    remaining = iter(batches)
    if (first := next(remaining, None)) is None:
        return Examples()
    writer = ColumnWriter(unnamed_file())
    for _, batch in itertools.chain([first], remaining):
        writer.write(batch)
    return _Mapped(_Columns.of(first[0], writer.columns()))


def _emptied(examples: list[Any]) -> Iterator[Any]:
    examples.reverse()
    while examples:
        yield examples.pop()


def _rendered(rows: Examples) -> bytes:
    more = ("targets", "negative", "votes")
    if rows.kind is TextExample and set(rows.columns(*more)) <= {(None, None, None)}:
        pairs = ("null" if pair is None else _encode(pair) for pair in rows.column("pair"))
        texts, labels = (map(_encode, rows.column(name)) for name in ("text", "label"))
        lines = zip(texts, pairs, labels, strict=True)
        return "".join(f'["text",{text},{pair},{label}]\n' for text, pair, label in lines).encode()
    contents = itertools.starmap(rows.kind.content_of, rows.columns(*rows.kind.CONTENT))
    return "".join(f"{_encode(content)}\n" for content in contents).encode()


def computed_facts(examples: Iterable[Example]) -> Mapping[str, Numbers]:
    """Compute the facts of examples by name."""
    import numpy as np

    rows = list(map(_facts, examples))
    found = zip(*rows, strict=True) if rows else ((),) * len(FACTS)
    return {n: np.array(f, FACTS[n]) for n, f in zip(FACTS, found, strict=True)}


def normalized_texts(example: Example) -> tuple[str, ...]:
    """Return the texts of an example without differences of case, width and white space."""
    return tuple(map(_normalized, example.texts()))


def _normalized(text: str) -> str:
    return " ".join((text if text.isascii() else normalize("NFKC", text)).casefold().split())


def _hash(texts: Sequence[str]) -> int:
    return xxhash.xxh3_64_intdigest("\x00".join(texts).encode("utf-8", "surrogatepass"))


def _facts(example: Example) -> tuple[int, int, int, int, int]:
    texts, shared = example.texts(), example.shared()
    document = 0 if shared is None else _hash((shared,)) or 1
    normalized, flags, words = [], 0, 0
    for text in texts:
        normalized.append(_normalized(text))
        if text.isascii():
            words += normalized[-1].count(" ") + bool(normalized[-1])
            continue
        words += len(text.split())
        if "\ufffd" in text:
            flags |= DAMAGED
    if isinstance(example, TokenExample):
        words = len(example.words)
        required: Sequence[str] = texts
    else:
        # a question of choices needs no context
        required = example.choices if isinstance(example, ChoiceQuestion) else texts
    if not all(map(str.strip, required)):
        flags |= BLANK
    return _hash(normalized), document, words, sum(map(len, texts)), flags
