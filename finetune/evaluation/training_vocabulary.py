"""The vocabulary of training data, which tells seen from unseen entities and words."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune.data.examples import Examples
from finetune.data.json_files import read_object
from finetune.data.tag_schemes import tags_to_spans
from finetune.data.tokens import tags_and_scheme
from finetune.runtime.files import replace_file
from finetune.types import Example, SenseTarget, Span

Vocabulary = Mapping[str, Collection[str]]
"""The types of each surface form, or the tags of each word, in training data."""
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
        entity_types, word_tags = (defaultdict[str, set[str]](set) for _ in range(2))
        all_tags, scheme = tags_and_scheme(sentences)
        is_plain = bool(all_tags) and scheme is None
        for words, spans, tags in sentences.columns("words", "spans", "tags"):
            if spans is None and tags and scheme is not None:
                spans = tags_to_spans(tags, scheme)
            for span in spans or ():
                entity_types[surface(words, span)].add(span.label)
            for word, tag in zip(words, tags or (), strict=bool(tags)) if is_plain else ():
                word_tags[word].add(tag)
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
            file.write(json.dumps(tables, ensure_ascii=False) + "\n")  # faster than json.dump


def surface(words: Sequence[str], span: Span) -> str:
    """Join the words of a span by blanks."""
    return " ".join(words[span.start : span.end])
