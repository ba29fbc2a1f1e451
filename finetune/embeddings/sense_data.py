"""Files of word senses: sentences with targets, predicted senses, and WordNet's database files.

The files ``index.sense`` and ``data.*`` are an inventory of senses. The manual pages senseidx(5WN)
and wndb(5WN) describe their formats (Fellbaum 1998). A sense key is
``lemma%type:lexfile:lexid:head:headid``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config.recipes import local_path
from finetune.config.values import conforms
from finetune.data.examples import Dataset, Examples
from finetune.data.files import UTF_8, DataFile, ReadOptions, open_data, read_lines
from finetune.data.sources import open_splits
from finetune.data.tables import Table, read_file
from finetune.data.word_splitting import split_words
from finetune.evaluation.metrics import RATES, Items, Metric, item_counts
from finetune.evaluation.tables import Grouping, PredictionType, Tables, Wording, count, read_names
from finetune.types import DataError, SenseTarget, TextPrediction, TokenExample, UserError

POS_OF_TYPE = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
"""The part of speech of each type in sense keys; 5 is a satellite adjective."""
DATA_FILES = {"NOUN": "data.noun", "VERB": "data.verb", "ADJ": "data.adj", "ADV": "data.adv"}
_INDEX = "index.sense"
_KEY = re.compile(r"[^\s%]+%[1-5]:\d\d:\d\d:[^\s:]*:(\d\d)?")
_MARKER = re.compile(r"\((?:a|p|ip)\)")
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


def sense_key(text: str) -> str | None:
    """Remove the syntactic markers of adjectives from a sense key; None for any other text.

    Corpora have markers such as ``asleep(p)`` in heads; WordNet's index has no markers.
    """
    key = _MARKER.sub("", text)
    return key if _KEY.fullmatch(key) else None


def pos_of(key: str) -> str:
    """The part of speech of a sense key."""
    return POS_OF_TYPE[key.partition("%")[2][0]]


@dataclass(frozen=True)
class Inventory:
    """The senses of every lemma and part of speech, from a folder of WordNet's files."""

    folder: Path
    senses: Mapping[tuple[str, str], tuple[str, ...]]
    """Sense keys by (lemma, part of speech), the first sense first."""
    offsets: Mapping[str, int]
    """The byte at which the synset of each sense begins in its data file."""

    def glosses(self, keys: Collection[str]) -> dict[str, str]:
        """Make the text of each listed sense: its lemma, all lemmas of its synset, its definition.

        LMMS (Loureiro & Jorge 2019) embeds this text, with usage examples.

        Raises:
            DataError: A data file is missing, or is of another version than the index.
        """
        glosses = {}
        for key in sorted(self.offsets.keys() & keys):
            path, offset = self.folder / DATA_FILES[pos_of(key)], self.offsets[key]
            if not path.is_file():
                raise DataError(
                    f"{path}: no such file, and glosses are read from it: copy WordNet's data "
                    "files there, or leave --glosses out."
                )
            with path.open("rb") as file:
                file.seek(offset)
                line = file.readline().decode("utf-8", errors="replace")
            synset, _, gloss = line.partition("|")
            columns = synset.split()  # offset, file, type, number of words (hexadecimal), words
            legal = len(columns) > 4 and columns[0] == f"{offset:08}"
            words = columns[4 : 4 + 2 * int(columns[3], 16) : 2] if legal else []
            names = [_MARKER.sub("", word) for word in words]
            lemma = key.partition("%")[0]
            if lemma not in [name.lower() for name in names]:
                raise DataError(
                    f"{path}: no synset of {key} begins at byte {offset}: take all files from the "
                    "same version of WordNet."
                )
            definition = gloss.partition('; "')[0].strip()
            glosses[key] = f"{lemma} - {', '.join(names)} - {definition}".replace("_", " ")
        return glosses


def read_inventory(folder: str | Path | None) -> Inventory:
    """Read ``index.sense`` in a folder of WordNet's database files; None gives no senses.

    Raises:
        DataError: The file is missing, or one of its lines is malformed.
    """
    if folder is None:
        return Inventory(Path(), {}, {})
    folder = local_path(folder)
    path = folder / _INDEX
    if not path.is_file():
        problem = "no such folder" if not folder.is_dir() else f"no {_INDEX} in it"
        raise DataError(
            f"--inventory {folder}: {problem}: name a folder with WordNet's database files "
            f"({_INDEX}; data.noun, data.verb, data.adj and data.adv for glosses)."
        )
    numbered: defaultdict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    offsets = {}
    for line in read_lines(str(path), path):
        fields = line.text.split()
        key = sense_key(fields[0]) if len(fields) == 4 else None
        if key is None or not all(number.isdecimal() for number in fields[1:]):
            raise DataError(
                f"{path}:{line.number}: {line.text!r:.80} is not a line of a sense index: write "
                "KEY OFFSET NUMBER COUNT, such as bank%1:14:00:: 08420278 2 20."
            )
        numbered[key.partition("%")[0], pos_of(key)].append((int(fields[2]), key))
        offsets[key] = int(fields[1])
    if not offsets:
        raise DataError(f"{path}: it lists no sense: copy WordNet's file there.")
    senses = {lemma: tuple(key for _, key in sorted(pairs)) for lemma, pairs in numbered.items()}
    return Inventory(folder, senses, offsets)


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
    gold, where = _keys(read_names(row, "gold", where)), row.get("where", where)
    return SenseTarget(0, 0, lemma, pos, gold, key, row.get("document"), where)


def _read_gold(file: str, *, encoding: str, **columns: Any) -> list[SenseTarget]:
    return [target for row in read_sense_file(file, encoding) for target in row.targets]


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
