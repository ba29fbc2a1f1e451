"""Search: neighbors equal a full sort, an index is kept and made again, messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from finetune.embeddings.inference import search
from finetune.embeddings.inference.search import ExactSearch, IndexSearch, make_search
from finetune.embeddings.inference.vector_files import UnitFile, VectorFile
from finetune.types import UserError
from tests.command import run
from tests.tiny import save_tiny_checkpoint

TEXTS = ["the train was late", "Anna's film is good", "a man is playing a guitar", "it rains"]
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    save_tiny_checkpoint(folder / "bert", "bert")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n", "utf-8")
    for suffix in (".npy", ".safetensors"):
        out = folder / f"vectors{suffix}"
        assert run("embed", folder / "bert", "--file", folder / "texts.txt", "--out", out).code == 0
    return folder


def saved(path: Path, vectors: np.ndarray) -> VectorFile:
    np.save(path, vectors)
    return VectorFile.open(path)


def test_exact_search_equals_a_full_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BLOCK", 7)
    vectors, queries = RANDOM.normal(size=(50, 5)), RANDOM.normal(size=(9, 5))
    vectors[3] = 0
    file = saved(tmp_path / "v.npy", vectors)
    cosines = search.unit_length(queries) @ search.unit_length(vectors).T
    for count in (1, 6, 60):
        found = ExactSearch(file)(queries, count)
        expected = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        np.testing.assert_array_equal(found.rows, expected)
        expected_cosines = np.take_along_axis(cosines, expected, 1)
        np.testing.assert_allclose(found.cosines, expected_cosines, atol=1e-6)


def test_equal_cosines_keep_the_order_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BLOCK", 4)
    file = saved(tmp_path / "v.npy", np.ones((10, 3)))
    assert ExactSearch(file)(np.ones((1, 3)), 10).rows.tolist() == [[*range(10)]]
    vectors = np.ones((300, 3))
    vectors[:50] = vectors[250:] = [1, 0, 0]
    monkeypatch.setattr(search, "BLOCK", 8192)
    found = ExactSearch(saved(tmp_path / "v.npy", vectors))(vectors[[60, 0]], 5)
    assert found.rows.tolist() == [[50, 51, 52, 53, 54], [0, 1, 2, 3, 4]]


def test_an_index_is_kept_until_the_vectors_change(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    vectors = RANDOM.normal(size=(2000, 3)) @ RANDOM.normal(size=(3, 16))
    file, path = saved(tmp_path / "v.npy", vectors), tmp_path / "v.faiss"
    made = make_search(file, "approximate")
    assert isinstance(made, IndexSearch) and made.facts.cells == 32
    assert search.RECALL <= made.facts.recall <= 1 and made.facts.visited < 32
    queries = vectors[:40] + 0.01
    found, exact = made(queries, 10), ExactSearch(file)(queries, 10)
    same = np.mean([len({*a} & {*b}) / 10 for a, b in zip(found.rows, exact.rows, strict=True)])
    assert same >= 0.9
    np.testing.assert_allclose(found.cosines[:, 0], exact.cosines[:, 0], atol=1e-6)

    time = path.stat().st_mtime_ns
    again = make_search(file, "approximate")
    assert isinstance(again, IndexSearch) and again.facts == made.facts
    np.testing.assert_array_equal(again(queries, 10).rows, found.rows)
    assert path.stat().st_mtime_ns == time
    path.write_bytes(path.read_bytes()[:-100])  # damaged
    np.testing.assert_array_equal(make_search(file, "approximate")(queries, 10).rows, found.rows)
    changed = make_search(saved(tmp_path / "v.npy", vectors[:1000]), "approximate")
    assert isinstance(changed, IndexSearch) and changed.index.ntotal == 1000


def test_an_index_of_few_vectors_returns_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    file = saved(tmp_path / "v.npy", RANDOM.normal(size=(3, 4)))
    assert sorted(make_search(file, "approximate")(np.ones((1, 4)), 10).rows[0]) == [0, 1, 2]


def test_small_cells_give_no_fewer_neighbors(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    vectors = np.repeat(np.eye(8), 60, axis=0) + 0.05 * RANDOM.normal(size=(480, 8))
    made = make_search(saved(tmp_path / "v.npy", vectors), "approximate")
    assert isinstance(made, IndexSearch) and made.facts.visited < made.facts.cells
    rows = made(vectors[::60], 100).rows
    assert all(len({*own} - {-1}) == 100 for own in rows.tolist())
    assert made.index.nprobe == made.facts.visited


def test_the_size_chooses_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(tmp_path / "v.npy", RANDOM.normal(size=(100, 4)))
    assert isinstance(make_search(file), ExactSearch)
    monkeypatch.setattr(search, "LARGEST_EXACT", 99)
    assert isinstance(make_search(file, "exact"), ExactSearch)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r'pip install "faiss-cpu.*, or write --index exact'):
        make_search(file)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_texts_find_themselves(suffix: str, place: Path, tmp_path: Path) -> None:
    vectors, out = place / f"vectors{suffix}", tmp_path / "found.jsonl"
    options = ("--search", vectors, "--data", place / "texts.txt", "--neighbors", "2", "--out", out)
    done = run("similarity", place / "bert", *options)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    first = rows[::2]
    assert [row["neighbor_unit"] for row in first] == [row["query_unit"] for row in first] == TEXTS
    assert [row["rank"] for row in rows] == [1, 2] * 4
    np.testing.assert_allclose([row["cosine"] for row in first], 1, atol=1e-5)


def test_vectors_find_themselves_without_a_model(place: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", np.load(place / "vectors.npy"))
    done = run("similarity", tmp_path / "plain.npy", "--search", place / "vectors.npy", "--json")
    assert done.code == 0, done.err
    rows = [row for row in json.loads(done.out) if row["rank"] == 1]
    assert [row["neighbor_unit"] for row in rows] == TEXTS
    assert [row["query"] for row in rows] == [0, 1, 2, 3]


def test_messages(place: Path, tmp_path: Path) -> None:
    def error(*arguments: str | Path) -> str:
        done = run("similarity", *arguments)
        assert done.code == 2, done.out
        return done.err

    model, vectors = place / "bert", place / "vectors.npy"
    text = ("--text", "it rains")
    assert "--search needs queries" in error(model, "--search", vectors)
    assert "need --search" in error(model, *text, "--pair", "x", "--neighbors", "3")
    assert "--seed: it does not apply to --search" in error(
        model, "--search", vectors, *text, "--seed", "3"
    )
    assert "--text: it does not apply to --search with vectors" in error(
        vectors, "--search", vectors, *text
    )
    assert "is not what the model makes of its text" in error(
        model, "--search", vectors, *text, "--layers", "0"
    )
    assert "one of .npy, .safetensors" in error(model, "--search", place / "texts.txt", *text)
    assert "no such file" in error(model, "--search", place / "none.npy", *text)
    np.save(tmp_path / "wide.npy", np.ones((2, 3)))
    assert "of width 3" in error(model, "--search", tmp_path / "wide.npy", *text)
    assert "of width 3" in error(tmp_path / "wide.npy", "--search", vectors)
    np.save(tmp_path / "layers.npy", np.ones((2, 3, 4)))
    assert "--combine mean" in error(model, "--search", tmp_path / "layers.npy", *text)
    np.save(tmp_path / "nan.npy", [[1.0], [np.nan]])
    nan = tmp_path / "nan.npy"
    assert "vector 1 has a number that is not finite" in error(nan, "--search", nan)
    (tmp_path / "cut.npy").write_bytes(vectors.read_bytes()[:-8])
    assert "cut.npy: " in error(model, "--search", tmp_path / "cut.npy", *text)
    save_file({"others": np.ones((2, 2))}, tmp_path / "x.safetensors")
    assert "no tensor `vectors`" in error(model, "--search", tmp_path / "x.safetensors", *text)


def test_ids_are_of_the_same_number(place: Path, tmp_path: Path) -> None:
    file = saved(tmp_path / "v.npy", np.ones((2, 3)))
    assert [each["id"] for each in UnitFile(file).read([1, 0])] == [1, 0]
    (tmp_path / "v.rows.jsonl").write_text('{"id": 1, "unit": "a"}\n', "utf-8")
    with pytest.raises(UserError, match=r"has 1 lines, and .* 2 vectors"):
        UnitFile(file)
