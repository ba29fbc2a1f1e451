"""Files of word senses: sentences with targets, and predicted senses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.values import conforms
from finetune.data.dataset import DataError, Dataset
from finetune.data.examples import Examples
from finetune.data.files import UTF_8, DataFile, ReadOptions, open_data
from finetune.data.sources import open_splits
from finetune.data.tables import Table, read_file
from finetune.data.word_splitting import split_words
from finetune.embeddings.wordnet import DATA_FILES, sense_key
from finetune.evaluation.items import Grouping, Items, PredictionType, Tables, Wording, count
from finetune.evaluation.metrics import RATES, Metric, item_counts
from finetune.types import SenseTarget, TextPrediction, TokenExample, UserError

_MARKED = re.compile(r"\*([^*\s](?:[^*]*[^*\s])?)\*")
_TARGET = (
    '{"start": 0, "end": 1, "lemma": "bank", "pos": "NOUN", "senses": ["bank%1:14:00::"]}, end '
    "exclusive, pos NOUN, VERB, ADJ or ADV"
)


def read_senses(spec: str, *, encoding: str = UTF_8) -> Dataset:
    """Read sentences with targets into TokenExamples; ``spec`` is as in ``read_text``.

    Files are JSON Lines or Parquet with ``tokens`` and ``targets``.

    Raises:
        DataError: If the data cannot be read; the message names file and line.
    """
    dataset, tables = open_splits(spec, None, _open, encoding)
    examples = {split: Examples(_examples(table)) for split, table in tables.items()}
    for split, rows in examples.items():
        if not any(example.targets for example in rows):
            name = tables[split].name
            raise DataError(f"{name}: no row of {split} has targets: add some, or leave it out.")
    return dataset.with_splits(examples)


def read_sense_file(source: str | Path, encoding: str = UTF_8) -> Iterator[TokenExample]:
    """Stream the sentences of one file; `-` is standard input."""
    yield from _examples(_open(open_data(source, encoding=encoding)))


def marked_sentence(text: str, has_senses: Callable[[str, str], bool]) -> TokenExample:
    """Parse a sentence whose targets stand between asterisks.

    A marked word gives a ``SenseTarget`` for each lemma and part of speech that ``has_senses``
    accepts; ``*went=go*`` names the lemma.

    Raises:
        UserError: No word is marked, or a marked word has no senses.
    """
    words, targets = list[str](), list[SenseTarget]()
    for number, piece in enumerate(_MARKED.split(text)):
        if number % 2 == 0:  # between the marked words
            words += split_words(piece)[0]
            continue
        start, (word, _, lemma) = len(words), piece.partition("=")
        words += split_words(word)[0]
        lemma = (lemma or word).strip().lower().replace(" ", "_")
        listed = [pos for pos in DATA_FILES if has_senses(lemma, pos)]
        if not listed or len(words) == start:
            raise UserError(
                f"--text: no sense of {lemma!r} is known: write its base form after an equals "
                "sign, as in *went=go*, or fit the senses with an --inventory of WordNet."
            )
        span = start, len(words)
        targets += [SenseTarget(*span, lemma, pos, key=word, where="--text") for pos in listed]
    if not targets:
        raise UserError(
            f"--text {text!r:.80}: no word is marked: put the word between asterisks, as in "
            "'He sat on the *bank*.'"
        )
    return TokenExample(0, tuple(words), where="--text", targets=tuple(targets))


def _open(file: DataFile) -> Table:
    if file.format in ("txt", "unknown", "tsv", "csv", "conll", "conllu"):
        raise DataError(
            f"{file.name} has no targets: give JSON Lines with tokens and targets (of the XML of "
            "Raganato et al., examples/sense_corpus.py makes them)."
        )
    return read_file(file, ReadOptions())


def _examples(table: Table) -> Iterator[TokenExample]:
    for index, row in enumerate(table.rows):
        tokens, targets = row.values.get("tokens"), row.values.get("targets")
        if not conforms(tokens, list[str]) or not isinstance(targets, list | tuple):
            raise DataError(
                f"{row.where}: a row needs `tokens`, a list of words, and `targets`, [{_TARGET}]; "
                f"columns here: {', '.join(row.values)}."
            )
        words: Any = tokens
        document = row.values.get("document")
        document = None if document in (None, "") else str(document)
        name = index if row.key is None else row.key
        senses = tuple(
            _target(item, len(words), f"{name}.{number}", document, row.where)
            for number, item in enumerate(targets)
        )
        source: dict[str, Any] = {"document": document, "where": row.where, "key": row.key}
        yield TokenExample(index, tuple(words), targets=senses, **source)


def _target(item: Any, num_words: int, id: str, document: str | None, where: str) -> SenseTarget:
    values: dict[str, Any] = item if isinstance(item, dict) else {}
    fields: Any = map(values.get, ("start", "end", "lemma", "pos", "senses"))
    start, end, lemma, pos, senses = fields
    legal = conforms([start, end], list[int]) and conforms(senses or [], list[str])
    if not (legal and 0 <= start < end <= num_words and lemma and pos in DATA_FILES):
        raise DataError(
            f"{where}: {item!r:.100} is not a target of the {num_words} words: write {_TARGET}."
        )
    lemma, key = str(lemma).strip().lower().replace(" ", "_"), str(values.get("id") or id)
    return SenseTarget(start, end, lemma, pos, _keys(senses or ()), key, document, where)


def _keys(senses: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sense_key(sense) or sense for sense in senses))


def _with_items(tables: Tables) -> Tables:
    # As in the scorer of Raganato et al. (2017), any gold sense is correct, and several predicted
    # senses share the credit.
    credit = [
        len({*right} & {*senses}) / len({*senses}) if senses else 0.0
        for right, senses in zip(tables.gold, tables.predicted, strict=True)
    ]
    answered = (tuple(senses) or None for senses in tables.predicted)
    items = Items.of(range(len(tables)), tables.gold, answered, credit=np.array(credit))
    return replace(tables, items=items)


def _target_of_row(index: int, where: str, row: Mapping[str, Any]) -> SenseTarget:
    lemma, pos, key = row.get("lemma", ""), row.get("pos", ""), str(row.get("id", ""))
    gold, where = _keys(row["gold"] or []), row.get("where", where)
    return SenseTarget(0, 0, lemma, pos, gold, key, row.get("document"), where)


def _read_gold(file: str, *, encoding: str, **columns: Any) -> list[SenseTarget]:
    examples = _examples(_open(open_data(file, encoding=encoding)))
    return [target for example in examples for target in example.targets]


def _parse(row: Mapping[str, Any], where: str, example: SenseTarget) -> TextPrediction:
    return TextPrediction(0, _keys(row.get("senses", ())))  # none of a target that is left out


def _groupings(tables: Tables) -> dict[str, Grouping]:
    names = [target.pos for target in tables.examples]
    grouping = Grouping(
        example=tables.items.example,
        names=names,
        counts=item_counts(tables),
        order=sorted({*names} - {""}),
        cells={"targets": count(2), **RATES},
        rate="f1",
    )
    return {"pos": grouping}


SENSES = PredictionType(
    name="senses",
    wording=Wording("senses", "target", without_gold="no target has gold senses."),
    metrics={rate: Metric(item_counts, RATES[rate]) for rate in ("f1", "precision", "recall")},
    default="f1",
    gold=lambda target: target.senses or None,
    parse=_parse,
    tables=_with_items,
    read_gold=_read_gold,
    gold_of_row=_target_of_row,
    groupings=_groupings,
    may_leave_out=True,
    sides=None,
)
"""Names for a target, of which one right one is enough."""
