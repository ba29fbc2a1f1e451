"""Write annotations in the import formats of annotation tools, as columns, and as JSON Lines.

What a format cannot hold is refused, or counted with the ids of its rows. Formats, as their tools
import them: Prodigy (https://prodi.gy/docs/api-interfaces), doccano
(https://doccano.github.io/doccano/tutorial/), Label Studio
(https://labelstud.io/guide/predictions), brat (https://brat.nlplab.org/standoff.html), spaCy
(https://spacy.io/usage/training#training-data).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.annotation.annotations import (
    AnnotatedRow,
    Annotations,
    TextRow,
    WordRow,
    counted,
    read_annotations,
)
from finetune.cli.output import show
from finetune.data.json_rows import ANNOTATORS, DOCCANO_COMMENTS, utf16_positions
from finetune.data.spans import overlapping, words_to_chars
from finetune.data.tag_schemes import spans_to_tags
from finetune.data.tokens import split_at_gold
from finetune.data.word_splitting import split_words
from finetune.runtime.files import replace_file, replace_folder
from finetune.runtime.records import write_records
from finetune.types import Span, TokenExample, UserError, quantity

if TYPE_CHECKING:
    from finetune.annotation.commands import Convert

Omissions = defaultdict[tuple[str, str], list[str]]
"""Names of the rows that a format cannot hold in full, by a problem and its consequence."""

LEFT_OUT = "left out"
"""Consequence for rows that a format cannot hold at all."""
OTHER_COLUMNS = ("with columns besides words and labels", "the other columns are not written")
"""Problem and consequence of rows that lose columns."""
_TOOLS = ("prodigy", "doccano", "label-studio", "brat", "spacy")
_OTHERS = {"text": "jsonl, prodigy, doccano or label-studio", "tags": "jsonl or conll"}


def check_format(annotations: Annotations, to: str) -> None:
    """Raise UserError if a format has no place for the labels of annotations."""
    examples = [row.example for row in annotations.rows]
    problem = legal = ""
    if annotations.kind == "text":
        legal = "jsonl or label-studio"
        if to in ("conll", "brat", "spacy"):
            problem, legal = "texts with labels, and this format annotates words", _OTHERS["text"]
        elif to in ("prodigy", "doccano") and any(type(each.label) is float for each in examples):
            problem = "numbers as labels, and this tool has names"
    elif any(each.tags is not None and each.spans is None for each in examples):
        legal = _OTHERS["tags"]
        problem = "" if to not in _TOOLS else "tags that spell no spans"
    if to in ("conll", "brat") and not problem:
        names = {
            span.label for each in examples for span in (*(each.spans or ()), *each.unreachable)
        }
        if odd := sorted(name for name in names if re.search(r"\s", name)):
            problem, legal = f"a label with white space, {odd[0]!r}", _OTHERS["text"]
    if problem:
        raise UserError(f"--to {to}: the data have {problem}: choose {legal}.")


def write_annotations(annotations: Annotations, to: str, output: Path) -> tuple[list[str], int]:
    """Write the file of a format (for brat a folder); return lines about omissions.

    The second value is the number of rows that are written.
    """
    omitted: Omissions = defaultdict(list)
    rows = annotations.rows
    if to == "brat":
        with replace_folder(output) as folder:
            _brat(rows, folder, omitted)
    elif to in ("conll", "label-studio", "spacy"):
        with replace_file(output, follow=True) as file:
            file.write(_text(annotations, to, omitted))
    else:
        if annotations.kind == "text":
            plain = partial(_plain_text, votes=any(row.example.votes for row in rows))
            of_texts = {"prodigy": partial(_choices, _labels(rows)), "doccano": _doccano_label}
            record: Any = of_texts.get(to, plain)
            records = [record(row) for row in rows]
            if to in of_texts:
                _omit_votes(rows, omitted)
        else:
            of_words = {"prodigy": _prodigy_spans, "doccano": _doccano_spans}
            record = of_words.get(to, _plain_words)
            records = [record(row, omitted) for row in rows]
        write_records(output, records)
    notes = [line for (which, what), ids in omitted.items() for line in counted(ids, which, what)]
    left_out = sum(len(ids) for (_, what), ids in omitted.items() if what == LEFT_OUT)
    return notes, len(rows) - left_out


def _text(annotations: Annotations, to: str, omitted: Omissions) -> str:
    rows = annotations.rows
    if to == "conll":
        return "".join(_conll(rows, omitted))
    if to == "spacy":
        lines = (json.dumps(each, ensure_ascii=False) for each in _spacy(rows, omitted))
        return "[\n" + ",\n".join(lines) + "\n]\n"
    if annotations.kind == "text":
        _omit_votes(rows, omitted)
        tasks = list(_tasks(rows, _choice_result))
    else:
        tasks = list(_tasks([_as_text(row, omitted) for row in rows], _span_result))
    return json.dumps(tasks, ensure_ascii=False, default=str, indent=1) + "\n"


def _labels(rows: Sequence[TextRow]) -> list[str] | None:
    if any(row.kind == "labels" for row in rows):
        return None
    return sorted({str(row.gold) for row in rows if row.gold is not None})


def _merged(
    row: AnnotatedRow, values: Mapping[str, Any], last: Mapping[str, Any] = {}
) -> dict[str, Any]:
    known = {} if row.example.key is None else {"id": row.example.key}
    merged: dict[str, Any] = {**known, **values}
    if row.document is not None:
        merged["document"] = row.document
    for name, value in row.others.items():
        while name in merged or name in last:
            name = f"input_{name}"
        merged[name] = value
    return {**merged, **last}


def _plain_text(row: TextRow, votes: bool) -> dict[str, Any]:
    if votes and (row.example.votes or row.gold is not None):
        return _merged(row, row.texts | {"label": dict(row.example.votes or ((row.gold, 1),))})
    return _merged(row, _labeled(row))


def _omit_votes(rows: Sequence[TextRow], omitted: Omissions) -> None:
    names = [row.name for row in rows if row.example.votes]
    if names:
        omitted["with votes of annotators", "the label of the majority is written"] = names


def _labeled(row: TextRow) -> dict[str, Any]:
    return row.texts | ({} if row.gold is None else {"label": row.gold})


def _plain_words(row: WordRow, omitted: Omissions) -> dict[str, Any]:
    example = row.example
    values: dict[str, Any] = {}
    if example.text is None:
        values["tokens"] = list(example.words)
        if example.tags is not None:
            values["tags"] = list(example.tags)
        if example.spans is not None and _are_more_than_tags(example):
            values["spans"] = [span._asdict() for span in example.spans]
        return _merged(row, values)
    values["text"] = example.text
    if example.offsets is not None and list(example.offsets) != split_words(example.text)[1]:
        values["tokens"] = _tokens(example)
    if example.spans is not None:
        spans = _as_text(row, omitted).character_spans
        values["spans"] = [span._asdict() for span in spans]
    return _merged(row, values)


def _are_more_than_tags(example: TokenExample) -> bool:
    spans = sorted(example.spans or ())
    return (
        overlapping(spans) or tuple(spans_to_tags(spans, len(example.words), "BIO")) != example.tags
    )


def _tokens(example: TokenExample) -> list[dict[str, Any]]:
    return [
        {"text": word, "start": start, "end": end, "id": number}
        for number, (word, (start, end)) in enumerate(
            zip(example.words, example.offsets or (), strict=True)
        )
    ]


def _as_text(row: WordRow, omitted: Omissions) -> WordRow:
    row = row.as_text()
    example = row.example
    if not example.spans:
        return row
    places = words_to_chars(example.offsets or (), example.spans)
    pairs = zip(example.spans, places, strict=True)
    kept = tuple(span for span, place in pairs if place.start < place.end)
    if len(kept) == len(example.spans):
        return row
    omitted["with spans of empty words", "these spans are not written"].append(row.name)
    return replace(row, example=replace(example, spans=kept))


def _choices(labels: list[str] | None, row: TextRow) -> dict[str, Any]:
    if labels == [] or row.gold is None:
        return _merged(row, row.texts)
    style = "multiple" if labels is None else "single"
    chosen = list(row.gold) if labels is None else [row.gold]
    names = sorted({*chosen}) if labels is None else labels
    options = [{"id": name, "text": name} for name in names]
    last = {"options": options, "accept": chosen, "config": {"choice_style": style}}
    return _merged(row, row.texts, last | _answer(row))


def _answer(row: AnnotatedRow) -> dict[str, str]:
    return {} if row.predicted else {"answer": "accept"}


def _prodigy_spans(row: WordRow, omitted: Omissions) -> dict[str, Any]:
    row = _as_text(row, omitted)
    example = row.example
    offsets = example.offsets or ()
    if example.unreachable:
        what = "written, Prodigy marks whole tokens"
        omitted["with spans inside of words", what].append(row.name)
    values: dict[str, Any] = {"text": example.text}
    if example.words:
        values["tokens"] = _tokens(example)
    if example.spans is None:
        return _merged(row, values)
    values["spans"] = [
        {
            "start": offsets[start][0],
            "end": offsets[end - 1][1],
            "token_start": start,
            "token_end": end - 1,
            "label": label,
        }
        for start, end, label in example.spans
    ] + [span._asdict() for span in example.unreachable]
    return _merged(row, values, _answer(row))


def _doccano_label(row: TextRow) -> dict[str, Any]:
    return _merged(row, _labeled(row), {DOCCANO_COMMENTS: []})


def _doccano_spans(row: WordRow, omitted: Omissions) -> dict[str, Any]:
    row = _as_text(row, omitted)
    example = row.example
    units = utf16_positions(example.text or "")
    values: dict[str, Any] = {"text": example.text}
    if example.spans is not None:
        values["label"] = [
            [units[start], units[end], label] for start, end, label in row.character_spans
        ]
    return _merged(row, values, {DOCCANO_COMMENTS: []})


def _tasks(
    rows: Sequence[AnnotatedRow], result_of: Callable[[Any], list[dict[str, Any]] | None]
) -> Iterator[dict[str, Any]]:
    tasks: defaultdict[tuple[Any, ...], list[AnnotatedRow]] = defaultdict(list)
    for row in rows:
        alone = id(row) if row.annotator is None else None
        tasks[alone, row.example.key, *row.texts.values(), row.words].append(row)
    for group in tasks.values():
        merged = _merged(group[0], group[0].texts)
        data = {name: value for name, value in merged.items() if name not in ANNOTATORS}
        task: dict[str, Any] = {"data": data, "annotations": []}
        for row in group:
            if (result := result_of(row)) is None:
                continue
            if row.predicted:
                predicted = {"model_version": "finetune", "result": result}
                task.setdefault("predictions", []).append(predicted)
            else:
                who = {} if row.annotator is None else {"completed_by": row.annotator}
                task["annotations"].append({"result": result, **who})
        yield task


def _region(number: int, kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    names = {"id": f"r{number}", "from_name": "label", "to_name": "text"}
    return {**names, "type": kind, "value": dict(value)}


def _choice_result(row: TextRow) -> list[dict[str, Any]] | None:
    if row.kind is None:
        return None
    if row.kind == "number":
        return [_region(0, "number", {"number": row.gold})]
    chosen = list(row.gold) if row.kind == "labels" else [row.gold]
    return [_region(0, "choices", {"choices": chosen})]


def _span_result(row: WordRow) -> list[dict[str, Any]] | None:
    if row.example.spans is None:
        return None
    text, regions = row.example.text or "", []
    for number, (start, end, label) in enumerate(row.character_spans):
        value = {"start": start, "end": end, "labels": [label], "text": text[start:end]}
        regions.append(_region(number, "labels", value))
    return regions


def _spacy(rows: Sequence[WordRow], omitted: Omissions) -> Iterator[list[Any]]:
    for row in rows:
        row = _as_text(row, omitted)
        if row.example.spans is None:
            omitted["without tags or spans", LEFT_OUT].append(row.name)
            continue
        if row.others or row.example.key is not None:
            omitted["with an id or other columns", "they are not written"].append(row.name)
        spans = row.character_spans
        kept = _one_layer(spans)
        if len(kept) < len(spans):
            omitted["with spans that overlap", "the outermost are written"].append(row.name)
        yield [row.example.text, {"entities": [list(span) for span in kept]}]


_UNWRITABLE = re.compile(r"[\t\n\r]|\A(\ufeff|-DOCSTART|#)|\A\Z")
_UNWRITABLE_ALONE = re.compile(rf"\s|{_UNWRITABLE.pattern}")


def _conll(rows: Sequence[WordRow], omitted: Omissions) -> Iterator[str]:
    labeled = any(row.example.tags is not None or row.example.spans is not None for row in rows)
    document = None
    for row in rows:
        example = split_at_gold(row.example)
        if labeled and example.tags is None and example.spans is None:
            omitted["without tags or spans", LEFT_OUT].append(row.name)
            continue
        if not example.words:
            omitted["without words", LEFT_OUT].append(row.name)
            continue
        unwritable = _UNWRITABLE if labeled else _UNWRITABLE_ALONE
        if any(map(unwritable.search, example.words)):
            omitted["with words that columns cannot hold", LEFT_OUT].append(row.name)
            continue
        if row.others:
            omitted[OTHER_COLUMNS].append(row.name)
        if example.text is not None and example.text != " ".join(example.words):
            omitted["with a text", "words are written, its white space is not"].append(row.name)
        if example.document not in (None, document):
            yield f"# newdoc id = {_one_line(example.document)}\n"
        document = example.document
        if example.key is not None:
            yield f"# sent_id = {_one_line(example.key)}\n"
        tags: Sequence[str] | None = example.tags
        if example.spans is not None:
            kept = _one_layer(example.spans)
            if len(kept) < len(example.spans) or example.unreachable:
                what = "the outermost are written"
                omitted["with spans that overlap", what].append(row.name)
            tags = spans_to_tags(kept, len(example.words), "BIO")
        for index, word in enumerate(example.words):
            yield f"{word}\t{tags[index]}\n" if tags is not None else f"{word}\n"
        yield "\n"


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def _one_layer(spans: Iterable[Span]) -> list[Span]:
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


def _brat(rows: Sequence[WordRow], folder: Path, omitted: Omissions) -> None:
    names: set[str] = set()
    width = len(str(len(rows)))
    for number, row in enumerate(rows, 1):
        row = _as_text(row, omitted)
        name, given = f"{number:0{width}}", row.example.key
        if given is not None and re.fullmatch(r"\w[\w.-]*", str(given)):
            name = str(given)
        if name in names or (given is not None and name != str(given)):
            omitted["with ids that repeat or cannot name a file", "numbered"].append(row.name)
            name = f"row-{number:0{width}}"
        names.add(name)
        if row.others or row.example.document not in (None, given):
            omitted[OTHER_COLUMNS].append(row.name)
        text = row.example.text or ""
        # the reader, like others, drops a byte order mark
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        (folder / f"{name}.txt").write_bytes((mark + text).encode())
        if row.example.spans is not None:
            lines = [
                f"T{index}\t{label} {_fragments(text, start, end)}\t"
                + re.sub("[\t\r\n]+", " ", text[start:end])
                + "\n"
                for index, (start, end, label) in enumerate(row.character_spans, 1)
            ]
            (folder / f"{name}.ann").write_bytes("".join(lines).encode())


def _fragments(text: str, start: int, end: int) -> str:
    inside = [start, *(p for p in range(start, end) if text[p] in "\r\n"), end]
    ranges = [(left + (text[left] in "\r\n"), right) for left, right in pairwise(inside)]
    return ";".join(f"{left} {right}" for left, right in ranges if left < right)


def convert(command: Convert) -> None:
    """Read annotations, apply decisions, write the output, and print its omissions."""
    output = Path(command.out)
    annotations = read_annotations(command.source, **command.reading)
    check_format(annotations, command.to)
    notes, number = write_annotations(annotations, command.to, output)
    for note in [*annotations.notes, *notes]:
        show(f"note: {note}", error=True)
    show(f"wrote {quantity(number, 'row')}: {output}", error=True)
