"""Documents with standoff annotation: folders, characters, fragments and errors."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.annotation.reading import read_annotations
from finetune.data import DataError, read_tokens
from finetune.data.spans import words_to_chars
from finetune.data.tokens import split_at_gold
from finetune.types import Span


@pytest.fixture
def write(tmp_path):
    """Write a document (no .ann file where its annotation is None) and name the folder."""

    def document(name, text, annotation="", folder=tmp_path):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.with_suffix(".txt").write_bytes(text.encode())
        if annotation is not None:
            path.with_suffix(".ann").write_bytes(annotation.encode())
        return str(tmp_path)

    return document


def examples(folder):
    return [row.example for row in read_annotations(folder).rows]


ANNOTATED = """T1\tORG 0 14\tToyota Germany
T2\tLOC 7 14\tGermany
R1\tpart Arg1:T2 Arg2:T1\t
E1\tORG:T1
A1\tKnown T1
M1\tKnown T1
N1\tReference T2 Wiki:3\tGermany
#1\tAnnotatorNotes T1\tsure
*\tEquiv T1 T2
"""


def test_a_folder_of_documents(write, tmp_path):
    write("b", "Toyota Germany sold cars.\n", ANNOTATED)
    write("c", "Lee ran", None)
    data = write("a", "Nobody here.", "")
    for name in ("README.txt", "annotation.conf", ".hidden.txt", "._a.ann", ".stats_cache"):
        (tmp_path / name).write_text("nothing of use")
    found = read_annotations(data)
    empty, full, bare = (row.example for row in found.rows)
    assert (empty.words, empty.spans, empty.key) == (("Nobody", "here", "."), (), "a")
    assert full.spans == (Span(0, 2, "ORG"), Span(1, 2, "LOC"))
    assert (full.id, full.key, full.tags) == (1, "b", None)
    assert full.text == "Toyota Germany sold cars.\n"
    assert full.offsets == ((0, 6), (7, 14), (15, 19), (20, 24), (24, 25))
    assert full.where == f"{tmp_path / 'b.txt'}"
    assert bare.spans is None and bare.key == "c"
    part = [{"subject": 1, "object": 0, "label": "part"}]
    assert [row.relations for row in found.rows] == [[], part, None]
    assert found.notes == [
        f"1 row without .ann file: without gold ({tmp_path / 'c'})",
        "6 lines of .ann files not read: events, attributes and notes annotate no text",
    ]
    (single,) = examples(tmp_path / "b.ann")
    assert single.spans == full.spans
    with pytest.raises(DataError, match=r"holds documents of brat .* finetune convert"):
        read_tokens(data)
    with pytest.raises(DataError, match="--columns tags=1: documents of brat have no columns"):
        read_annotations(data, columns={"tags": "1"})


def test_relations_end_inside_of_words(write):
    annotation = (
        "T1\tGENE 5 8\tCD3\nR1\tbinds Arg1:T3 Arg2:T1  \nT3\tDRUG 0 4\tanti\nT2\tGENE 17 21\tbeta\n"
    )
    folder = write("a", "anti-CD3 or gammabeta", annotation)
    (example,) = examples(folder)
    ((subject, object, label),) = example.relations
    words = [" ".join(example.words[s.start : s.end]) for s in (subject, object)]
    assert (words, label, example.misaligned) == (["anti", "CD3"], "binds", ())
    write("b", "anti-CD3", "T1\tGENE 5 8\tCD3\nR1\tbinds Arg1:T1 Arg2:T9\n")
    with pytest.raises(DataError, match=r"b\.ann:2: there is no T9 in this file"):
        examples(folder)


def test_discontinuous_annotations_are_enveloped_and_counted(write, tmp_path):
    lines = [
        "T1\tDisease 0 6;19 25\tbreast cancer",
        "T2\tDisease 11 25\tovarian cancer",
        "T3\tPlace 27 30;31 37\tSan Marino",
    ]
    data = write("a", "breast and ovarian cancer,\nSan\nMarino", "\n".join(lines))
    found = read_annotations(data)
    spans = (Span(0, 4, "Disease"), Span(2, 4, "Disease"), Span(5, 7, "Place"))
    assert found.rows[0].example.spans == spans
    assert found.notes == [
        "1 row with discontinuous spans: read from the first start to the last end (a)"
    ]


@pytest.mark.parametrize(
    ("text", "annotation"),
    [
        ("one\ntwo Ann Lee", "T1\tPER 8 15\tAnn Lee"),
        ("one\r\ntwo Ann Lee", "T1\tPER 9 16\tAnn Lee"),  # CR LF as two characters
        ("one\r\ntwo Ann Lee", "T1\tPER 8 15\tAnn Lee"),  # and as one
        ("\ufeffone Ann Lee", "T1\tPER 4 11\tAnn Lee"),  # a byte order mark as no character
        ("\ufeffone Ann Lee", "T1\tPER 5 12\tAnn Lee"),  # and as one
        ("one\r\nAnn\r\nLee", "T1\tPER 5 13\tAnn  Lee"),
        ("one Ann\nLee", "T1\tPER 4 11\tAnnLee"),  # line ends left out
        ("one Ann Lee", "T1\tPER 4 11"),
        ("one Ann Lee", "T1\tfull name 4 11\tAnn Lee"),
        ("naïve 😀 Ann Lee", "T1\tPER 8 15\tAnn Lee"),
        ("one Ann Lee", "\ufeffT1\tPER 4 11\tAnn Lee\r\n\r\n"),
    ],
)
def test_characters_as_tools_count_them(write, text, annotation):
    (example,) = examples(write("a", text, annotation))
    ((start, end, _),) = example.spans
    assert example.words[start:end] == ("Ann", "Lee")


@pytest.mark.parametrize(
    ("text", "annotation", "parts"),
    [
        (
            "see Ann Lee",
            "T1\tPER 0 3\tsee\nT2\tPER 5 8\tAnn\n",
            ["a.ann:2: a span has the text 'Ann', but characters 5 to 8 are 'nn '", "not bytes"],
        ),
        ("a b c d", "T1\tX 0 1;4 5\ta d", ["has the text 'a d', but characters 0 to 5", "'a c'"]),
        ("Ann", "T1 PER 0 3 Ann\n", ["a.ann:1", "is not a text-bound annotation: write T1<TAB>"]),
        ("Ann", "\nX1\tAnn\n", ["a.ann:2: 'X1\\tAnn' is not a line of standoff annotation"]),
        (
            "Ann  ran",
            "T1\tPER 3 5\t  \n",
            ["a.ann:1: characters 3 to 5 ('PER') touch no word", "correct or remove this span"],
        ),
        (None, "T1\tPER 0 3\tAnn\n", ["a.ann: the file a.txt is missing"]),
        ("Bo Ann", "T1\tA 0 2\tBo\nT1\tA 3 6\tAnn\n", ["a.ann:2: T1 is twice in this file"]),
    ],
)
def test_refused(write, text, annotation, parts):
    with pytest.raises(DataError) as error:
        examples(write("a", text, annotation))
    message = str(error.value)
    assert all(part in message for part in parts) and "\n" not in message, message


@given(st.lists(st.text("aé😀ß東\u0301 .\n\u2028", max_size=8), min_size=1, max_size=6), st.data())
def test_what_is_annotated_is_read(tmp_path_factory, parts, data):
    """Spans over random stretches of any text keep their characters, but for invisible ends."""
    text = "Ann ".join(parts) + "Lee"
    folder = tmp_path_factory.mktemp("standoff")
    positions = [
        m
        for m in itertools.combinations(range(len(text) + 1), 2)
        if any(c in text[m[0] : m[1]] for c in "AnLe")
    ]
    chosen = data.draw(st.lists(st.sampled_from(positions), min_size=1, max_size=4))
    lines = [f"T{i}\tX {a} {b}\t{text[a:b]}".replace("\n", " ") for i, (a, b) in enumerate(chosen)]
    (folder / "a.txt").write_bytes(text.encode())
    (folder / "a.ann").write_bytes("\n".join(lines).encode())
    (example,) = examples(folder)
    touched = set()
    for a, b in chosen:
        inside = [(start, end) for start, end in example.offsets if start < b and a < end]
        touched.add((max(a, inside[0][0]), min(b, inside[-1][1])))
    reachable = words_to_chars(example.offsets, example.spans)
    assert {(start, end) for start, end, _ in (*reachable, *example.misaligned)} == touched
    whole = split_at_gold(example)
    assert {s[:2] for s in words_to_chars(whole.offsets, whole.spans)} == touched
    assert whole.misaligned == ()
