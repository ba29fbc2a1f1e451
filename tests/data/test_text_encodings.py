"""`--encoding`: every reader gives the same examples as from UTF-8, and names a byte it lacks."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.config.tasks import CONFIGS
from finetune.data import DataError, input_type_of, read_text, read_text_file, read_tokens
from finetune.data.files import MAX_LINE, read_lines
from finetune.tasks import load_task
from finetune.types import UserError
from tests.command import run
from tests.small_data import write_jsonl
from tests.tiny import save_tiny_checkpoint

WORD = {
    "cp1252": "café €",
    "gb18030": "汉字 €",
    "utf-16": "Ċ 汉 🎈",
    "utf-16-le": "é 汉",
    "utf-32": "é 🎈",
    "iso2022_jp": "日本",
}
"""A text in each encoding; in UTF-16, its first character has the byte of a line feed."""
WIDE = "汉字Ċ"


def texts(word: str) -> dict[str, str]:
    rows = [{"text": word, "label": "p"}, {"text": "x", "label": word}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return {
        "train.jsonl": "\n".join(lines),
        "train.json": f"[{lines[0]},\r\n{lines[1]}]",
        "train.csv": f'text,label\r\n"{word}",p\r\nx,{word}\r\n',
        "train.tsv": f"\ufefftext\tlabel\n{word}\tp\nx\t{word}\n",
        "train.txt": f"text\tlabel\n{word}\tp\nx\t{word}\n",
    }


def words(word: str) -> dict[str, str]:
    word = word.split()[0]
    row = {"tokens": [word, "x"], "tags": ["B-P", "O"]}
    return {
        "train.jsonl": json.dumps(row, ensure_ascii=False) + "\n",
        "train.conll": f"{word} B-P\nx O\n\nx O\n",
        "train.conllu": f"1\t{word}\t_\tX\t_\t_\t_\t_\t_\t_\n\n",
    }


@pytest.mark.parametrize("encoding", WORD)
def test_every_reader_gives_the_examples_of_utf_8(encoding: str, tmp_path: Path):
    for read, files in ((read_text, texts(WORD[encoding])), (read_tokens, words(WORD[encoding]))):
        for name, content in files.items():
            content = content if encoding.startswith("utf") else content.replace("\ufeff", "")
            for folder, codec in (("plain", "utf-8"), ("encoded", encoding)):
                path = tmp_path / folder / read.__name__ / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode(codec))
        for name in files:
            plain, encoded = (
                str(tmp_path / folder / read.__name__ / name) for folder in ("plain", "encoded")
            )
            found = read(encoded, encoding=encoding)
            assert found.fingerprint == read(plain).fingerprint, name
            expected = "tokens" if read is read_tokens else "text"
            assert input_type_of(encoded, encoding) == expected


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n\ufeff", exclude_categories=("Cs",)))),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32-le", "gb18030"]),
)
def test_lines_are_those_of_the_text(lines: list[str], encoding: str):
    stream = io.BytesIO("\n".join(lines).encode(encoding))
    found = [line.text for line in read_lines("<input>", stream, encoding)]
    assert found == (lines if lines and lines[-1] else lines[:-1])


@pytest.mark.parametrize("first", ["", "a"])
def test_lines_that_begin_and_end_in_other_blocks(first: str, tmp_path: Path):
    lines = [first + "é" * length for length in (1, 32_767, 70_000, 32_768, 0, 200_000)]
    (path := tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    assert [line.text for line in read_lines("a.txt", path)] == lines
    path.write_bytes(path.read_bytes() + b"\xff")
    with pytest.raises(DataError, match=":6: byte 0xff is not UTF-8"):
        list(read_lines("a.txt", path))


@pytest.mark.parametrize(
    ("encoding", "content", "where"),
    [
        ("cp1252", b"one\ntwo \x81\n", ":2: byte 0x81 is not cp1252"),
        ("gb18030", "汉字\n字".encode("gb18030") + b"\xff\n", ":2: byte 0xff is not gb18030"),
        ("utf-16", f"a\n{WIDE}\na".encode("utf-16")[:-1], ":3: byte 0x61 is not utf-16"),
        ("utf-16", b"a\nb\n", "BOM): utf-16-le and utf-16-be need none."),
        ("utf-8", f"a\n{WIDE}".encode()[:-1], ":2: byte 0xc4 is not UTF-8"),
    ],
)
def test_a_byte_that_the_encoding_lacks_is_found(
    encoding: str, content: bytes, where: str, tmp_path: Path
):
    (path := tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_text_file(path, encoding=encoding))
    assert f"{path}" in str(caught.value) and where in str(caught.value)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError):
        list(read_text_file(tmp_path / "a.txt.gz", encoding=encoding))


@pytest.mark.parametrize("name", ["", "ansi", "base64", "rot13", "utf-8\0", "no such"])
def test_an_unknown_encoding_is_refused_with_examples(name: str, tmp_path: Path):
    path = write_jsonl(tmp_path / "train.jsonl", [{"text": "x", "label": "p"}])
    legal = "is not a text encoding that Python knows: write utf-8, utf-16, cp1252"
    for use in (lambda: read_text(str(path), encoding=name), lambda: CONFIGS["tag"](encoding=name)):
        with pytest.raises(UserError, match=legal):
            use()


def test_files_with_an_encoding_of_their_own_are_refused(tmp_path: Path):
    table = pyarrow.table({"text": ["x"], "label": ["p"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    for name in ("a.parquet", "a.xlsx"):
        with pytest.raises(DataError, match=f"{name}: --encoding cp1252: .* a fixed encoding"):
            read_text(str(tmp_path / name), encoding="windows-1252")
    assert read_text(str(tmp_path / "a.parquet"), encoding="UTF8").splits["train"][0].text == "x"
    with pytest.raises(DataError, match="sst2: --encoding cp1252: only files have an encoding"):
        read_text("sst2", encoding="cp1252")
    with pytest.raises(DataError, match="decoded already"):
        list(read_text_file(io.StringIO("x\n"), encoding="cp1252"))


def test_commands_read_the_encoding_and_runs_keep_it(tmp_path: Path):
    (tmp_path / "train.csv").write_text("text,label\ncafé €,p\nthé,q\nlait €,p\neau,q\n", "cp1252")
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    options = {"model": str(tmp_path / "bert"), "data": str(tmp_path), "validation": "none"}
    task, data = load_task(CONFIGS["classify"](**options, encoding="cp1252"), "classify")
    assert task.state.config.encoding == "cp1252"
    assert data.splits["train"][0].text == "café €"

    wrong = run("check", tmp_path)
    assert wrong.code == 2 and "train.csv:2" in wrong.err and "--encoding cp1252" in wrong.err
    assert run("check", tmp_path, "--encoding", "cp1252").code == 0
    predictions = [{"label": label} for label in ("p", "q", "q", "q")]
    rows = "".join(f"€{n}\t{name}\n" for n, name in enumerate("pqpq"))
    (gold := tmp_path / "gold.tsv").write_text(f"text\tlabel\n{rows}", "cp1252")
    answers = write_jsonl(tmp_path / "answers.jsonl", predictions)
    report = "report", answers, "--gold", gold, "--format", "table"
    for command in (("score", answers, gold), report):
        assert run(*command).code == 2
        outcome = run(*command, "--encoding", "cp1252")
        assert outcome.code == 0 and "0.75" in outcome.out
    both = run("compare", answers, answers, "--gold", gold, "--encoding", "cp1252")
    assert both.code == 0, both.err
    (columns := tmp_path / "system.conll").write_text("né B-P\nà O\n", "cp1252")
    run("score", columns, columns, "--encoding", "cp1252").ok()


def test_predict_and_embed_read_the_encoding(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    for encoding in ("utf-8", "utf-16"):
        (tmp_path / f"{encoding}.txt").write_text("café €\nthe train\n", encoding=encoding)
    embed = "embed", tmp_path / "bert", "--file"
    plain = run(*embed, tmp_path / "utf-8.txt")
    assert plain.code == 0 and plain.out.count("\n") == 2
    assert run(*embed, tmp_path / "utf-16.txt", "--encoding", "utf-16").out == plain.out
    for unit in ("word", "text"):
        refused = run(*embed, tmp_path / "utf-16.txt", "--unit", unit)
        assert refused.code == 2 and "add --encoding utf-16" in refused.err


@pytest.mark.parametrize(("suffix", "encoding"), [("", "utf-8"), (".gz", "utf-16-le")])
def test_a_line_of_too_many_bytes_is_refused_before_it_is_read(
    suffix: str, encoding: str, tmp_path: Path
):
    long = "x" * (MAX_LINE + 1)
    content = f"good\n{long}\nafter\n".encode(encoding)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(gzip.compress(content, 1) if suffix else content)
    rows = read_text_file(path, encoding=encoding)
    assert next(rows).text == "good"
    with pytest.raises(DataError, match=f"a.txt{suffix}:2: the line has over 16 MiB"):
        list(rows)
    content = json.dumps([{"text": long, "label": "x"}]).encode()
    path = tmp_path / f"a.json{suffix}"
    path.write_bytes(gzip.compress(content, 1) if suffix else content)
    assert read_text(str(path)).splits["train"][0].text == long


ROWS = "text,label\na b,x\nc d,y\n"
LINES = "a\tO\nb\tB-X\n\nc\tO\n"
OBJECTS = '{"text": "a b", "label": "x"}\n{"text": "c d", "label": "y"}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ROWS),
        ("a.tsv", ROWS.replace(",", "\t")),
        ("a.conll", LINES),
        ("a.jsonl", OBJECTS),
        ("a", OBJECTS),
    ],
)
def test_old_line_ends_have_a_sentence(name: str, content: str, tmp_path: Path):
    path = tmp_path / name
    read = read_tokens if content == LINES else read_text
    path.write_bytes(content.encode().replace(b"\n", b"\r"))
    with pytest.raises(DataError, match="carriage returns alone"):
        read(str(path))
