"""The vocabulary of training data, which tells seen from unseen entities and words."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from finetune.data.examples import Examples
from finetune.data.json_files import read_object
from finetune.data.tag_schemes import spell_spans, tags_to_spans
from finetune.data.tokens import tags_and_scheme
from finetune.runtime.files import replace_file
from finetune.types import Example, SenseTarget, Span

Vocabulary = Mapping[str, Collection[str]]
"""The types of each surface form, or the tags of each word, in training data."""
FormSets = dict[str, frozenset[str]]
"""Such a vocabulary as it is made: millions of forms share a few sets."""
VOCABULARY_FILE = "training_vocabulary.json"


@dataclass(frozen=True)
class TrainingVocabulary:
    """The types of each entity's surface form in training data, or the tags of each word.

    A word has tags where tags do not spell entities.
    """

    entity_types: Vocabulary
    word_tags: Vocabulary

    @classmethod
    def of(cls, examples: Sequence[Example | SenseTarget]) -> TrainingVocabulary:
        """Collect the vocabulary of training examples; of texts it is empty."""
        sentences = Examples.of(examples)
        if not sentences.are_words:
            return cls({}, {})
        all_tags, lack_spans = set[str](), False

        def forms() -> Iterator[FormSets]:
            nonlocal lack_spans
            for tags, lacking, more in sentences.each_chunk(_forms_of_spans):
                all_tags.update(tags)
                lack_spans |= lacking
                yield more

        entity_types, word_tags = _joined(forms()), dict[str, frozenset[str]]()
        if all_tags and not spell_spans(all_tags):
            word_tags = _joined(sentences.each_chunk(_tags_of_words))
        elif all_tags and lack_spans:
            _, scheme = tags_and_scheme(sentences)
            found = sentences.each_chunk(partial(_forms_of_spans, scheme=scheme))
            entity_types = _joined(more for *_, more in found)
        return cls(entity_types, word_tags)

    @classmethod
    def load(cls, folder: Path) -> TrainingVocabulary | None:
        """Read the vocabulary of a run from its folder; None if there is no vocabulary."""
        path = folder / VOCABULARY_FILE
        if not path.is_file():
            return None
        table = dict[str, list[str]]
        content = read_object(path, {"entity_types": table, "word_tags": table})
        return cls(content["entity_types"], content["word_tags"])

    def save(self, folder: Path) -> None:
        """Write the file that ``load`` reads."""
        tables = {
            name: {form: sorted(kinds) for form, kinds in table.items()}
            for name, table in vars(self).items()
        }
        with replace_file(folder / VOCABULARY_FILE) as file:
            json.dump(tables, file, ensure_ascii=False)
            file.write("\n")


def _forms_of_spans(
    examples: Examples, scheme: str | None = None
) -> tuple[set[str], bool, FormSets]:
    # with a scheme, a sentence that has tags and no spans has the spans that its tags spell
    all_tags, lack_spans, types = set[str](), False, defaultdict[str, set[str]](set)
    for words, spans, tags in examples.columns("words", "spans", "tags"):
        all_tags.update(tags or ())
        if spans is None and tags:
            lack_spans = True
            spans = tags_to_spans(tags, scheme) if scheme else None
        for span in spans or ():
            types[surface(words, span)].add(span.label)
    return all_tags, lack_spans, _frozen(types)


def _tags_of_words(examples: Examples) -> FormSets:
    found = defaultdict[str, set[str]](set)
    for words, tags in examples.columns("words", "tags"):
        for word, tag in zip(words, tags or (), strict=bool(tags)):
            found[word].add(tag)
    return _frozen(found)


def _joined(parts: Iterable[FormSets]) -> FormSets:
    table, known = FormSets(), dict[frozenset[str], frozenset[str]]()
    for part in parts:
        for form, kinds in part.items():
            kinds |= table.get(form, kinds)
            table[form] = known.setdefault(kinds, kinds)
    return table


def _frozen(table: Mapping[str, set[str]]) -> FormSets:
    known = dict[frozenset[str], frozenset[str]]()
    sets = map(frozenset, table.values())
    return {form: known.setdefault(own, own) for form, own in zip(table, sets, strict=True)}


def surface(words: Sequence[str], span: Span) -> str:
    """Return the words of a span as one text."""
    return " ".join(words[span.start : span.end])
