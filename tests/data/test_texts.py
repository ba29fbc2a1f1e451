"""Texts and pairs with labels: formats, columns, labels, streaming, and every error message."""

import csv
import gzip
import io
import itertools
import shlex
import sys
from functools import partial
from pathlib import Path

import pyarrow
import pytest

from finetune.data import DataError, read_text, read_text_file, read_token_file, texts
from finetune.data.json_files import parse_json, read_object
from finetune.types import UserError
from tests.small_data import jsonl

FOLDER = Path(texts.__file__).parent


@pytest.fixture
def read(written):
    """Write one file and read it as train."""
    return lambda name, content, **options: written(partial(read_text, **options), name, content)


def train(dataset):
    return [(e.text, e.pair, e.label) for e in dataset.splits["train"]]


def zstandard(content):
    return pyarrow.compress(content, codec="zstd", asbytes=True)


# --- formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"text": "x", "label": "p"}\n\n{"text": "y", "label": "q"}'),
        ("a.json", '[{"text": "x", "label": "p"},\n {"text": "y", "label": "q"}]'),
        ("a.json", '{"text": "x", "label": "p"}\n{"text": "y", "label": "q"}\n'),
        ("a.csv", "text,label\r\nx,p\r\ny,q\r\n"),
        ("a.csv", "\ufefftext,label\nx,p\n\ny,q\n"),
        ("a.csv", "label;text\np;x\nq;y\n"),
        ("a.csv", "text;label;note, more\nx;p;1\ny;q;2\n"),
        ("a.csv", "label\ttext\np\tx\nq\ty\n"),
        ("a.tsv", "text\tlabel\nx\tp\ny\tq\n"),
        ("a.txt", "text\tlabel\nx\tp\ny\tq\n"),
        ("a.data", "text,label\nx,p\ny,q\n"),
        ("a.data", '{"text": "x", "label": "p"}\n{"text": "y", "label": "q"}\n'),
        ("a.data", '[{"text": "x", "label": "p"}, {"text": "y", "label": "q"}]'),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\nx\tp\ny\tq\n", mtime=0)),
        ("a.tsv", gzip.compress(b"text\tlabel\nx\tp\ny\tq\n", mtime=0)),
        ("a.csv.zst", zstandard(b"text,label\nx,p\n") + zstandard(b"y,q\n")),
        ("a.jsonl", zstandard(b'{"text": "x", "label": "p"}\n{"text": "y", "label": "q"}\n')),
    ],
)
def test_formats(read, name, content):
    assert train(read(name, content)) == [("x", None, "p"), ("y", None, "q")]


def test_parquet_with_class_names(tmp_path):
    datasets = pytest.importorskip("datasets")
    labels = datasets.List(datasets.ClassLabel(names="ab"))
    features = datasets.Features({"text": datasets.Value("string"), "labels": labels})
    values = {"text": ["x", "y"], "labels": [[0, 1], []]}
    datasets.Dataset.from_dict(values, features=features).to_parquet(tmp_path / "train.parquet")
    dataset = read_text(str(tmp_path))
    assert train(dataset) == [("x", None, ("a", "b")), ("y", None, ())]
    assert dataset.splits["train"][1].where.endswith("train.parquet:row 2")
    (tmp_path / "train.parquet").write_bytes(b"PAR0")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_text(str(tmp_path))


