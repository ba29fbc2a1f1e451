"""Units of rows: those without a wanted row are counted, and not parsed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from finetune.data import example_store, files, read_text_file
from finetune.data.unparsed import Unparsed


def rows_of(format: str, draw: Random) -> bytes:
    """300 rows, and lines that are no row or several, as far as a format has them."""
    texts = [draw.choice(["a", "b c", "é", "\u2028"]) + str(number) for number in range(300)]
    if format == "jsonl":
        escaped = json.dumps({"data": {"text": "y"}, "annotations": [{"result": []}] * 2})
        others = [
            "",
            " \u00a0\r",
            json.dumps({"data": {"text": "x"}, "annotations": [{"result": []}] * 3}),
            escaped.replace("ann", "\\u0061nn"),
        ]
        lines = [
            json.dumps({"text": text}, ensure_ascii=number % 2 == 0)
            for number, text in enumerate(texts)
        ]
        lines = [
            *lines[:20],
            *(line for each in lines[20:] for line in [each, draw.choice(others)]),
        ]
        return ("\ufeff" + "\n".join(lines)).encode()
    if format == "tsv":
        lines = ["text\tn", *(f"{text}\t1\r" for text in texts)]
        for _ in range(90):
            lines.insert(draw.randrange(1, len(lines)), draw.choice(["", "  \r", "\r \t"]))
        return "\n".join(lines).encode()
    if format == "csv":
        table = io.StringIO()
        csv.writer(table).writerows([["text", "n"], *((f'{text}\n"', 1) for text in texts)])
        return table.getvalue().encode()
    if format == "txt":
        return "\n".join(draw.choice([text, "", " "]) for text in texts).encode()
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"text": texts}), stream, row_group_size=7)
    return stream.getvalue()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("format", ["jsonl", "tsv", "csv", "txt", "parquet"])
def test_wanted_rows_have_their_numbers(
    format: str, several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_LINES", 5)
    monkeypatch.setattr(example_store, "CHUNK", 5)
    parsed = []
    unit_rows = Unparsed.numbered

    def numbered(rows: Unparsed[Any], wanted: Callable[[int], bool]) -> Any:
        parse = rows.parse
        rows.parse = lambda unit: parsed.append(unit) or parse(unit)  # type: ignore[func-returns-value]
        return unit_rows(rows, wanted)

    monkeypatch.setattr(Unparsed, "numbered", numbered)
    paths = [tmp_path / f"{number}.{format}" for number in range(1 + several)]
    for number, path in enumerate(paths):
        path.write_bytes(rows_of(format, Random(number)))
    source = tmp_path / f"*.{format}" if several else paths[0]
    every = {row.id: row for row in read_text_file(source)}
    assert list(every) == list(range(len(every)))
    units = []
    for start in (0, 1, 140, len(every) - 1, len(every)):
        parsed.clear()
        wanted = range(start, start + 9)
        values: dict[int, Any] = {}
        found = list(read_text_file(source, wanted=wanted.__contains__, rows=values))
        assert found == [every[number] for number in wanted if number in every]
        assert list(values) == [row.id for row in found]
        units.append(len(parsed))
    assert max(units) < len(every) / 4
