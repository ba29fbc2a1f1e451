"""Occurrences of words in texts, with the label of each: its sense, tag, entity type or the text's.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", figure 11.7
shows the vectors of one word in many contexts.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from finetune.cli.output import show
from finetune.data.formats import open_data, read_file
from finetune.data.texts import read_text_file
from finetune.data.tokens import data_kind, read_token_file
from finetune.data.word_splitting import split_words
from finetune.embeddings.sense_data import read_sense_file
from finetune.types import (
    Example,
    TextExample,
    TokenExample,
    UserError,
    did_you_mean,
    quantity,
)

if TYPE_CHECKING:
    from finetune.embeddings.commands import Map

CONTEXT = 100
"""Words before and after an occurrence that the encoder reads."""
SHOWN = 30
"""Words before and after an occurrence that people see."""

_BLANKS = re.compile(r"\s+")
_TAG_PREFIX = re.compile(r"^[BIESLUM]-")


@dataclass(frozen=True, slots=True)
class Word:
    """A word to look for: its name, and the forms of it that count, as sequences of words.

    A form that ends with ``*`` also stands for every word that begins with it.
    """

    name: str
    forms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a word: the words ``start`` to ``end - 1`` of its context.

    ``before``, ``form`` and ``after`` are the text for people. ``id`` is the id of the text in the
    data, else its index.
    """

    word: str
    id: str | int
    words: tuple[str, ...]
    start: int
    end: int
    before: str
    form: str
    after: str
    label: str | None = None


@dataclass
class Occurrences:
    """A sample of occurrences, with the numbers it was drawn from."""

    sample: list[Occurrence]
    num_texts: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """Number of distinct occurrences of each word."""
    num_repeated: int = 0
    """Occurrences left out because their context occurred before."""


class _Match(NamedTuple):
    word: str
    start: int
    end: int
    label: str | None


def parse_words(value: str) -> list[Word]:
    """Return the words of ``bank/banks,die*``: commas between words, slashes between forms.

    The first form names the word.

    Raises:
        UserError: A word is empty or named twice.

    Examples:
        >>> parse_words("bank/banks,die")
        [Word(name='bank', forms=('bank', 'banks')), Word(name='die', forms=('die',))]
    """
    words = []
    for item in value.split(","):
        forms = tuple(" ".join(form.split()) for form in item.split("/"))
        if not all(split_words(form.removesuffix("*"))[0] for form in forms):
            raise UserError(
                f"--word {value!r}: {item.strip()!r} is not a word: write words with commas "
                "between them and their forms with slashes, such as bank/banks,die."
            )
        words.append(Word(forms[0].removesuffix("*"), forms))
    repeated = [name for name, count in Counter(word.name for word in words).items() if count > 1]
    if repeated:
        raise UserError(f"--word {value!r}: {repeated[0]!r} is named twice: name each word once.")
    return words


def read_examples(
    file: str, *, columns: Mapping[str, str] | None = None, encoding: str = "utf-8"
) -> Iterator[Example]:
    """Stream the texts or sentences of a file of any format, with their labels, tags or spans.

    Args:
        file: A path; `-`, standard input, and pipes hold texts.
        columns: Columns by role if they have no usual names.
        encoding: Text encoding of the file.
    """
    if file != "-" and not Path(file).exists():
        raise UserError(f"--file {file}: no such file.")
    stored = Path(file).is_file() or Path(file).is_dir()  # a pipe can be read once only
    if stored and _has_senses(file, encoding):
        yield from read_sense_file(file, encoding)
    elif stored and data_kind(file, encoding) == "tokens":
        yield from read_token_file(file, columns=columns, encoding=encoding)
    else:
        yield from read_text_file(file, columns=columns, pair=False, encoding=encoding)


def _has_senses(path: str, encoding: str) -> bool:
    if Path(path).is_dir():
        return False
    file = open_data(path, encoding=encoding)
    if file.format not in ("json", "jsonl", "parquet", "xml"):
        return False
    table = read_file(file)
    first = None if table.sentences else table.first()
    return first is not None and "targets" in first.values


def find_occurrences(
    examples: Iterable[Example],
    words: Sequence[Word],
    *,
    match_case: bool = False,
    limit: int = 300,
    seed: int = 1,
) -> Occurrences:
    """Return at most ``limit`` occurrences of each word, drawn at random, in the order of the data.

    Memory does not grow with the number of texts. A text or sentence that occurs again counts once.
    The label of an occurrence is the label of its text, or its sense (targets match by their lemma,
    so that they are found in all forms), or the type of the innermost span around it, or the tag
    of its first word, without the prefix of a tag scheme.

    Raises:
        UserError: A word does not occur.
    """
    if limit < 1:
        raise UserError(f"--most must be 1 or more, not {limit}.")
    finder = _Finder(words, match_case)
    generator = random.Random(seed)
    drawn: dict[str, list[tuple[int, Occurrence]]] = {word.name: [] for word in words}
    seen: set[int] = set()
    result = Occurrences([])
    vocabulary: dict[str, None] = {}
    for number, example in enumerate(examples):
        result.num_texts += 1
        units, offsets, matches = finder.find(example)
        if len(vocabulary) < 20_000:
            vocabulary.update(dict.fromkeys(example.text.split() if example.text else units))
        for match in matches:
            occurrence = _occurrence(example, units, offsets, match)
            key = hash((match.word, occurrence.words, occurrence.start))
            if key in seen:
                result.num_repeated += 1
                continue
            seen.add(key)
            result.found[match.word] += 1
            sample = drawn[match.word]  # reservoir sampling
            if len(sample) < limit:
                sample.append((number, occurrence))
            elif (place := generator.randrange(result.found[match.word])) < limit:
                sample[place] = (number, occurrence)
    for word in words:
        if not drawn[word.name]:
            hint = did_you_mean(word.name, vocabulary)
            raise UserError(
                f"--word {word.name}: none of the {result.num_texts:,} texts has it: give other "
                f"texts, or its forms, such as {word.name}/{word.name.upper()}.{hint}"
            )
        drawn[word.name].sort(key=lambda item: (item[0], item[1].start))
        result.sample += [occurrence for _, occurrence in drawn[word.name]]
    return result


