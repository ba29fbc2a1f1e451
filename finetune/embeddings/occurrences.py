"""Occurrences of words in texts, with the label of each: its sense, tag, entity type or the text's.

Jurafsky & Martin, *Speech and Language Processing* (3rd ed.), "Masked Language Models", figure 11.7
shows the vectors of one word in many contexts.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finetune.cli.output import show
from finetune.data.files import is_pipe, open_data
from finetune.data.tables import read_file
from finetune.data.texts import read_text_file
from finetune.data.tokens import input_type_of, read_token_file
from finetune.data.word_splitting import split_words
from finetune.embeddings.sense_data import read_sense_file
from finetune.types import Example, TextExample, TokenExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.embeddings.commands import Map

CONTEXT = 100
"""Words before and after an occurrence that the encoder reads."""
SHOWN = 30
"""Words before and after an occurrence that people see."""
_TAG_PREFIX = re.compile(r"^[BIESLUM]-")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a word: the words ``start`` to ``end - 1`` of its context ``words``.

    ``id`` is the id of the text in the data, else its index; ``shown`` is the text for people, with
    the word in brackets.
    """

    word: str
    id: str | int
    words: tuple[str, ...]
    start: int
    end: int
    shown: str
    label: str | None = None


class Occurrences(NamedTuple):
    """A sample of occurrences, and the numbers of texts and of distinct occurrences by word."""

    sample: list[Occurrence]
    num_texts: int
    counts: dict[str, int]


def parse_words(value: str) -> dict[str, tuple[str, ...]]:
    """Parse a list of words: commas separate words, slashes separate the forms of a word.

    >>> parse_words("bank/banks,die")
    {'bank': ('bank', 'banks'), 'die': ('die',)}
    """
    words: dict[str, tuple[str, ...]] = {}
    for item in value.split(","):
        forms = tuple(" ".join(form.split()) for form in item.split("/"))
        if not all(split_words(form)[0] for form in forms):
            raise UserError(
                f"--word {value!r}: {item.strip()!r} is not a word: write words with commas "
                "between them and their forms with slashes, such as bank/banks,die."
            )
        if forms[0] in words:
            raise UserError(f"--word {value!r}: {forms[0]!r} is named twice: name each word once.")
        words[forms[0]] = forms
    return words


def read_examples(
    file: str, *, columns: Mapping[str, str] | None = None, encoding: str = "utf-8"
) -> Iterator[Example]:
    """Stream the texts or sentences of a file of any format, with their labels, tags or spans.

    Standard input (`-`) and pipes are read as texts.
    """
    if Path(file).is_file() and _has_senses(file, encoding):
        yield from read_sense_file(file, encoding)
    elif file != "-" and not is_pipe(Path(file)) and input_type_of(file, encoding) == "tokens":
        yield from read_token_file(file, columns=columns, encoding=encoding)
    else:
        yield from read_text_file(file, columns=columns, pair=False, encoding=encoding)


def _has_senses(path: str, encoding: str) -> bool:
    file = open_data(path, encoding=encoding)
    if file.format not in ("json", "jsonl", "parquet"):
        return False
    return any("targets" in row.values for row in read_file(file).peek(1))


