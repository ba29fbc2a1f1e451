"""Pack lines of running text into blocks of at most the longest sequence.

Liu et al. (2019), RoBERTa: DOC-SENTENCES, the better variant, ends a block with its document;
FULL-SENTENCES goes on with the next document after a separator. Lines stay whole. A line over the
limit is cut between words, and begins in the previous block if there is room. Nothing is left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy as np

from finetune.data import example_store
from finetune.data.collecting import collected
from finetune.data.example_facts import computed_facts
from finetune.data.example_store import ExampleStore, Packed, StoreWriter, packed
from finetune.preprocessing.encodings import Array
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.runtime.progress import stage
from finetune.runtime.workers import forked_map, num_workers
from finetune.types import TextExample, quantity

Packing = Literal["doc-sentences", "full-sentences"]

CHUNK = 4096
"""Number of documents to tokenize at a time."""
PREFIX = 16
"""Characters to tokenize at a time to cut a long line, in multiples of the limit."""


class _Line(NamedTuple):
    """A line, or part of one: its subword ids, and the first subword of each word."""

    text: str
    ids: Sequence[int]
    starts: Sequence[int]


@dataclass
class PackingCounts:
    """Counts of packed documents, lines and tokens."""

    documents: int = 0
    lines: int = 0
    cut: int = 0
    """Lines over the limit, which were cut."""
    empty: int = 0
    """Lines without subwords, which have no place in a block."""
    subwords: int = 0
    blocks: int = 0
    frequency: Any = None
    """Occurrences of each subword [V]."""

    def add(self, other: PackingCounts) -> None:
        """Add the counts of other documents."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def note(self, room: int) -> str:
        """Return one line for the log; ``room`` is the number of subwords that fit in a block."""
        full = self.subwords / max(1, self.blocks * room)
        note = (
            f"{quantity(self.subwords, 'subword')} of {quantity(self.lines, 'line')} in "
            f"{quantity(self.blocks, 'sequence')}, {full:.0%} full"
        )
        if self.cut:
            note += f"; {quantity(self.cut, 'line')} over {room} subwords cut between words"
        if self.empty:
            note += f"; {quantity(self.empty, 'line')} without subwords left out"
        return note


def pack_blocks(
    documents: Sequence[TextExample], tokenizer: SubwordTokenizer, max_length: int, packing: Packing
) -> tuple[Sequence[TextExample], PackingCounts]:
    """Return blocks of lines, numbered by their ids, and counts. Many blocks are on disk.

    Args:
        documents: Documents, one line of ``text`` for each unit that stays whole.
        tokenizer: Counts the subwords.
        max_length: The longest sequence in tokens, with special tokens.
        packing: End blocks with their document, or go on after a separator. A block of several
            documents has an empty line between them.
    """
    room = max_length - tokenizer.single.num_special

    def blocks_of(own: Sequence[TextExample]) -> tuple[Iterator[TextExample], PackingCounts]:
        frequency = np.zeros(len(tokenizer.tokenizer), dtype=np.int64)
        counts = PackingCounts(documents=len(own), frequency=frequency)
        return _packed(own, tokenizer, room, packing, counts), counts

    if packing == "full-sentences" or not isinstance(documents, ExampleStore):
        blocks, counts = blocks_of(documents)
        found = collected(blocks, "packing")
        counts.blocks = len(found)
        return found, counts
    store = documents

    def packed_chunk(start: int) -> tuple[Packed | None, PackingCounts]:
        blocks, counts = blocks_of(store[start : start + example_store.CHUNK])
        own = list(blocks)
        return packed(own, computed_facts) if own else None, counts

    (_, counts), writer = blocks_of([]), StoreWriter()
    starts = range(0, len(store), example_store.CHUNK)
    with stage("packing", len(store)) as show:
        for chunk, more in forked_map(packed_chunk, starts, min(num_workers(), len(starts))):
            if chunk is not None:
                writer.add(chunk)
            counts.add(more)
            show(counts.documents)
    counts.blocks = writer.size
    return writer.finish() if writer.size else [], counts


