"""Examples in order: in memory, or in columns on disk if they are many.

``Examples`` is the one holder of examples: nothing else asks where they are. It also knows facts of
its examples as numbers, which checks and splits need instead of the texts: hashes and sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload
from unicodedata import normalize

import xxhash

from finetune.data.disk import Column, Disk, Place, SavedColumns, dump_values, load_values
from finetune.runtime.cache import unnamed_file
from finetune.runtime.progress import stage
from finetune.runtime.workers import forked_map, num_workers
from finetune.types import EXAMPLES, ChoiceQuestion, Example, TextExample, TokenExample

if TYPE_CHECKING:
    import numpy as np

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
_INTERNED = ("label", "tags", "layers", "document", "key")
"""Columns with few different values, each of which is written once in a chunk."""
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
        with stage(title, len(self)) as show:
            for number, lines in enumerate(self.each_chunk(_rendered)):
                show(number * CHUNK)
                yield lines

    def digest(self) -> str:
        """Return a hash of the content, ids and order of the examples; ``where`` is no part."""
        digest = xxhash.xxh3_128(_encode(list(self.column("id"))).encode())
        for lines in self.content("reading"):
            digest.update(lines)
        return digest.hexdigest()

    def save(self, file: SavedColumns) -> Any:
        """Write to a file what these examples use; return their description for ``load``."""
        return self._examples

    @staticmethod
    def load(disk: Disk, saved: Any) -> Examples:
        """Return the examples that ``save`` has described, from its file."""
        return _Spilled.of_saved(disk, saved) if isinstance(saved, dict) else Examples(saved)


@dataclasses.dataclass
class _Columns:
    """Columns of examples on disk: their fields except ``id``, and their facts.

    ``places`` has the places of a field or a fact by its name, ``sizes`` the number of examples in
    each chunk.
    """

    kind: type[Any]
    disk: Disk
    places: dict[str, Column]
    sizes: Sequence[int]
    known_digest: str = ""

    def digest(self) -> str:
        """Return a hash of all examples, without ``where``."""
        if not self.known_digest:
            digest = xxhash.xxh3_128(self.kind.__name__.encode())
            for name, column in self.places.items():
                digest.update(f"\x00{name}".encode())
                for place in column if name != "where" else ():
                    digest.update(self.disk.read(place))
            self.known_digest = digest.hexdigest()
        return self.known_digest

    def values(self, name: str, chunk: int) -> list[Any]:
        """Return the values of a field in a chunk."""
        values = load_values(self.disk.read(self.places[name][chunk]))
        return values if isinstance(values, list) else [values] * self.sizes[chunk]


class _Spilled(Examples):
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
        for values in self._chunks(fields_of(self.kind)):
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

        places = self.written.places[_FACT + name]
        joined = np.frombuffer(b"".join(map(self.written.disk.read, places)), FACTS[name])
        return joined if self.rows is None else joined[self.rows]

    def take(self, indices: Numbers | Sequence[int]) -> Examples:
        import numpy as np

        indices = np.asarray(indices)
        rows = indices.astype(INDEX) if self.rows is None else self.rows[indices]
        ids = indices.astype(INDEX) if self.ids is None else self.ids[indices]
        return _Spilled(self.written, rows, ids)

    def renumbered(self) -> Examples:
        return _Spilled(self.written, self.rows)

    def replace(self, name: str, values: Iterable[Any]) -> Examples:
        values = iter(values)
        disk, places = self.written.disk, list(self.written.places[name])
        if self.rows is None:
            for number, size in enumerate(self.written.sizes):
                own = list(itertools.islice(values, size))
                places[number] = disk.write(_dumped(name, own))
        changed = dataclasses.replace(
            self.written, places={**self.written.places, name: places}, known_digest=""
        )
        for number, chosen in self._segments():
            own = list(itertools.islice(values, len(chosen)))
            whole = changed.values(name, number)
            for index, value in zip(chosen.tolist(), own, strict=True):
                whole[index] = value
            places[number] = disk.write(_dumped(name, whole))
        if next(values, values) is not values:
            raise ValueError(f"more than {len(self)} values of {name}")
        return _Spilled(changed, self.rows, self.ids)

    def map(self, change: Callable[[int, Any], Any], title: str = "converting") -> Examples:
        def changed(start: int) -> tuple[list[Any], None]:
            own = enumerate(self[start : start + CHUNK], start)
            return list(itertools.starmap(change, own)), None

        starts = range(0, len(self), CHUNK)
        workers = max(1, min(num_workers(), len(starts)))
        with stage(title, len(self)) as show:
            found = gathered(changed, starts, lambda number, _: show(number), workers)
        if self.ids is None or not len(self):
            return found
        return _Spilled(cast("_Spilled", found).written, ids=self.ids)

    def each_chunk(self, compute: Callable[[Examples], R]) -> Iterator[R]:
        starts = range(0, len(self), CHUNK)
        workers = max(1, min(num_workers(), len(starts)))
        yield from forked_map(lambda start: compute(self[start : start + CHUNK]), starts, workers)

    def digest(self) -> str:
        digest = xxhash.xxh3_128(self.written.digest().encode())
        for numbers in (self.rows, self.ids):
            digest.update(b"-" if numbers is None else numbers.tobytes())
        return digest.hexdigest()

    def save(self, file: SavedColumns) -> Any:
        written = self.written
        saved: dict[str, Any] = {
            "kind": written.kind.__name__,
            "places": {n: file.copied(written.disk, own) for n, own in written.places.items()},
            "sizes": written.sizes,
            "digest": written.digest(),
        }
        for name, numbers in ("rows", self.rows), ("ids", self.ids):
            saved[name] = None if numbers is None else file.disk.write(numbers.tobytes())
        return saved

    @staticmethod
    def of_saved(disk: Disk, saved: Mapping[str, Any]) -> _Spilled:
        """Return the examples that ``save`` has described."""
        import numpy as np

        rows, ids = (
            None if place is None else np.frombuffer(disk.read(place), INDEX)
            for place in (saved["rows"], saved["ids"])
        )
        kind, digest = _KINDS[saved["kind"]], saved["digest"]
        return _Spilled(_Columns(kind, disk, saved["places"], saved["sizes"], digest), rows, ids)

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
        if self.rows is None:
            for number in range(len(self.written.sizes)):
                yield [self.written.values(name, number) for name in names]
        for number, places in self._segments():
            chosen = places.tolist()
            whole = chosen == list(range(self.written.sizes[number]))
            found = [self.written.values(name, number) for name in names]
            yield found if whole else [[values[i] for i in chosen] for values in found]


def fields_of(kind: Any) -> tuple[str, ...]:
    """Return the fields of examples except ``id``, or of a named tuple."""
    if dataclasses.is_dataclass(kind):
        names = (field.name for field in dataclasses.fields(kind))
        return tuple(name for name in names if name != "id")
    fields: tuple[str, ...] = kind._fields
    return fields


def collected(examples: Iterable[Any], title: str = "reading") -> Examples:
    """Return the examples of a stream; ``title`` is shown while they come."""
    examples = iter(examples)
    with stage(title, unit="row") as show:
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

    def made(chunk: Any) -> tuple[_Packed | None, R]:
        examples, more = make(chunk)
        return _packed(examples) if examples else None, more

    disk, sizes, kind = Disk(unnamed_file()), list[int](), TextExample
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for own, more in forked_map(made, chunks, workers):
        if own is not None:
            kind = own.kind
            sizes.append(own.size)
            for name, content in own.columns.items():
                places[name].append(disk.write(content))
        seen(sum(sizes), more)
    return _Spilled(_Columns(kind, disk, dict(places), sizes)) if sizes else Examples()


class _Packed(NamedTuple):
    """A chunk of examples that another process may have made."""

    kind: type[Any]
    size: int
    columns: dict[str, bytes]


def _packed(examples: Sequence[Any]) -> _Packed:
    kind = type(examples[0])
    columns = {
        name: _dumped(name, list(map(attrgetter(name), examples))) for name in fields_of(kind)
    }
    if kind in _KINDS.values():
        facts = computed_facts(examples)
        columns |= {_FACT + name: numbers.tobytes() for name, numbers in facts.items()}
    return _Packed(kind, len(examples), columns)


def _dumped(name: str, values: list[Any]) -> bytes:
    first = values[0]
    if first is None or first == ():
        if all(value is first or value == first for value in values):
            return dump_values(first)
    if name in _INTERNED:
        known: dict[Any, Any] = {}
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0, and not the same label
        values = [
            each if isinstance(each, float) else known.setdefault((type(each), each), each)
            for each in values
        ]
    return dump_values(values)


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