def find_occurrences(
    examples: Iterable[Example],
    words: Mapping[str, Sequence[str]],
    *,
    limit: int = 300,
    seed: int = 1,
) -> Occurrences:
    """Sample at most ``limit`` occurrences of each word, in the order of the data.

    A text or sentence that occurs again counts once. The label of an occurrence is the label of its
    text, the sense of a target (which matches by its lemma, in all forms), the type of the
    innermost span around it, or the tag of its first word without the prefix of the tag scheme.

    Args:
        examples: Texts or sentences.
        words: The forms of each word, by its name.
        limit: The largest number of occurrences of each word.
        seed: Seed of the sample.

    Raises:
        UserError: A word does not occur.
    """
    forms: dict[tuple[str, ...], str] = {}
    for name, texts in words.items():
        for text in map(_fold, texts):
            forms |= dict.fromkeys((tuple(split_words(text)[0]), tuple(text.split())), name)
    uses: dict[str, list[Occurrence]] = {name: [] for name in words}
    contexts, num_texts = set(), 0
    for example in examples:
        num_texts += bool(example.line().strip())
        for occurrence in _find(example, forms):
            key = hash((occurrence.word, occurrence.words, occurrence.start))
            if key not in contexts:
                contexts.add(key)
                uses[occurrence.word].append(occurrence)
    sample: list[Occurrence] = []
    for name, occurrences in uses.items():
        if not occurrences:
            raise UserError(
                f"--word {name}: none of the {num_texts:,} texts has it: give other texts, "
                f"or its forms, such as {name}/{name.upper()}."
            )
        size = len(occurrences)
        numbers = sorted(random.Random(seed).sample(range(size), min(size, limit)))
        sample += [occurrences[number] for number in numbers]
    return Occurrences(sample, num_texts, {name: len(uses[name]) for name in uses})


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _find(example: Example, forms: Mapping[tuple[str, ...], str]) -> Iterator[Occurrence]:
    sentence = example
    if isinstance(sentence, TextExample):
        if not any(form[0] in _fold(sentence.text) for form in forms):
            return
        words, offsets = split_words(sentence.text)
        text: dict[str, Any] = {"text": sentence.text, "offsets": offsets, "key": sentence.key}
        sentence = TokenExample(sentence.id, tuple(words), **text)
    for target in sentence.targets:
        if name := forms.get(tuple(_fold(target.lemma).split("_"))):
            sense = next(iter(target.senses), None)
            yield _occurrence(sentence, name, target.start, target.end, sense)
    if sentence.targets:
        return
    folded = [_fold(word) for word in sentence.words]
    lengths = sorted({len(form) for form in forms}, reverse=True)
    for start in range(len(folded)):
        candidates = (tuple(folded[start : start + length]) for length in lengths)
        if form := next((candidate for candidate in candidates if candidate in forms), None):
            end = start + len(form)
            yield _occurrence(sentence, forms[form], start, end, _label(example, start, end))


def _label(example: Example, start: int, end: int) -> str | None:
    if isinstance(example, TextExample):
        if isinstance(example.label, tuple):
            return ", ".join(example.label) or None
        return f"{example.label:g}" if isinstance(example.label, float) else example.label
    if example.spans is not None:
        around = [span for span in example.spans if span.start <= start and end <= span.end]
        return min(around, key=lambda s: s.end - s.start).label if around else None
    return None if example.tags is None else _TAG_PREFIX.sub("", example.tags[start])


def _occurrence(
    sentence: TokenExample, name: str, start: int, end: int, label: str | None
) -> Occurrence:
    words, text, offsets = sentence.words, sentence.text, sentence.offsets
    low, high = max(0, start - SHOWN), min(len(words), end + SHOWN)
    if offsets is not None and text is not None:
        begin, stop = offsets[start][0], offsets[end - 1][1]
        before, after = text[offsets[low][0] : begin], text[stop : offsets[high - 1][1]]
        shown = f"{before}[{text[begin:stop]}]{after}"
    else:
        shown = " ".join([*words[low:start], f"[{' '.join(words[start:end])}]", *words[end:high]])
    id, first = sentence.id if sentence.key is None else sentence.key, max(0, start - CONTEXT)
    context, shown = words[first : end + CONTEXT], " ".join(shown.split())
    return Occurrence(name, id, context, start - first, end - first, shown, label)


def sample_occurrences(command: Map) -> Sequence[Occurrence]:
    """Sample the occurrences of the command's words, and print their number."""
    occurrences = find_occurrences(
        read_examples(command.file, **command.reading),
        parse_words(command.word),
        limit=command.most,
        seed=command.seed,
    )
    for word, number in occurrences.counts.items():
        sampled = f", {command.most:,} drawn at random (--most)" if number > command.most else ""
        texts = quantity(occurrences.num_texts, "text")
        show(f"{word}: {quantity(number, 'occurrence')} in {texts}{sampled}", error=True)
    return occurrences.sample