def _packed(
    documents: Sequence[TextExample],
    tokenizer: SubwordTokenizer,
    room: int,
    packing: Packing,
    counts: PackingCounts,
) -> Iterator[TextExample]:
    """Yield blocks of at most ``room`` subwords, and add up counts."""
    open_block = _OpenBlock(room, tokenizer.tokenizer.sep_token_id)
    for document, lines in _tokenized(documents, tokenizer, counts.frequency):
        if packing == "doc-sentences" or document.key != open_block.source.key:
            open_block.close()
        else:
            open_block.separate()
        counts.lines += len(lines)
        for line in lines:
            size = len(line.ids)
            counts.subwords += size
            if size > room:
                counts.cut += 1
                rest = room - open_block.size
                first = rest if rest >= room // 4 else room
                for part in _cut(line.text, tokenizer, first, room):
                    open_block.add(part, document)
            elif size:
                open_block.add(line, document)
            else:
                counts.empty += 1
        yield from open_block.taken()
    open_block.close()
    yield from open_block.taken()


class _OpenBlock:
    """The block being filled, and finished blocks."""

    def __init__(self, room: int, separator: int) -> None:
        self.room, self.size, self.number = room, 0, 0
        self.separator = _Line("", [separator], [0])
        self.lines: list[_Line] = []
        self.source = TextExample(0, "")
        self.closed: list[TextExample] = []

    def taken(self) -> list[TextExample]:
        """Return the finished blocks, and forget them."""
        blocks, self.closed = self.closed, []
        return blocks

    def add(self, line: _Line, document: TextExample) -> None:
        """Add a line, to a new block if it does not fit."""
        size = len(line.ids)
        if self.size + size > self.room:
            self.close()
        if not self.lines:
            self.source = document
        self.lines.append(line)
        self.size += size

    def separate(self) -> None:
        """Add a separator of documents."""
        if self.lines:
            self.lines.append(self.separator)
            self.size += 1

    def close(self) -> None:
        """End the block."""
        while self.lines and not self.lines[-1].text:
            del self.lines[-1]
        if self.lines:
            ids, starts, lines = array("i"), array("i"), array("i")
            for line in self.lines:
                lines.append(len(starts))
                before = len(ids)
                starts.extend([before + start for start in line.starts] if before else line.starts)
                ids.extend(line.ids)
            source = self.source
            block = TextExample(
                self.number,
                "\n".join([line.text for line in self.lines]),
                where=source.where,
                key=source.key,
                document=source.id,
                subwords=(ids.tobytes(), starts.tobytes(), lines.tobytes()),
            )
            self.closed.append(block)
            self.number += 1
        self.lines, self.size = [], 0


def _tokenized(
    documents: Sequence[TextExample], tokenizer: SubwordTokenizer, frequency: Array
) -> Iterator[tuple[TextExample, list[_Line]]]:
    """Yield each document with its lines and their subwords; add up ``frequency``."""
    remaining = iter(documents)
    while chunk := list(islice(remaining, CHUNK)):
        texts = [document.text.split("\n") for document in chunk]
        subwords = tokenizer.subwords_with_words([line for lines in texts for line in lines])
        flat = np.array(list(chain.from_iterable(ids for ids, _ in subwords)), np.int64)
        frequency += np.bincount(flat, minlength=len(frequency))
        found = iter(subwords)
        for document, lines in zip(chunk, texts, strict=True):
            yield document, [_Line(line, *next(found)) for line in lines]


def _cut(text: str, tokenizer: SubwordTokenizer, first: int, room: int) -> Iterator[_Line]:
    """Yield parts of a line, of at most ``room`` subwords each, the first of at most ``first``."""
    limit = first
    while text:
        part = text[: PREFIX * limit]
        size = len(tokenizer.text_subwords([part])[0])
        if size <= limit and len(part) < len(text):
            part = text
            size = len(tokenizer.text_subwords([part])[0])
        most = limit
        while size > limit:  # alone, a part can have a few subwords more
            part = part[: _end(part, tokenizer, most)]
            size = len(tokenizer.text_subwords([part])[0])
            most -= max(1, size - limit)
        if size:
            yield _Line(part, *tokenizer.subwords_with_words([part])[0])
        text, limit = text[len(part) :], room


def _end(text: str, tokenizer: SubwordTokenizer, limit: int) -> int:
    """Return the character at which the subwords of a text exceed a limit, after a whole word."""
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    ids, starts = tokenizer.subwords_with_words([text])[0]
    limit = max(1, min(limit, len(ids) - 1))
    inside = [start for start in starts if 0 < start <= limit]
    cut = inside[-1] if inside else limit
    return int(max(1, *(end for _, end in encoding.offsets[:cut])))
