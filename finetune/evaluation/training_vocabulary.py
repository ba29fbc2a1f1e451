"""The vocabulary of training data, which tells seen from unseen entities and words."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
        all_tags, lack_spans, entity_types = _forms_of_spans(sentences)
        word_tags = dict[str, frozenset[str]]()
        if all_tags and not spell_spans(all_tags):
            word_tags = _tags_of_words(sentences)
        elif all_tags and lack_spans:
            _, scheme = tags_and_scheme(sentences)
            *_, entity_types = _forms_of_spans(sentences, scheme)
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
            name: {form: sorted(type_names) for form, type_names in table.items()}
            for name, table in vars(self).items()
        }
        with replace_file(folder / VOCABULARY_FILE) as file:
            json.dump(tables, file, ensure_ascii=False)
            file.write("\n")


def _forms_of_spans(
    examples: Examples, scheme: str | None = None
) -> tuple[set[str], bool, FormSets]:
    # with a scheme, a sentence that has tags and no spans has the spans that its tags spell
    all_tags, lack_spans, types = set[str](), False, FormSets()
    for words, spans, tags in examples.columns("words", "spans", "tags"):
        all_tags.update(tags or ())
        if spans is None and tags:
            lack_spans = True
            spans = tags_to_spans(tags, scheme) if scheme else None
        for span in spans or ():
            form = surface(words, span)
            types[form] = _joined(types.get(form, frozenset()), span.label)
    return all_tags, lack_spans, types


def _tags_of_words(examples: Examples) -> FormSets:
    forms = FormSets()
    for words, tags in examples.columns("words", "tags"):
        for word, tag in zip(words, tags or (), strict=bool(tags)):
            forms[word] = _joined(forms.get(word, frozenset()), tag)
    return forms


@cache
def _joined(type_names: frozenset[str], type_name: str) -> frozenset[str]:
    return type_names | {type_name}


def surface(words: Sequence[str], span: Span) -> str:
    """Join the words of a span by blanks."""
    return " ".join(words[span.start : span.end])
