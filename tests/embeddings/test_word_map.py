"""`finetune map`: its files, its scores and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finetune.inference.embed import Embedder
from tests.command import run
from tests.tiny import LAYERS, save_tiny_checkpoint

DATA = "examples/data/words/senses.jsonl"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("map")
    save_tiny_checkpoint(folder / "bert", "bert")
    return folder


def test_command(place: Path):
    outcome = run(
        "map",
        place / "bert",
        "--file",
        DATA,
        "--word",
        "die,bank",
        "--most",
        "12",
        "--out",
        place / "a.json",
    )
    assert outcome.code == 0, outcome.err
    assert "die: 30 occurrences in 50 texts, 12 drawn at random (--most)" in outcome.err
    assert outcome.out.split("\n")[0].split("  ")[0] == "layer" and "1-NN purity" in outcome.out
    assert "always the main label of the word: 1-NN purity 0." in outcome.out
    content = json.loads((place / "a.json").read_text("utf-8"))
    assert content["layers"] == list(range(LAYERS + 1)) and len(content["occurrences"]) == 24
    assert {each["word"] for each in content["occurrences"][:12]} == {"die"}
    assert np.shape([each["points"] for each in content["occurrences"]]) == (24, LAYERS + 1, 2)


def test_neighbors_are_those_of_the_vectors(place: Path):
    """Coordinates do not decide on neighbors: the vectors of `embed` do."""
    output = place / "last.json"
    outcome = run(
        "map", place / "bert", "--file", DATA, "--word", "die", "--layers", "last", "--out", output
    )
    assert outcome.code == 0, outcome.err
    found = json.loads(output.read_text("utf-8"))["occurrences"]
    embedder = Embedder(place / "bert", unit="word", normalize=True)
    texts = [each["before"] + each["form"] + each["after"] for each in found]
    vectors = [each.vectors[each.units.index("die")] for each in embedder.encode(texts)]
    cosines = np.stack(vectors) @ np.stack(vectors).T - 9 * np.eye(len(found))
    for number, each in enumerate(found):
        best = np.sort(cosines[number])[::-1][: len(each["cosines"][0])]
        np.testing.assert_allclose(each["cosines"][0], best, atol=1e-4)
        row = cosines[number][each["neighbors"][0]]
        np.testing.assert_allclose(row, best, atol=1e-4)


def test_words_without_labels(place: Path):
    file = place / "texts.txt"
    file.write_text("a die\nto die <b>here</b>\n\nthe die is cast\nno\n")
    outcome = run(
        "map",
        place / "bert",
        "--file",
        file,
        "--word",
        "die",
        "--method",
        "pca",
        "--out",
        place / "b.html",
    )
    assert outcome.code == 0, outcome.err
    assert "without a label: 3 of 3" in outcome.err and "purity" not in outcome.out
    assert "<b>here" not in (place / "b.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--word", "die"), "map needs --out FILE"),
        (("--word", "die", "--out", "x.txt"), "one of .html, .json"),
        (("--word", "dye", "--out", "x.json"), "none of the 50 texts has it"),
        (("--word", "die", "--most", "0", "--out", "x.json"), "--most must be 1 or more"),
        (("--word", "die", "--most", "2", "--out", "x.json"), "needs 3 points or more, not 2"),
        (("--word", "die", "--layers", "9", "--out", "x.json"), "legal are last, last4, all"),
        (("--word", "die", "--out", "no/x.json"), "its folder does not exist"),
    ],
)
def test_errors(options: tuple[str, ...], message: str, place: Path, monkeypatch):
    data = Path(DATA).absolute()
    monkeypatch.chdir(place)
    outcome = run("map", place / "bert", "--file", data, *options)
    assert outcome.code == 2 and message in outcome.err, outcome.err
    assert not list(place.glob("x.*"))


def test_other_pages_are_kept(place: Path):
    output = place / "mine.html"
    output.write_text("my page")
    output.rename(output.with_suffix(".HTML"))
    output = output.with_suffix(".HTML")  # on most systems another file
    outcome = run("map", place / "bert", "--file", DATA, "--word", "die", "--out", output)
    assert outcome.code == 2 and "exists, with other content" in outcome.err
    assert output.read_text() == "my page"
