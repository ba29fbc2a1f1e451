"""Read running text, and pack its lines into sequences of at most the longest sequence.

Liu et al. (2019), RoBERTa: DOC-SENTENCES, the better variant, ends a sequence with its document;
FULL-SENTENCES goes on with the next document after a separator. Lines stay whole. A line over the
limit is cut between words, and begins in the previous sequence if there is room. Nothing is left
out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from finetune.data import Dataset
from finetune.data.examples import Examples, collected
from finetune.data.running_text import text_sources
from finetune.data.sources import PartOf, content_of, resolve
from finetune.data.splitting import sampling_probabilities
from finetune.models.warm_start import LANGUAGE_MODELS
from finetune.preprocessing.encodings import Array
from finetune.preprocessing.preparation import (
    Prepared,
    cached,
    limited,
    with_held_out_splits,
)
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.model import require_next_sentence
from finetune.pretraining.sentence_pairs import pair_notes
from finetune.pretraining.settings import PretrainConfig
from finetune.pretraining.task import PretrainingState, PretrainingTask
from finetune.tasks.base import Task
from finetune.tasks.definition import load_tokenizer, sequence_limit, starting_config
from finetune.types import TextBlock, TextExample, UserError, quantity

Packing = Literal["doc-sentences", "full-sentences"]

HELD_OUT_SHARE = 0.05
"""Fraction of the documents to hold out for validation."""
DOCUMENTS_AT_ONCE = 4096
"""Number of documents to tokenize at a time."""


class _Line(NamedTuple):
    """A line, or part of one: its subword ids, and the first subword of each word."""

    text: str
    ids: Sequence[int]
    starts: Sequence[int]


@dataclass
class Packer:
    """Packs the lines of documents into numbered sequences, and counts them."""

    tokenizer: SubwordTokenizer
    max_length: int
    """The longest sequence in tokens, with special tokens."""
    packing: Packing
    """End sequences with their document, or go on after a separator. Documents in one sequence have
    an empty line between them."""
    lines: int = 0
    cut: int = 0
    """Lines over the limit, which were cut."""
    empty: int = 0
    """Lines without subwords, which have no place in a sequence."""
    sequences: int = 0

    def __post_init__(self) -> None:
        """Prepare the counts ``frequency`` of each subword [V], and the separator."""
        self.room = self.tokenizer.room(self.max_length)
        self.frequency: Array = np.zeros(len(self.tokenizer.tokenizer), np.int64)
        self._separator = _Line("", [self.tokenizer.tokenizer.sep_token_id], [0])

    def note(self) -> str:
        """Describe the packed text for the log."""
        subwords = int(self.frequency.sum())
        full = subwords / max(1, self.sequences * self.room)
        note = (
            f"{quantity(subwords, 'subword')} of {quantity(self.lines, 'line')} in "
            f"{quantity(self.sequences, 'sequence')}, {full:.0%} full"
        )
        if self.cut:
            note += f"; {quantity(self.cut, 'line')} over {self.room} subwords cut between words"
        if self.empty:
            note += f"; {quantity(self.empty, 'line')} without subwords left out"
        return note

    def pack(self, documents: Sequence[TextExample]) -> Iterator[TextBlock]:
        """Pack documents, with one line of ``text`` for each unit that stays whole."""
        block, size, source = list[_Line](), 0, TextExample(0, "")
        for document, lines in self._tokenized(documents):
            if block and (self.packing == "doc-sentences" or document.key != source.key):
                yield self._block(block, source)
                block, size = [], 0
            elif block:
                block.append(self._separator)
                size += 1
            self.lines += len(lines)
            for line in lines:
                self.empty += not line.ids
                parts: Iterable[_Line] = [line] if line.ids else []
                if len(line.ids) > self.room:
                    self.cut += 1
                    parts = self._cut(line, self.room - size)
                for part in parts:
                    if size + len(part.ids) > self.room:
                        yield self._block(block, source)
                        block, size = [], 0
                    source = source if block else document
                    block.append(part)
                    size += len(part.ids)
        if block:
            yield self._block(block, source)

    def _block(self, block: list[_Line], source: TextExample) -> TextBlock:
        while block[-1] is self._separator:
            del block[-1]
        ids, starts, lines = array("i"), array("i"), array("i")
        for line in block:
            lines.append(len(starts))
            starts.extend([len(ids) + start for start in line.starts])
            ids.extend(line.ids)
        text = "\n".join([line.text for line in block])
        origin: Any = {"where": source.where, "key": source.key, "document": source.id}
        subwords = ids.tobytes(), starts.tobytes(), lines.tobytes()
        self.sequences += 1
        return TextBlock(self.sequences - 1, text, subwords=subwords, **origin)

    def _tokenized(
        self, documents: Sequence[TextExample]
    ) -> Iterator[tuple[TextExample, list[_Line]]]:
        remaining = iter(documents)
        while chunk := list(islice(remaining, DOCUMENTS_AT_ONCE)):
            texts = [document.text.split("\n") for document in chunk]
            all_lines = [line for lines in texts for line in lines]
            subwords = self.tokenizer.subwords_with_words(all_lines)
            flat = np.array(list(chain.from_iterable(ids for ids, _ in subwords)), np.int64)
            self.frequency += np.bincount(flat, minlength=len(self.frequency))
            subwords_of_lines = iter(subwords)
            for document, lines in zip(chunk, texts, strict=True):
                yield document, [_Line(line, *next(subwords_of_lines)) for line in lines]

    def _cut(self, line: _Line, space: int) -> Iterator[_Line]:
        offsets = self.tokenizer.backend.encode(line.text, add_special_tokens=False).offsets
        room, bounds = self.room, [*line.starts, len(line.ids)]
        begin, text_begin, limit = 0, 0, space if space >= room // 4 else room
        while begin < len(line.ids):
            end = bounds[bisect_right(bounds, begin + limit) - 1]
            if end <= begin:  # the word begins a sequence, and is cut if it is over the limit
                end = bounds[bisect_right(bounds, begin + room) - 1]
                end = end if end > begin else begin + room
            text_end = offsets[end - 1][1] if end < len(line.ids) else len(line.text)
            inside = bounds[bisect_left(bounds, begin) : bisect_left(bounds, end)]
            starts = sorted({0, *(start - begin for start in inside)})
            yield _Line(line.text[text_begin:text_end], line.ids[begin:end], starts)
            begin, text_begin, limit = end, text_end, room


def cached_documents(
    config: PretrainConfig, data: Any, tokenizer: SubwordTokenizer, longest: int
) -> Prepared:
    """Pack documents as ``packed_documents`` does; take large running text from the cache."""
    make = partial(packed_documents, config, data, tokenizer, longest)
    part = data if isinstance(data, PartOf) else PartOf(data)
    if not isinstance(part.spec, str | Path) or not str(part.spec).strip():
        return make()
    sources = text_sources(str(part.spec), config.encoding)
    contents = [
        content_of(resolve(source.hub)) if source.hub else source.files for source in sources
    ]
    read = part.without_test, longest, tokenizer.leading_space, tokenizer.placeholder
    of_tokenizer = {"read": read, "tokenizer": tokenizer.backend.to_str()}
    return cached(make, config, sources, contents, **of_tokenizer)


def packed_documents(config: Any, data: Any, tokenizer: SubwordTokenizer, longest: int) -> Prepared:
    """Read the documents and pack them into sequences of at most ``longest`` tokens."""
    if not isinstance(data, Dataset):
        data = PretrainingTask.read(config, data)
    if "train" not in data.splits:
        raise UserError(f"{config.data}: there is no train split: name it with --data train=.")
    data = with_held_out_splits(data, config, HELD_OUT_SHARE)
    splits, notes, frequency = dict[str, Examples](), list[str](), list[int]()
    for split, documents in data.splits.items():
        packer = Packer(tokenizer, longest, config.packing)
        sequences = collected(packer.pack(documents), "packing")
        if not sequences:
            raise UserError(f"{data.name}: {split} has no subword: is there text in it?")
        notes.append(f"{split}: {packer.note()}")
        splits[split] = sequences.replace("key", repeat(None, len(sequences)))
        if split == "train":
            frequency = packer.frequency.tolist()
            if sampled := [*_resampled(sequences, config.alpha)]:
                chosen, notes_of_sources = zip(*sampled, strict=True)
                splits[split] = splits[split].take(np.concatenate(chosen)).renumbered()
                notes += notes_of_sources
    packed = replace(data, splits=splits)
    return Prepared(packed, {"notes": notes, "frequency": frequency}, data.is_large)


def _resampled(sequences: Examples, alpha: float) -> Iterator[tuple[Array, str]]:
    # Equation 11.7: sequences of small sources are repeated, and no sequence is left out.
    numbers: dict[Any, int] = {}
    keys = (numbers.setdefault(key, len(numbers)) for key in sequences.column("key"))
    source = np.fromiter(keys, np.int32)
    if len(numbers) == 1:
        return
    sizes = np.bincount(source).tolist()
    proportions = sampling_probabilities(sizes, alpha)
    total = max(size / share for size, share in zip(sizes, proportions, strict=True))
    for (name, index), size, share in zip(numbers.items(), sizes, proportions, strict=True):
        number = max(size, round(share * total))
        times = f"{share:.1%} of an epoch ({number / size:.1f} times each)"
        rows = np.resize((source == index).nonzero()[0], number)
        yield rows, f"{name}: {quantity(size, 'sequence')}, {times}"


def load_packed(task: type[Task], config: Any, data: Any = None) -> tuple[Task, Dataset]:
    """Load the tokenizer, read the documents, and pack their lines into sequences."""
    if config.config is not None:
        if config.tokenizer is None and config.config == "small":
            raise UserError(
                "--config small: name a tokenizer with --tokenizer, such as a folder that finetune "
                "vocabulary wrote, or a model such as minilm."
            )
        warm_start = None
        tokenizer = SubwordTokenizer.saved(config.tokenizer or str(config.config))
    else:
        warm_start, tokenizer = load_tokenizer(config, task, ())
    encoder = starting_config(config, warm_start)
    if config.nsp:
        require_next_sentence(str(config.config or config.model or config.init_from), encoder)
    limit = sequence_limit(config, tokenizer, warm_start)
    longest = limit  # of a packed sequence alone
    if config.nsp:
        longest -= tokenizer.pair.num_special - tokenizer.single.num_special
    data = config.data if data is None else data
    packed, derived, _ = cached_documents(config, data, tokenizer, longest)
    fields = PretrainingTask.derive(config, packed)
    state = PretrainingState(config=config, max_length=limit, **fields)
    notes, names = [*packed.notes], encoder.architectures or ()
    if not warm_start and names and not any(name.endswith(LANGUAGE_MODELS) for name in names):
        notes.append(f"{names[0]} has no masked language model: its head is new")
    packed = limited(replace(packed, notes=[*notes, *derived["notes"]]), config)
    if config.nsp:
        packed = replace(packed, notes=[*packed.notes, *pair_notes(packed)])
    frequency = np.array(derived["frequency"], np.int64)
    return PretrainingTask(state, tokenizer, warm_start, _frequency=frequency), packed
