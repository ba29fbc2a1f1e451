"""`finetune map`: its files, its scores and its errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

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


def test_files_agree(place: Path):
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
        "--out",
        place / "a.csv",
    )
    assert outcome.code == 0, outcome.err
    assert "die: 30 occurrences in 50 texts, 12 drawn at random (--most)" in outcome.err
    assert outcome.out.split("\n")[0].split("  ")[0] == "layer" and "1-NN purity" in outcome.out
    assert "always the main label of the word: 1-NN purity 0." in outcome.out
    content = json.loads((place / "a.json").read_text("utf-8"))
    assert content["layers"] == list(range(LAYERS + 1)) and len(content["occurrences"]) == 24
    assert {each["word"] for each in content["occurrences"][:12]} == {"die"}
    with (place / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24 * (LAYERS + 1)
    for row in rows:
        each = content["occurrences"][int(row["number"])]
        expected = each["points"][int(row["layer"])]
        assert [float(row["x"]), float(row["y"])] == expected and row["label"] == each["label"]


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


def test_a_picture_for_papers(place: Path):
    outputs = "--out", place / "a.svg", "--out", place / "c.html"
    outcome = run(
        "map", place / "bert", "--file", DATA, "--word", "die,bank", "--most", "12", *outputs
    )
    assert outcome.code == 0, outcome.err
    svg = ElementTree.parse(place / "a.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    panels = svg.findall(f"{name}g")
    assert len(panels) == LAYERS + 1 and all(len(p.findall(f"{name}path")) == 24 for p in panels)
    width, height = (float(svg.get(side) or 0) for side in ("width", "height"))
    legend = [each for each in svg.findall(f"{name}text")]
    assert {each.text for each in legend if "(" in str(each.text)} and len(legend) >= 2
    for each in legend:
        assert 0 < float(each.get("x", 0)) < width and 0 < float(each.get("y", 0)) < height
    page = (place / "c.html").read_text("utf-8")
    colors = {each.get("fill") for each in svg.findall(f"{name}path")}
    assert colors and all(f"light-dark({color}," in page for color in colors), "of the style sheet"


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
        (("--word", "die", "--out", "x.txt"), "one of .html, .svg, .json, .csv"),
        (("--word", "die", "--out", "x.png"), "a picture is written as .svg"),
        (("--word", "dye", "--out", "x.csv"), "none of the 50 texts has it"),
        (("--word", "die", "--most", "0", "--out", "x.csv"), "--most must be 1 or more"),
        (("--word", "die", "--most", "2", "--out", "x.csv"), "needs 3 points or more, not 2"),
        (("--word", "die", "--layers", "9", "--out", "x.csv"), "legal are last, last4, all"),
        (("--word", "die", "--out", "no/x.csv"), "its folder does not exist"),
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