class _Finder:
    """Finds forms of words, which may be several words long, in examples."""

    def __init__(self, words: Sequence[Word], match_case: bool) -> None:
        self.match_case = match_case
        self.forms: list[tuple[str, tuple[str, ...], bool]] = []
        """The name of a word, a form as words, and whether its last word is a prefix."""
        for word in words:
            for form in word.forms:
                plain = self._fold(form.removesuffix("*"))
                for split in dict.fromkeys((tuple(split_words(plain)[0]), tuple(plain.split()))):
                    self.forms.append((word.name, split, form.endswith("*")))
        self.firsts = {split[0] for _, split, _ in self.forms}

    def _fold(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        return text if self.match_case else text.casefold()

    def find(
        self, example: Example
    ) -> tuple[Sequence[str], Sequence[tuple[int, int]] | None, list[_Match]]:
        """Return the words of an example, their characters if it is a text, and the matches."""
        if isinstance(example, TextExample):
            folded = self._fold(example.text)
            if not any(first in folded for first in self.firsts):
                return (), None, []
            words, offsets = split_words(example.text)
            found = self._matches(words)
            label = _name(example.label)
            return words, offsets, [_Match(*match, label) for match in found]
        if example.targets:
            return example.words, example.offsets, list(self._senses(example))
        matches = []
        for name, start, end in self._matches(example.words):
            label = None
            if example.spans is not None:
                around = [s for s in example.spans if s.start <= start and end <= s.end]
                label = min(around, key=lambda s: s.end - s.start).label if around else None
            elif example.tags is not None:
                label = _TAG_PREFIX.sub("", example.tags[start])
            matches.append(_Match(name, start, end, label))
        return example.words, example.offsets, matches

    def _senses(self, example: TokenExample) -> Iterator[_Match]:
        for target in example.targets:
            lemma = self._fold(target.lemma.replace("_", " "))
            for name, form, is_prefix in self.forms:
                whole = " ".join(form)
                if lemma == whole or (is_prefix and lemma.startswith(whole)):
                    sense = next(iter(target.senses), None)
                    yield _Match(name, target.start, target.end, sense)
                    break

    def _matches(self, words: Sequence[str]) -> list[tuple[str, int, int]]:
        folded = [self._fold(word) for word in words]
        found: dict[tuple[str, int], int] = {}
        for start in range(len(folded)):
            for name, form, is_prefix in self.forms:
                end = start + len(form)
                *head, last = form
                if (
                    end <= len(folded)
                    and (folded[end - 1].startswith(last) if is_prefix else folded[end - 1] == last)
                    and folded[start : end - 1] == head
                ):
                    found[name, start] = max(end, found.get((name, start), 0))
        return [(name, start, end) for (name, start), end in found.items()]


def _name(label: str | tuple[str, ...] | float | None) -> str | None:
    if isinstance(label, tuple):
        return ", ".join(label) or None
    return label if label is None or isinstance(label, str) else f"{label:g}"


def _occurrence(
    example: Example, words: Sequence[str], offsets: Sequence[tuple[int, int]] | None, match: _Match
) -> Occurrence:
    first, last = max(0, match.start - CONTEXT), min(len(words), match.end + CONTEXT)
    low, high = max(0, match.start - SHOWN), min(len(words), match.end + SHOWN)

    if offsets is not None and example.text is not None:
        begin, end = offsets[match.start][0], offsets[match.end - 1][1]
        before = example.text[offsets[low][0] : begin]
        form, after = example.text[begin:end], example.text[end : offsets[high - 1][1]]
    else:
        before = "".join(f"{word} " for word in words[low : match.start])
        form = " ".join(words[match.start : match.end])
        after = "".join(f" {word}" for word in words[match.end : high])
    return Occurrence(
        match.word,
        example.id if example.key is None else example.key,
        tuple(words[first:last]),
        match.start - first,
        match.end - first,
        _BLANKS.sub(" ", f"{'… ' if low else ''}{before}"),
        _BLANKS.sub(" ", form),
        _BLANKS.sub(" ", f"{after}{' …' if high < len(words) else ''}"),
        match.label,
    )


def sample_occurrences(command: Map) -> Sequence[Occurrence]:
    """Return the occurrences of the command's words, and say how many there are."""
    words = parse_words(command.word)
    found = find_occurrences(
        read_examples(command.file, **command.reading),
        words,
        match_case=command.match_case,
        limit=command.most,
        seed=command.seed,
    )
    for word, number in found.found.items():
        sampled = f", {command.most:,} drawn at random (--most)" if number > command.most else ""
        texts = quantity(found.num_texts, "text")
        show(f"{word}: {quantity(number, 'occurrence')} in {texts}{sampled}", error=True)
    if found.num_repeated:
        show(f"repeated contexts left out: {found.num_repeated:,}", error=True)
    if missing := sum(each.label is None for each in found.sample):
        total = len(found.sample)
        show(f"occurrences without a label: {missing:,} of {total:,}", error=True)
    return found.sample
