"""Convert annotated data to JSON Lines, columns, or the format of an annotation tool.

What a format cannot hold is refused, or counted with the ids of its rows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.annotation import doccano, label_studio
from finetune.annotation.reading import read_annotations
from finetune.annotation.rows import (
    LEFT_OUT,
    AnnotatedRow,
    Annotations,
    Omissions,
    counted,
    merged,
    with_text,
)
from finetune.cli.output import show
from finetune.data.spans import overlapping, split_offsets
from finetune.data.tag_schemes import spans_to_tags
from finetune.data.tokens import split_at_gold
from finetune.data.word_splitting import split_words
from finetune.runtime.files import replace_file
from finetune.runtime.row_files import write_rows
from finetune.types import Span, UserError, quantity

if TYPE_CHECKING:
    from finetune.annotation.commands import Convert

_TOOLS = ("doccano", "label-studio")


def check_format(annotations: Annotations, to: str) -> None:
    """Raise UserError if a format has no place for the labels of annotations."""
    examples = [row.example for row in annotations.rows]
    problem = legal = ""
    if annotations.input_type == "text":
        if to == "conll":
            problem = "texts with labels, and this format annotates words"
            legal = "jsonl, doccano or label-studio"
        elif to == "doccano" and any(type(example.label) is float for example in examples):
            problem, legal = "numbers as labels, and this tool has names", "jsonl or label-studio"
    elif to in _TOOLS:
        if any(example.tags is not None and example.spans is None for example in examples):
            problem, legal = "tags that spell no spans", "jsonl or conll"
    elif to == "conll":
        spans = (span for e in examples for span in (*(e.spans or ()), *e.misaligned))
        if odd := sorted({span.label for span in spans if re.search(r"\s", span.label)}):
            problem = f"a label with white space, {odd[0]!r}"
            legal = "jsonl, doccano or label-studio"
    if problem:
        raise UserError(f"--to {to}: the data have {problem}: choose {legal}.")


def write_annotations(annotations: Annotations, to: str, output: Path) -> tuple[list[str], int]:
    """Write the file of a format; return lines about omissions.

    The second value is the number of rows that are written.
    """
    omitted: Omissions = defaultdict(list)
    rows, of_words = annotations.rows, annotations.input_type == "tokens"

    def count(which: str, what: str, is_lost: Callable[[Any], Any]) -> None:
        if names := [row.name for row in rows if is_lost(row.example)]:
            omitted[which, what] = names

    if to in _TOOLS and not of_words:
        majority = "the label of the majority is written"
        count("with votes of annotators", majority, lambda example: example.votes)
    if to in ("conll", "doccano") and of_words:
        count(
            "with relations between spans",
            "the relations are not written",
            lambda example: example.relations,
        )
    if to in _TOOLS and of_words:
        count(
            "with words that begin or end with invisible characters",
            "a reader of their text leaves these characters out of its words",
            lambda example: not all(map(_is_visible, example.words)),
        )
    if of_words and to != "conll":  # in JSON Lines, words may be without a text
        rows = [
            row if to == "jsonl" and row.example.text is None else with_text(row) for row in rows
        ]
    if to == "conll":
        with replace_file(output, follow=True) as file:
            file.writelines(_conll(rows, omitted))
    elif to == "label-studio":
        write_rows(output, label_studio.write_tasks(rows))
    elif to == "doccano":
        write_rows(output, map(doccano.write_row, rows))
    elif of_words:
        write_rows(output, map(_plain_words, rows))
    else:
        has_votes = any(row.example.votes for row in rows)
        write_rows(output, (_plain_text(row, has_votes) for row in rows))
    notes = [line for (which, what), ids in omitted.items() for line in counted(ids, which, what)]
    left_out = sum(len(ids) for (_, what), ids in omitted.items() if what == LEFT_OUT)
    return notes, len(rows) - left_out


def _is_visible(word: str) -> bool:
    offsets = split_words(word)[1]
    return not word or (bool(offsets) and (offsets[0][0], offsets[-1][1]) == (0, len(word)))


def _plain_text(row: AnnotatedRow, has_votes: bool) -> dict[str, Any]:
    label = row.example.label
    if has_votes and (row.example.votes or label is not None):
        label = dict(row.example.votes or ((label, 1),))
    return merged(row, row.texts | ({} if label is None else {"label": label}))


def _plain_words(row: AnnotatedRow) -> dict[str, Any]:
    example = row.example
    values: dict[str, Any] = {}
    if example.text is None:
        values["tokens"] = list(example.words)
        if example.tags is not None:
            values["tags"] = list(example.tags)
        if example.spans is not None:
            spans = sorted(example.spans)
            tags = None if overlapping(spans) else spans_to_tags(spans, len(example.words), "BIO")
            if row.relations is not None or tags is None or tuple(tags) != example.tags:
                values["spans"] = [span._asdict() for span in example.spans]
    else:
        values["text"] = example.text
        offsets = tuple(split_words(example.text)[1])
        if row.relations is not None:
            offsets = split_offsets(offsets, row.character_spans)
        if example.offsets is not None and tuple(example.offsets) != offsets:
            pairs = zip(example.words, example.offsets, strict=True)
            values["tokens"] = [
                {"text": word, "start": start, "end": end, "id": number}
                for number, (word, (start, end)) in enumerate(pairs)
            ]
        if example.spans is not None:
            values["spans"] = [span._asdict() for span in row.character_spans]
    if row.relations is not None:
        values["relations"] = row.relations
    return merged(row, values)


_UNWRITABLE = re.compile(r"[\t\n\r]|\A(\ufeff|-DOCSTART|#)|\A\Z")
_UNWRITABLE_ALONE = re.compile(rf"\s|{_UNWRITABLE.pattern}")


def _conll(rows: Sequence[AnnotatedRow], omitted: Omissions) -> Iterator[str]:
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
            what = "the other columns are not written"
            omitted["with columns besides words and labels", what].append(row.name)
        if example.text is not None and example.text != " ".join(example.words):
            omitted["with a text", "words are written, its white space is not"].append(row.name)
        if example.document not in (None, document):
            yield f"# newdoc id = {_one_line(example.document)}\n"
        document = example.document
        if example.key is not None:
            yield f"# sent_id = {_one_line(example.key)}\n"
        tags: Sequence[str] | None = example.tags
        if example.spans is not None:
            kept = _outermost(example.spans)
            if len(kept) < len(example.spans) or example.misaligned:
                what = "the outermost are written"
                omitted["with spans that overlap", what].append(row.name)
            tags = spans_to_tags(kept, len(example.words), "BIO")
        for index, word in enumerate(example.words):
            yield f"{word}\t{tags[index]}\n" if tags is not None else f"{word}\n"
        yield "\n"


def _outermost(spans: Sequence[Span]) -> list[Span]:
    # of spans that overlap, the first and longest
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def convert(command: Convert) -> None:
    """Read annotations, write the output, and print its omissions."""
    output = Path(command.out)
    annotations = read_annotations(command.source, **command.reading)
    check_format(annotations, command.to)
    notes, number = write_annotations(annotations, command.to, output)
    for note in [*annotations.notes, *notes]:
        show(f"note: {note}", error=True)
    show(f"wrote {quantity(number, 'row')}: {output}", error=True)