def test_plain_text_has_no_labels_and_numbers_are_texts(read):
    dataset = read("a.txt", "one text\nanother\n")
    assert train(dataset) == [("one text", None, None), ("another", None, None)]
    assert train(read("a.jsonl", jsonl({"text": 5, "label": "p"}))) == [("5", None, "p")]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", 'text,label\n"two\nlines, ""quoted""",p\nz,q\n', ['two\nlines, "quoted"', "z"]),
        ("a.tsv", 'text\tlabel\n"unbalanced\tp\nthe "x" y\tq\n', ['"unbalanced', 'the "x" y']),
        ("a.tsv", "text\tlabel\na\u2028b\x85c\x0bd\tp\n", ["a\u2028b\x85c\x0bd"]),
    ],
)
def test_quotes_and_odd_separators_of_lines(read, name, content, texts):
    examples = read(name, content).splits["train"]
    assert [e.text for e in examples] == texts
    assert [e.where[-7:] for e in examples][1:] in ([], [f"{name}:{3 + (name == 'a.csv')}"])


# --- which column is which -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "text", "pair", "label"),
    [
        ("premise hypothesis label", 0, 1, 2),
        ("gold_label sentence1_parse sentence1 sentence2", 2, 3, 0),
        ("index question sentence label", 1, 2, 3),
        ("id qid1 qid2 question1 question2 is_duplicate", 3, 4, 5),
        ("text text_pair labels", 0, 1, 2),
        ("sentence label idx", 0, None, 1),
        ("Sentence Label", 0, None, 1),
        ("text coarse_label fine_label", 0, None, 1),
        ("pair_ID sentence_A sentence_B entailment_judgment", 1, 2, 3),
        ("review sentiment", 0, None, 1),
        ("content category", 0, None, 1),
        ("review stars", 0, None, 1),
        ("class text", 1, None, 0),
        ("text rating", 0, None, 1),
        ("sentence1 sentence2 similarity_score", 0, 1, 2),
    ],
)
def test_guessing_columns(read, header, text, pair, label):
    names = header.split()
    cells = [f"c{i}" for i in range(len(names))]
    dataset = read("a.tsv", "\t".join(names) + "\n" + "\t".join(cells) + "\n")
    assert train(dataset) == [(cells[text], pair and cells[pair], cells[label])]


def test_mrpc_header(read):
    content = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe "ran\t"He ran\r\n'
    assert train(read("msr.tsv", content)) == [('He "ran', '"He ran', "1")]


def test_sick_has_two_labels(read):
    content = (
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        "1\ta b\tc d\t4.5\tNEUTRAL\n2\ta\tc\t3\tENTAILMENT\n"
    )
    dataset = read("SICK.txt", content)
    assert train(dataset)[0] == ("a b", "c d", "NEUTRAL")
    assert dataset.notes == [
        "labels are from column 'entailment_judgment'; for 'relatedness_score' write "
        "--columns label=relatedness_score",
        "text: sentence_A; pair: sentence_B; label: entailment_judgment "
        "(not used: relatedness_score)",
    ]
    scores = read("SICK.txt", content, columns={"label": "relatedness_score"})
    assert [e.label for e in scores.splits["train"]] == [4.5, 3.0]
    assert "numbers" in scores.notes[-1]


def test_unread_columns_are_reported(read):
    content = "id,content,body,label\n1,x,y,p\n"
    assert read("a.csv", content).notes == ["text: content; label: label (not used: body)"]
    named = read("a.csv", content, columns={"text": "body"})
    assert named.notes == ["text: body; label: label (not used: content)"]
    assert read("b.csv", "id,text,label\n1,x,p\n").notes == []


def test_a_column_that_names_splits_is_pointed_out(read, tmp_path):
    content = "text,label,Split\na,p,train\nb,n,test\n"
    (note,) = read("a.csv", content).notes
    assert note.startswith("text: text; label: label (not used: Split). The column split is not")
    (tmp_path / "test.csv").write_text(content)
    both = read_text(f"train={tmp_path / 'a.csv'},test={tmp_path / 'test.csv'}")
    assert both.notes == ["text: text; label: label (not used: Split)"]


def test_columns_that_are_read_of_splits_that_differ(tmp_path):
    (tmp_path / "train.csv").write_text("Message,Category,Priority,Team\na b,x,1,t\nc d,y,2,t\n")
    (tmp_path / "test.csv").write_text("Message,Category\na b,x\n")
    data = read_text(str(tmp_path), columns={"text": "Message"})
    assert data.notes == [
        "train: text: Message; label: Category (not used: Priority, Team)",
        "test: text: Message; label: Category",
    ]


def test_the_page_names_all_usual_columns():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    names = (*texts.TEXT_COLUMNS, *texts.LABEL_COLUMNS, *itertools.chain(*texts.PAIR_COLUMNS))
    assert not [name for name in names if f"`{name}`" not in page]
    assert {"message", "body", "comment", "description"} < {*texts.TEXT_COLUMNS}


def test_naming_columns(read):
    content = "body,verdict,other\nx,p,o\n"
    for columns in ({"text": "body", "label": "verdict"}, ["text=body", "label=verdict"]):
        assert train(read("a.csv", content, columns=columns)) == [("x", None, "p")]
    assert train(read("a.csv", content, columns="text=body,label=verdict")) == [("x", None, "p")]
    columns = {"text": "body", "pair": "other", "label": "Verdict"}
    assert train(read("a.csv", content, columns=columns)) == [("x", "o", "p")]
    assert train(read("a.csv", "x,p\n", columns={"text": "0", "label": "1"})) == [("x", None, "p")]


def test_pair_or_not(read, error):
    rows = jsonl({"premise": "a", "hypothesis": "b", "label": "c"})
    assert train(read("a.jsonl", rows)) == [("a", "b", "c")]
    single = {"pair": False, "columns": {"text": "premise"}}
    assert train(read("a.jsonl", rows, **single)) == [("a", None, "c")]
    assert "name the column to read, --columns text=premise" in error("a.jsonl", rows, pair=False)
    message = error("b.jsonl", jsonl({"text": "a", "label": "c"}), pair=True)
    assert "no column is known to hold the second text of a pair" in message
    assert "columns found: text, label" in message and "--columns pair=NAME" in message


def test_missing_labels(error):
    rows = jsonl({"text": "a", "bad": 0, "odd": 1}, {"text": "b", "bad": 1, "odd": 0})
    message = error("a.jsonl", rows, labeled=True)
    assert "a.jsonl: no column is known to hold the labels; columns found: text, bad" in message
    assert message.endswith('list, such as "label": ["bad"] in JSON Lines.')


def test_wrong_columns(error):
    rows = jsonl({"sentence": "a", "label": "c"})
    message = error("a.jsonl", rows, columns={"text": "sentense"})
    assert message == (
        "a.jsonl: no column 'sentense' (--columns text=sentense); columns found: sentence, label. "
        "Perhaps you meant 'sentence'?"
    )
    message = error("a.jsonl", rows, columns={"lable": "x"})
    assert "'lable' is not a role: the roles here are text, pair, label, negative. P" in message
    message = error("a.jsonl", jsonl({"foo": "a", "bar": "b"}))
    assert "no column is known to hold a text; columns found: foo, bar. Name it:" in message
    message = error("a.jsonl", jsonl({"tokens": ["a"], "tags": ["O"]}))
    assert message.endswith("Words with tags or spans are data of `finetune tag` and `ner`.")
    message = error("a.tsv", "good\tnot known\nbad\tstill not\n")
    assert "no header with known names; its first row: 0: 'good', 1: 'not known'" in message
    assert "text=0 (its number from 0; if that row is a header, its name: text=N" in message


# --- labels ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["a", "b"], ["a", "b"]),
        ([" a ", "-", "", None], ["a", None, None, None]),
        ([*([0, 1] * 10), -1], [*(["0", "1"] * 10), None]),
        ([0, 1, -1], ["0", "1", "-1"]),
        ([-1, 1], ["-1", "1"]),
        ([*([0, 1] * 20), -2, -1], [*(["0", "1"] * 20), "-2", "-1"]),
        ([-1, -1], [None, None]),
        (["good", "-1"], ["good", None]),
        ([-1, 0.5], [-1.0, 0.5]),
        ([1, 2.5], [1.0, 2.5]),
        ([-1.0, 2.5], [-1.0, 2.5]),
        ([-1.0, -1.0], [None, None]),
        ([float("nan"), 0.5], [None, 0.5]),
        ([True, False], ["true", "false"]),
        (["4.5", "5"], ["4.5", "5"]),
        ([["a", "b"], [], None, "c"], [("a", "b"), (), None, ("c",)]),
        ([[0, 1], [2]], [("0", "1"), ("2",)]),
    ],
)
def test_labels_in_json(read, values, labels):
    dataset = read("a.jsonl", jsonl(*({"text": "x", "label": value} for value in values)))
    assert [e.label for e in dataset.splits["train"]] == labels


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([*(["1", "0"] * 10), "-1"], [*(["1", "0"] * 10), None]),
        (["1", "0", "-1"], ["1", "0", "-1"]),
        (["1", "0.5", "-1"], [1.0, 0.5, -1.0]),
        (["1", "2.5", ""], [1.0, 2.5, None]),
        (["1", "2.5", "x"], ["1", "2.5", "x"]),
        (["1.0", "NaN"], [1.0, None]),
        (["['joy', 'fear']", "[]", '["joy"]'], [("joy", "fear"), (), ("joy",)]),  # as pandas writes
        (["{'a': 2, 'b': 1}", "[x]", "{'a'}", "[b'a']"], ["a", "[x]", "{'a'}", "[b'a']"]),
    ],
)
def test_labels_in_tables(read, values, labels):
    content = "text\tlabel\n" + "".join(f"x\t{value}\n" for value in values)
    assert [e.label for e in read("a.tsv", content).splits["train"]] == labels


def test_minus_one_is_a_class_if_it_is_frequent(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\n" + "a,-1\nb,0\nc,1\n" * 3)
    (tmp_path / "test.csv").write_text("text,label\na,-1\nb,-1\n")  # as GLUE: no labels
    dataset = read_text(str(tmp_path))
    assert [e.label for e in dataset.splits["train"]] == ["-1", "0", "1"] * 3
    assert [e.label for e in dataset.splits["test"]] == [None, None]
    assert [note[:24] for note in dataset.notes] == ["-1 is read as a class, n"]


def test_lists_of_one_number_are_numbers_and_both_are_noted():
    notes = read_text([{"text": "a", "label": ["-1"]}, {"text": "b", "label": ["1"]}]).notes
    assert any("a list of one" in note and "-1 is read as a class" in note for note in notes)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([[0.5]], ["a.jsonl:1", "is not a name"]),
        ([["a", "a", "b"]], ["a.jsonl:1", "'a' twice", "not a 0/1 vector; the votes of several"]),
        ([["a"], [None]], ["a.jsonl:2", "is not a name"]),
        ([0.5, "good"], ["a.jsonl:2", "'good' is a name where other rows have numbers"]),
        ([["a"], 0.5], ["a.jsonl:2", "is a number where other rows have lists"]),
    ],
)
def test_bad_labels(error, labels, words):
    message = error("a.jsonl", jsonl(*({"text": "x", "label": label} for label in labels)))
    assert all(word in message for word in words), message


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": \n', ["a.jsonl:2", "not valid JSON", "column"]),
        (
            "a.jsonl",
            '{"text": "x", "text": "y"}\n',
            ["a.jsonl:1", "the key 'text' is twice in one"],
        ),
        ("a.jsonl", '{"text": "x"}\n["x"]\n', ["a.jsonl:2", "must be a JSON object, not a list"]),
        ("a.jsonl", '{"text": "\\ud83d"}\n', ["a.jsonl:1", "half of a surrogate pair"]),
        ("a.jsonl", '{"text": "x"}\n{"txt": "y"}\n', ["a.jsonl:2", "'text' is missing"]),
        (
            "a.jsonl",
            '{"text": ["x"]}\n',
            ["a.jsonl:1", "holds list, not a text", "orient='records'"],
        ),
        ("a.json", '{\n"data": []}\n', ["a.json", "one JSON object, not a list"]),
        ("a.json", '[{"text": "x"}, 3]', ["a.json:item 2", "not a number"]),
        ("a.tsv", "text\tlabel\nx\n", ["a.tsv:2: 1 field where 2 are expected (text, ", "one tab"]),
        ("a.tsv", 'text\tlabel\n"x\ty"\tp\n', ["a.tsv:2: 3 fields", "TSV has no quoting"]),
        ("a.csv", 'text,label\nx,p\n"y,q\nz,p\n', ["a.csv:3", "quotes of this row do not match"]),
        ("a.jsonl", "", ["a.jsonl", "the train split is empty"]),
        (
            "a.jsonl",
            jsonl({"id": 0, "label": "x", "text": "a", "gold": "y", "where": "b:1"}),
            ["a.jsonl: predictions with their gold", "give the data that were predicted"],
        ),
        ("a.conll", "Ann B-PER\n", ["a.conll", "has the format conll", "finetune tag"]),
        (
            "a.tsv",
            b"text\ncaf\xe9\n",
            ["a.tsv:2: byte 0xe9 is not UTF-8", "-f cp1252 -t utf-8 a.tsv"],
        ),
        ("a.csv", "text,label\nx,p\n".encode("utf-16"), ["a.csv:1", "--encoding utf-16"]),
        ("a.csv", "text,label\na,x\ntext,label\n", ["a.csv:3: the header again, as of files"]),
        ("a.tsv", "text\tlabel\na\tx\ntext\tlabel\n", ["a.tsv:3: the header again, as of"]),
        ("a.csv", "text,label,label\na,x,y\n", ["a.csv:1: the header has the column 'label' 2 t"]),
        ("a.csv", "text;label\na;3,5\nb;4\n", ["a.csv:2: label '3,5' is a number with a decima"]),
        ("a.csv", "text,label\na,1\nb,0.0\n", ["a.csv:3: label 0.0 where a.csv:2 has 1: write"]),
        ("a.csv", "text,label\na,['x' 'y']\n", ["a.csv:2: label \"['x' 'y']\" is no list that"]),
        ("a.jsonl.gz", gzip.compress(b"{}\n" * 99, mtime=0)[:-9], ["a.jsonl.gz:", "damaged"]),
        ("a.jsonl.zst", zstandard(b'{"text": "x"}\n' * 99)[:-4], ["a.jsonl.zst:", "truncated"]),
    ],
)
def test_errors_name_the_line_and_the_remedy(error, name, content, words):
    message = error(name, content)
    assert all(word in message for word in words), message


# --- streaming -------------------------------------------------------------------------------


def test_streaming_files(tmp_path):
    def stream(name, content, **options):
        path = tmp_path / name
        path.write_text(content)
        return [(e.id, e.text, e.pair, e.label) for e in read_text_file(path, **options)]

    expected = [(i, text, None, None) for i, text in enumerate(("one", "", "three"))]
    assert stream("a.txt", "one\n\nthree\n") == expected
    assert stream("a.txt", "one\ttab\n") == [(0, "one\ttab", None, None)]
    assert stream("a.txt", "Great, review\n") == [(0, "Great, review", None, None)]
    assert stream("a.txt", "premise\thypothesis\nx\ty\n") == [(0, "x", "y", None)]
    assert stream("a.jsonl", jsonl({"text": "x"}, {"text": "y", "label": 1})) == [
        (0, "x", None, None),
        (1, "y", None, None),
    ]
    twice = jsonl({"text": "x", "label": [0, 0]})
    assert stream("a.jsonl", twice, labels=False) == [(0, "x", None, None)]
    rows = jsonl({"premise": "x", "hypothesis": "y", "label": 1})
    assert stream("b.jsonl", rows) == [(0, "x", "y", "1")]
    named = {"pair": False, "columns": {"text": "hypothesis"}}
    assert stream("b.jsonl", rows, **named) == [(0, "y", None, "1")]
    assert stream("a.csv", "text,label\nx,0.5\n") == [(0, "x", None, "0.5")]
    assert stream("a.csv", "text\ntext\n") == [(0, "text", None, None)]  # no header again
    assert stream("a.tsv", "no header here\nsecond\n")[0] == (0, "no header here", None, None)
    assert stream("a.tsv", "x\ty\n", columns={"text": "0", "pair": "1"}) == [(0, "x", "y", None)]
    assert stream("empty.jsonl", "") == []
    assert stream("a.log", '{"text": "x"}\n', format="txt") == [(0, '{"text": "x"}', None, None)]
    with pytest.raises(DataError, match="format 'doc' is unknown: choose jsonl"):
        stream("a.log", "x", format="doc")
    with pytest.raises(DataError, match="does not exist"):
        list(read_text_file(tmp_path / "none.txt"))


def test_the_pattern_for_a_folder_of_several_formats_or_of_folders_is_one_that_runs(tmp_path):
    (deep := tmp_path / "a [b]" / "c" / "d").mkdir(parents=True)
    with pytest.raises(DataError, match="the folder holds no data files: name a file of data"):
        list(read_text_file(tmp_path))
    (deep / "x.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    for folder in (tmp_path, deep.parent):
        with pytest.raises(DataError, match=r"folder holds .*: write --file '") as caught:
            list(read_text_file(folder))
        (pattern,) = shlex.split(str(caught.value).rpartition("--file ")[2].rstrip("."))
        assert [example.text for example in read_text_file(pattern)] == ["x"]
        for name in ("y.csv", "z.txt"):
            (deep.parent / name).write_text("text\nx\n")


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
        ("plain line\nanother, line\n", ["plain line", "another, line"]),
        ('label,text\n1,a\n2,"b, c"\n', ["a", "b, c"]),
        ("label;text\n1;a\n", ["a"]),
        ("", []),
    ],
)
def test_standard_input_and_file_objects(monkeypatch, content, texts):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert [e.text for e in read_text_file("-")] == texts
    assert [e.text for e in read_text_file(io.StringIO(content))] == texts
    assert [e.text for e in read_text_file(io.BytesIO(content.encode()))] == texts


@pytest.mark.parametrize("line", [b'{"text": "x"}\n', b"plain text\n"])
@pytest.mark.parametrize("reader", [read_text_file, read_token_file])
def test_streaming_reads_lines_lazily(reader, line):
    taken = []

    class Endless(io.RawIOBase):
        def __iter__(self):
            for number in range(10**9):
                taken.append(number)
                yield line

    stream = reader(Endless())
    assert next(stream).id == 0 and len(taken) == 1
    assert [next(stream).id for _ in range(50)] == list(range(1, 51))
    assert len(taken) == 51


def test_numbers_of_splits_in_two_spellings(tmp_path):
    rows = jsonl({"text": "a", "label": 0}, {"text": "b", "label": 1})
    (tmp_path / "train.jsonl").write_text(rows)
    (tmp_path / "test.jsonl").write_text(jsonl({"text": "c", "label": 1.0}))
    with pytest.raises(DataError, match=r"test.jsonl:1: label 1.0 where .*train.jsonl:1 has 0"):
        read_text(str(tmp_path))


def test_the_advice_for_cp1252_keeps_the_euro_sign_and_the_suffix(tmp_path: Path):
    (path := tmp_path / "prices.csv").write_bytes("text,label\n5 €,a\n".encode("cp1252"))
    with pytest.raises(DataError, match="not UTF-8: add --encoding cp1252") as caught:
        read_text(path)
    command = "iconv -f cp1252 -t utf-8 prices.csv > prices-utf8.csv"
    assert str(caught.value).endswith(command)
    path.write_text(path.read_bytes().decode("cp1252"), "utf-8")
    assert read_text(path).splits["train"][0].text == "5 €"


def test_the_longest_field_of_csv_readers_of_the_process_stays(read):
    before = csv.field_size_limit()
    long = "x" * (before + 1)
    assert train(read("a.csv", f"text,label\n{long},p\n")) == [(long, None, "p")]
    assert csv.field_size_limit() == before


# --- JSON of users and of saved files ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value at line 1 column 1"),
        ('{"a": ', "Expecting value at line 1 column 7"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ("9" * 5000, "a number has too many digits"),
        ('"\\ud800"', "half of a surrogate pair"),
    ],
)
def test_problems_have_a_place(text, problem):
    with pytest.raises(UserError, match=f"^f:3: not valid JSON .*{problem}.*: fix it$"):
        parse_json(text, "f:3", ": fix it")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[]", "no JSON object"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"{}", "'n' must be a whole number, and is missing"),
        (b'{"n": true}', "'n' must be a whole number, not True"),
        (b'{"n": 1, "names": ["a", 2]}', "'names' must be a list, not"),
    ],
)
def test_saved_objects(content, problem, tmp_path):
    (path := tmp_path / "saved.json").write_bytes(content)
    with pytest.raises(UserError, match=f"saved.json: damaged.*{problem}"):
        read_object(path, {"n": int, "names": list[str] | None})
    path.write_bytes(b'{"n": 1, "more": 2}')
    assert read_object(path, {"n": int, "names": list[str] | None}) == {"n": 1, "more": 2}


# --- workbooks ----------------------------------------------------------------------------------


def test_workbooks(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.create_chartsheet("chart", 0).add_chart(openpyxl.chart.BarChart())
    for row in (["text", "label"], ["a", "x"], [None, None], ["b", "y"], ["c", None]):
        book["Sheet"].append(row)
    book.create_sheet("notes")
    book.save(tmp_path / "train.xlsx")
    dataset = read_text(str(tmp_path))
    rows = [(e.text, e.label) for e in dataset.splits["train"]]
    assert rows == [("a", "x"), ("b", "y"), ("c", None)]
    assert dataset.splits["train"][1].where.endswith("train.xlsx:row 4")
    assert "only the first sheet, 'Sheet', is read, not 'notes'" in dataset.notes
    (tmp_path / "train.xlsx").write_bytes(b"no workbook")
    with pytest.raises(DataError, match=r"train.xlsx: not a readable workbook"):
        read_text(str(tmp_path))


def test_an_unread_sheet_is_named_where_a_column_is_missing(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book, path = openpyxl.Workbook(), tmp_path / "a.xlsx"
    book.active.title = "Notes"
    for row in (["text", "label"], ["a b", "x"]):
        book.create_sheet("Data").append(row)
    unread = "only the first sheet, 'Notes', is read, not 'Data'"
    for rows, message in (
        ([["about", "who"]], f"the train split is empty .{unread}"),
        ([["us", "me"]], f"columns found: about, who; {unread}"),
    ):
        for row in rows:
            book.active.append(row)
        book.save(path)
        with pytest.raises(DataError, match=message):
            read_text(str(path))
    with pytest.raises(DataError, match=f"no column 'text' .*; {unread}"):
        read_text(str(path), columns={"text": "text"})


def test_the_way_from_a_line_to_an_example_is_short(tmp_path):
    """As short as docs/development.md says."""
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(*({"text": f"{i}", "label": "ab"[i % 2]} for i in range(3))))
    functions = set()

    def record(frame, event, _):
        file, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and file.parent == FOLDER and "<" not in frame.f_code.co_name:
            functions.add((file.name, name))

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        assert read_text(path).splits["train"][0].label == "a"
    finally:
        sys.setprofile(before)
    assert len(functions) <= 30 and len({file for file, _ in functions}) <= 8, functions
