"""Predictions in parts: the same whoever makes them, after whatever interruption."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pytest
from pyarrow import parquet

from finetune.evaluation.decisions import Decisions
from finetune.inference import parts as parts_module
from finetune.runtime import progress
from finetune.runtime.files import lock_folder
from finetune.types import (
    AnswerPrediction,
    ChoicePrediction,
    FoundAnswer,
    Relation,
    RelationPrediction,
    Span,
    SpanPrediction,
    TextPrediction,
    TokenPrediction,
)
from tests import laboratory as lab
from tests.command import Outcome, folder_in_use, run
from tests.forks import in_two_forks
from tests.small_data import close, read_jsonl, write_jsonl
from tests.training.stopping import Killed

SPAN = Span(0, 1, "PER")
TOKENS = TokenPrediction(0, ("x",), ("B-PER",), (0.5,), spans=(SPAN,), span_scores=(0.5,))
SPANS = SpanPrediction(0, ("x",), (SPAN,), (0.5,))
RELATIONS = RelationPrediction(0, ("x",), (SPAN,), (Relation(SPAN, SPAN, "of"),), (0.5,))
ANSWER = FoundAnswer(0, 3, "yes", 0.5)
ROWS = 30
"""Rows of the input, in two files; parts of 8 rows are four."""
PARTS = ("--part-rows", "8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of texts, and the files that it predicts."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "run").symlink_to(lab.trained("classify"))
    data = lab.data("sentiment", (40, 12, ROWS))
    lines = (data / "test.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "new").mkdir()
    with gzip.open(folder / "new" / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(lines[:13])
    (folder / "new" / "b.jsonl").write_text("".join(lines[13:]), "utf-8")
    return folder


def predict(place: Path, out: Path, *more: str | Path, file: str = "new") -> Outcome:
    return run("predict", place / "run", "--file", place / file, "--out", f"{out}/", *PARTS, *more)


def union(folder: Path) -> list[dict[str, Any]]:
    """The records of all parts of a folder, in the order of their names."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("part-*")):
        if path.suffix == ".parquet":
            found += parquet.read_table(path).to_pylist()
        else:
            found += read_jsonl(path)
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_parts_have_the_rows_of_a_file(place: Path, tmp_path: Path) -> None:
    done = predict(place, tmp_path / "parts").ok()
    assert f"wrote 4 of 4 parts ({ROWS} rows)" in done.err, done.err
    whole = ("--out", tmp_path / "whole.parquet")
    run("predict", place / "run", "--file", place / "new" / "*.jsonl*", *whole).ok()
    expected = parquet.read_table(tmp_path / "whole.parquet").to_pylist()
    found = union(tmp_path / "parts")
    assert [row["id"] for row in found] == list(range(ROWS))
    assert close(found, expected, 2e-6)
    before = content(tmp_path / "parts")
    again = predict(place, tmp_path / "parts").ok()
    assert "wrote 0 of 4 parts" in again.err
    assert content(tmp_path / "parts") == before


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The parts of each format; tests change copies."""
    folder = tmp_path_factory.mktemp("whole")
    for suffix in ("parquet", "jsonl"):
        predict(place, folder / suffix, "--format", suffix).ok()
    return {path.name: path for path in folder.iterdir()}


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_missing_and_damaged_parts_are_made_again(
    suffix: str, place: Path, tmp_path: Path, whole: dict[str, Path]
) -> None:
    out = shutil.copytree(whole[suffix], tmp_path / "parts")
    before = content(out)
    first, second, third, last = sorted(out.glob("part-*"))
    bytes_of = {path: path.read_bytes() for path in (first, second, last)}
    changes: list[dict[Path, bytes | None]] = [
        {first: None, second: bytes_of[second][: 40 if suffix == "parquet" else -5], last: b""},
        {first: flipped(bytes_of[first])},
        {first: b"\n" * 8 if suffix == "jsonl" else b""},
        {first: bytes_of[second], second: bytes_of[first]},  # swapped
        {first: bytes_of[first]},  # without its digest
    ]
    kept = third.stat().st_mtime_ns
    for changed in changes:
        for path, damaged in changed.items():
            path.unlink() if damaged is None else path.write_bytes(damaged)
        if changed == changes[-1]:
            min(out.glob("_digest-*")).unlink()
        done = predict(place, out, "--format", suffix).ok()
        assert f"wrote {len(changed)} of 4 parts" in done.err, done.err
        for path, damaged in changed.items():
            said = f"{path.name} is damaged: predicted again" in done.err
            assert said == (damaged is not None), done.err
        assert content(out) == before and third.stat().st_mtime_ns == kept


def test_a_damaged_manifest(place: Path, tmp_path: Path, whole: dict[str, Path]) -> None:
    out = shutil.copytree(whole["parquet"], tmp_path / "parts")
    before, manifest = content(out), out / "_predictions.json"
    saved = json.loads(manifest.read_text("utf-8"))
    for change, message in (
        ({"model": None}, "model was None"),
        ({"part rows": "8"}, "part rows was '8', now it is 8"),
        ({"more": []}, "more was [], now it is None"),
        ("[]", "_predictions.json: damaged: delete it"),
        ("{}", "finetune was None"),
        ("{", "_predictions.json: damaged: delete it"),
    ):
        manifest.write_text(change if isinstance(change, str) else json.dumps(saved | change))
        predict(place, out).refused(message)
    manifest.unlink()
    done = predict(place, out).ok()
    assert "wrote 0 of 4 parts" in done.err, done.err
    assert content(out) == before


def test_progress_has_a_total(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    done = run("predict", place / "run", "--file", place / "new", "--out", tmp_path / "x.csv")
    assert f"predicting: row {ROWS}/{ROWS} " in done.err and "predicting: batch 1/" in done.err
    done = predict(place, tmp_path / "parts")
    assert f"predicting: row {ROWS}/{ROWS} " in done.err and "predicting: batch 1/" in done.err


def test_interruptions_change_nothing(
    place: Path, tmp_path: Path, whole: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "parts"
    written, writer = [], parts_module.record_writer

    def stop_in_third(path: Path, sample: Any = ()) -> Any:
        written.append(path)
        if len(written) == 3:
            raise Killed
        return writer(path, sample)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(parts_module, "record_writer", stop_in_third)
        predict(place, out)
    assert len(list(out.glob("part-*"))) == 2
    done = predict(place, out).ok()
    assert "wrote 2 of 4 parts" in done.err, done.err
    assert content(out) == content(whole["parquet"])


def test_jobs_and_processes_make_the_same_parts(
    place: Path, tmp_path: Path, whole: dict[str, Path]
) -> None:
    for index in (2, 0, 1):
        predict(place, tmp_path / "jobs", "--shard", f"{index}/3").ok()
    assert content(tmp_path / "jobs") == content(whole["parquet"])
    out = tmp_path / "processes"
    words = [sys.executable, "-m", "finetune", "predict", place / "run", "--file", place / "new"]
    started = in_two_forks([*map(str, words), "--out", f"{out}/", *PARTS])
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    for process in started:
        assert "wrote 2 of 4 parts" in process.communicate()[1]
    assert content(out) == content(whole["parquet"])
    min(out.glob("part-*")).unlink()  # the other process has nothing left
    started = in_two_forks([*map(str, words), "--out", f"{out}/", *PARTS])
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    assert content(out) == content(whole["parquet"])


def test_all_parts_have_one_schema(place: Path, tmp_path: Path) -> None:
    """Also where a part has no value of a column, or another part alone has a column."""
    given = read_jsonl(place / "new" / "b.jsonl")
    rows: list[dict] = [{"id": f"t{n}", "text": row["text"]} for n, row in enumerate(given)]
    rows[0]["text"] = ""  # without a label
    rows[9] |= {"stars": 4, "by": {"name": "x"}, "share": 1}
    rows[16] |= {"share": 0.5}
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    run_of = ("predict", place / "run", "--file", file, *PARTS)
    for job in ("0/2", "1/2"):
        run(*run_of, "--out", f"{tmp_path}/parts/", "--shard", job).ok()
    schemas = [parquet.read_schema(path) for path in sorted((tmp_path / "parts").glob("part-*"))]
    assert len(schemas) == 3 and all(each.equals(schemas[0]) for each in schemas)
    found = pyarrow.dataset.dataset(tmp_path / "parts", format="parquet").to_table().to_pylist()
    assert [row["id"] for row in found] == [f"t{n}" for n in range(17)]
    assert (found[9]["stars"], found[9]["by"], found[9]["share"]) == (4, {"name": "x"}, 1.0)
    assert found[0]["stars"] is None and found[0]["label"] is None


def test_a_column_that_changes_its_type_is_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune.cli.predict.GROUP", 8)
    rows = [{"text": "a film", "stars": n} for n in range(20)]
    rows[12]["stars"] = 2.5
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    run_of = ("predict", place / "run", "--file", file, *PARTS)
    done = run(*run_of, "--out", f"{tmp_path}/parts/").refused("part-000001")
    assert "not of one type" in done.err and "--format jsonl" in done.err
    run(*run_of, "--out", f"{tmp_path}/lines/", "--format", "jsonl").ok()


def assert_same_types(*groups: Any) -> None:
    """Tables of groups of predictions have one schema."""
    tables = [pyarrow.Table.from_pylist([each.record() for each in rows]) for rows in groups]
    assert all(table.schema == tables[0].schema for table in tables)


@pytest.mark.parametrize(
    ("empty", "full"),
    [
        (TokenPrediction(0, (), (), (), spans=()), TOKENS),
        (SpanPrediction(0, (), (), ()), SPANS),
        (RelationPrediction(0, (), (), (), ()), RELATIONS),
        (TextPrediction(0, (), scores={"a": 0.5}), TextPrediction(0, ("a",), scores={"a": 0.5})),
        (AnswerPrediction(0, None, 0.5), AnswerPrediction(0, ANSWER, 0.5, best=(ANSWER,))),
    ],
    ids=lambda each: type(each).__name__,
)
def test_empty_predictions_have_the_types_of_full_ones(empty: Any, full: Any) -> None:
    assert_same_types([full], parts_module.typical([full]), parts_module.typical([empty]))


@pytest.mark.parametrize(
    "found",
    [
        TOKENS,
        TokenPrediction(0, ("a",), ("X",), (0.5,)),
        SPANS,
        RELATIONS,
        TextPrediction(0, ("a",), scores={"a": 0.5}),
        TextPrediction(0, "a", 0.5, {"a": 0.5}),
        ChoicePrediction(0, 0, "x", (0.5,)),
        AnswerPrediction(0, ANSWER, 0.5, best=(ANSWER,)),
    ],
    ids=str,
)
def test_withheld_answers_have_the_types_of_given_ones(found: Any) -> None:
    given = Decisions(confidence=0.0).apply(found, None)
    unsure = Decisions(confidence=1.0).apply(found, None)
    both = [parts_module.typical([each]) for each in (given, unsure)]
    assert_same_types((given, unsure), *both)


def test_documents_cross_parts(tmp_path: Path) -> None:
    rows = [
        {**row, "document": number // 5}
        for split in ("train", "test")
        for number, row in enumerate(read_jsonl(lab.data("entities") / f"{split}.jsonl"))
    ]
    file = write_jsonl(tmp_path / "documents" / "train.jsonl", rows)
    lab.train("tag", tmp_path / "run", data=file.parent, context="doc", max_length=48).ok()
    options = ("predict", tmp_path / "run", "--file", file, "--format", "jsonl", "--keep-columns")
    run(*options, "--out", f"{tmp_path / 'parts'}/", "--part-rows", "4").ok()
    whole = run(*options).rows
    found = union(tmp_path / "parts")
    assert [row["id"] for row in found] == [row["id"] for row in whole] == list(range(len(rows)))
    assert close(found, whole, 2e-5)
    last = sorted((tmp_path / "parts").glob("part-*"))[-1]
    kept = last.read_bytes()
    last.unlink()
    run(*options, "--out", f"{tmp_path / 'parts'}/", "--part-rows", "4").ok()
    assert last.read_bytes() == kept


def test_other_predictions_are_refused(place: Path, tmp_path: Path) -> None:
    out, own = tmp_path / "parts", shutil.copytree(place / "new", tmp_path / "new")
    arguments = ("predict", place / "run", "--file", own, "--out", f"{out}/")
    run(*arguments, *PARTS).ok()
    before = content(out)
    other = tmp_path / "other"
    shutil.copytree(place / "run", other)
    settings = json.loads((other / "best" / "finetune.json").read_text())
    (other / "best" / "finetune.json").write_text(json.dumps({**settings, "finetune": "0.0.9"}))
    for problem, changed in {
        "model was ": ("predict", other, *arguments[2:], *PARTS),
        "threshold was None, now it is '0.9'": (*arguments, *PARTS, "--threshold", "0.9"),
        "part rows was 8, now it is 9": (*arguments, "--part-rows", "9"),
        "format was 'parquet', now it is 'jsonl'": (*arguments, *PARTS, "--format", "jsonl"),
    }.items():
        refused = run(*changed).refused(problem)
        assert len(refused.err.splitlines()) == 1
    foreign = out / "part-000000-0123abcd.parquet"
    foreign.touch()
    assert f"{foreign} is of other predictions" in run(*arguments, *PARTS).err
    foreign.unlink()
    (own / "b.jsonl").touch()  # the same content at another time
    run(*arguments, *PARTS).ok()
    with (own / "b.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    assert "file 2 b.jsonl was " in run(*arguments, *PARTS).err
    (own / "b.jsonl").unlink()
    assert "now it is None" in run(*arguments, *PARTS).err
    assert content(out) == before


def test_files_of_one_name(place: Path, tmp_path: Path) -> None:
    lines = (place / "new" / "b.jsonl").read_text("utf-8").splitlines(keepends=True)
    files = [tmp_path / folder / "x.jsonl" for folder in ("a", "b")]
    for file, first in zip(files, (0, 5), strict=True):
        file.parent.mkdir()
        file.write_text("".join(lines[first : first + 5]), "utf-8")
    predict(place, tmp_path / "parts", file=str(tmp_path / "*" / "x.jsonl")).ok()
    with files[0].open("a", encoding="utf-8") as file:
        file.writelines(lines[10:])
    predict(place, tmp_path / "parts", file=str(tmp_path / "*" / "x.jsonl")).refused(
        "file 1 x.jsonl was "
    )


def test_two_jobs_with_one_shard(place: Path, tmp_path: Path) -> None:
    with folder_in_use(tmp_path / "parts", ".lock-1-of-2") as holder:
        refused = predict(place, tmp_path / "parts", "--shard", "1/2").refused(
            f"in use by process {holder.pid}"
        )
        assert "--shard 1/2: " in refused.err and len(refused.err.splitlines()) == 1
        predict(place, tmp_path / "parts", "--shard", "0/2").ok()
    predict(place, tmp_path / "parts", "--shard", "1/2").ok()
    assert len(union(tmp_path / "parts")) == ROWS


def test_cut_files_are_named(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finetune.cli.predict.GROUP", 8)  # else these rows are read before work
    own = shutil.copytree(place / "new", tmp_path / "new")
    whole = (own / "a.jsonl.gz").read_bytes()
    (own / "a.jsonl.gz").write_bytes(whole[:-20])
    out = tmp_path / "parts"
    run("predict", place / "run", "--file", own, "--out", f"{out}/").refused(
        "a.jsonl.gz:", "truncated"
    )
    assert not out.exists()  # found before anything is written
    (own / "a.jsonl.gz").write_bytes(whole)
    text = (own / "b.jsonl").read_text("utf-8")
    (own / "b.jsonl").write_text(text[:-10], "utf-8")
    run("predict", place / "run", "--file", own, "--out", f"{out}/", *PARTS).refused("b.jsonl:17")
    assert len(list(out.glob("part-*"))) == 3 and not list(out.glob(".part*"))


REFUSED = {
    "--text room --out NEW/": "parts are for files",
    "--file - --out NEW/": "parts are for files",
    "--file FILE --format csv --out NEW/": "parts are parquet or jsonl",
    "--file FILE --part-rows 0 --out NEW/": "must be 1 or more",
    f"--file FILE --part-rows {'9' * 20} --out NEW/": "at most 9007199254740992",
    "--file FILE --shard 2/2 --out NEW/": "write I/N",
    f"--file FILE --shard 0/{'9' * 5000} --out NEW/": "write I/N",
    "--file FILE --shard 1 --out NEW/": "write I/N",
    "--file none/*.jsonl --out NEW/": "the pattern holds no data files",
    "--file FILE --shard 0/2": "write --out FOLDER/",
    "--file FILE --part-rows 9": "write --out FOLDER/",
    "--file FILE --format parquet": "write --out FOLDER/",
    "--file DATA --out DATA": "holds the input",
}


@pytest.mark.parametrize("options", REFUSED, ids=lambda each: each[:40])
def test_what_parts_cannot_be(options: str, place: Path, tmp_path: Path) -> None:
    known = {"FILE": place / "new" / "b.jsonl", "DATA": place / "new", "NEW/": f"{tmp_path}/parts/"}
    words = [str(known.get(word, word)) for word in options.split()]
    run("predict", place / "run", *words).refused(REFUSED[options])
    assert not (tmp_path / "parts").exists()


def test_locks_of_shards_leave_nothing(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "x", name=".lock-0-of-1"), lock_folder(tmp_path / "x", wait=True):
        assert len(list((tmp_path / "x").iterdir())) == 2
    assert not (tmp_path / "x").exists()
