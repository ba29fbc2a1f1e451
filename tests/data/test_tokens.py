"""Words with tags or spans: column files, CoNLL-U, JSON forms, schemes, streaming, errors."""

import io
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.data import DataError, read_gold, read_token_file, read_tokens, split_at_gold
from finetune.data.spans import words_to_chars
from finetune.types import Span
from tests.small_data import jsonl


@pytest.fixture
def read(written):
    """Write one file and read it as train."""
    return lambda name, content, **options: written(partial(read_tokens, **options), name, content)


def train(dataset):
    return dataset.splits["train"]


CONLL2003 = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP B-MISC

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


# --- columns ---------------------------------------------------------------------------------


def test_conll2003_is_iob1_with_documents(read, tmp_path):
    dataset = read("eng.train", CONLL2003)
    first, second = train(dataset)
    assert first.words == ("EU", "rejects", "German", "call")
    assert first.tags == ("B-ORG", "O", "B-MISC", "B-MISC")
    assert first.spans == (Span(0, 1, "ORG"), Span(2, 3, "MISC"), Span(3, 4, "MISC"))
    assert second.tags == ("B-PER", "I-PER")
    assert [e.document for e in train(dataset)] == ["1", "2"]
    assert [e.where for e in train(dataset)] == [f"{tmp_path}/eng.train:{n}" for n in (3, 10)]
    assert dataset.notes == ["tag scheme IOB1 found, converted to BIO"]


@pytest.mark.parametrize(
    ("column", "tags"),
    [
        ("pos", ("NNP", "VBZ", "JJ", "NN")),
        ("1", ("NNP", "VBZ", "JJ", "NN")),
        ("pos_tags", ("NNP", "VBZ", "JJ", "NN")),
        ("chunk", ("B-NP", "B-VP", "B-NP", "I-NP")),
        ("ner", ("B-ORG", "O", "B-MISC", "B-MISC")),
        ("-1", ("B-ORG", "O", "B-MISC", "B-MISC")),
    ],
)
def test_choosing_the_tag_column(read, column, tags):
    example = train(read("eng.train", CONLL2003, columns={"tags": column}))[0]
    assert example.tags == tags
    assert (example.spans is None) == (tags[0] == "NNP")


def test_wrong_tag_column(error):
    assert error("a.conll", CONLL2003, columns={"tags": "nerr"}) == (
        "a.conll: no column 'nerr' (--columns tags=nerr): the file has 4 columns, 0 to 3, named "
        "word, pos, chunk, ner. Perhaps you meant 'ner'?"
    )
    assert "no column '4'" in error("a.conll", CONLL2003, columns={"tags": "4"})
    message = error("a.conll", "Ann NN x\nran VB y\n", columns={"tags": "1,2"})
    assert "a.conll:1: several columns of tags, but they are not span tags" in message
    assert "roles here are words, tags, spans, text" in error(
        "a.conll", CONLL2003, columns={"label": "4"}
    )


def test_docstart_as_the_first_word_of_a_sentence(read):
    content = "-DOCSTART- -DOCSTART- O\nDat Pron O\n\nAnn N B-PER\n-DOCSTART- x O\nLee N B-PER\n"
    examples = train(read("ned.train", content))
    documents = [(e.words[0], e.document) for e in examples]
    assert documents == [("Dat", "1"), ("Ann", "1"), ("Lee", "2")]


@pytest.mark.parametrize("name", ["a.txt", "a.conll", "a.tsv", "a.bio", "a.train"])
@pytest.mark.parametrize("separator", [" ", "\t", "   "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_and_blank_lines(read, name, separator, end):
    lines = ["Ann B-PER", "ran O", "", "  ", "\t", "", "Lee B-PER"]
    content = end.join(line.replace(" ", separator) for line in lines)
    assert [e.words for e in train(read(name, content))] == [("Ann", "ran"), ("Lee",)]


def test_odd_words_stay_words(read):
    words = ["\u200b", "\xa0", "\u3000", "x" * 473, "#", "", "a b"]
    content = "".join(f"{word}\tO\n" for word in words) + "Ann\tB-PER\n"
    assert train(read("a.tsv", content))[0].words == (*words, "Ann")
    for word in "[{":  # no JSON
        assert train(read("a.test", f"{word}\tO\nAnn\tB-PER\n"))[0].words == (word, "Ann")
    spaced = "".join(f"{word} O\n" for word in words[:5]) + "Ann B-PER\n"
    assert train(read("a.conll", spaced))[0].words == (*words[:5], "Ann")


def test_comments(read):
    content = "# source: web\nAnn\tN\tB-PER\n# a remark\n#\tSYM\tO\n"
    assert train(read("a.tsv", content))[0].words == ("Ann", "#")
    spaced = "# id 12 domain=en\nAnn _ _ B-PER\n# _ _ O\n"
    assert train(read("a.conll", spaced))[0].words == ("Ann", "#")


def test_remarks_before_a_sentence_of_blank_separated_columns(read, error):
    content = "# Document 5, a letter\nAnn N B-PER\n# SYM O\n\n# x\n# N O\nLee N B-PER\n"
    assert [e.words for e in train(read("a.conll", content))] == [("Ann", "#"), ("#", "Lee")]
    assert "a.conll:2: 2 columns where 3" in error("a.conll", "Ann N B-PER\n# remark\n")


def test_empty_tags(read, error):
    """An empty last column of every line is none; a tag that is missing here and there is."""
    examples = train(read("a.conll", "Ann\tN\tB-PER\t\nran\tV\tO\t\n"))
    assert examples[0].tags == ("B-PER", "O")
    assert "a.conll:2: the word 'ran' has no tag" in error("a.conll", "Ann\tB-PER\nran\t\n")


def test_germeval_has_outer_and_inner_spans(read):
    content = (
        "#\thttp://source\t[2010-07-04]\t\n"
        "1\tToyota\tB-ORG\tO\n2\tDeutschland\tI-ORG\tB-LOC\n3\t#\tO\tO\t\n\n"
        "#\thttp://other\t[2010-07-04]\n1\t1951\tO\tO\n"
    )
    dataset = read("NER-de-train.tsv", content)
    first, second = train(dataset)
    assert first.words == ("Toyota", "Deutschland", "#")
    assert first.spans == (Span(0, 2, "ORG"), Span(1, 2, "LOC"))
    assert (first.tags, second.tags, second.spans) == (None, None, ())
    assert dataset.notes == ["nested spans: examples have spans, no tags"]
    outer = train(read("NER-de-train.tsv", content, columns={"tags": "2"}))[0]
    assert outer.tags == ("B-ORG", "I-ORG", "O")
    flat = "1\tAnn\tB-PER\tO\n2\tran\tO\tO\n3\tParis\tO\tB-LOC\n"
    assert train(read("a.tsv", flat))[0].tags == ("B-PER", "O", "B-LOC"), "layers without nesting"


def test_genia_has_levels(read):
    content = "IL\tB-DNA\tB-protein\tO\tO\n-\tI-DNA\tI-protein\tO\tO\ngene\tI-DNA\tO\tO\tO\n"
    example = train(read("genia.train.iob2", content))[0]
    assert example.spans == (Span(0, 2, "protein"), Span(0, 3, "DNA"))
    chosen = train(read("genia.train.iob2", content, columns={"tags": "1,2"}))[0]
    assert chosen.spans == example.spans


def test_german_conll_takes_the_last_of_five(read):
    content = "Ann Ann NE I-NC I-PER\nlief laufen V I-VC O\nX x N I-NC I-PER\nY y N B-NC I-PER\n"
    assert train(read("deu.train", content))[0].tags[:2] == ("B-PER", "O")


CONLLU = """# newdoc id = weblog-1
# sent_id = 1
# text = Don't go.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadv\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tgone\tgo\tVERB\tVB\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

# newdoc
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
"""


def test_conllu(read, tmp_path):
    first, second = train(read("en-ud-train.conllu", CONLLU))
    assert first.words == ("Do", "n't", "go", ".")
    assert (first.tags, first.spans) == (("AUX", "PART", "VERB", "PUNCT"), None)
    assert (first.document, second.document, second.words) == ("weblog-1", "1", ("#",))
    assert (first.where, first.key) == (f"{tmp_path}/en-ud-train.conllu:5", "1")
    xpos = train(read("en-ud-train.conllu", CONLLU, columns={"tags": "xpos"}))[0]
    assert xpos.tags == ("VB", "RB", "VB", ".")
    lemma = train(read("a.txt", CONLLU, columns={"words": "lemma"}))[0]
    assert lemma.words[1] == "not"


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IO", ["I-A", "I-A", "O", "I-B", "O", "O"]),
        ("IOB1", ["I-A", "B-A", "I-A", "O", "I-B", "O"]),
        ("BIOES", ["B-A", "I-A", "E-A", "O", "S-B", "O"]),
        ("BILOU", ["B-A", "I-A", "L-A", "O", "U-B", "O"]),
        ("BMES", ["B-A", "M-A", "E-A", "O", "S-B", "O"]),
    ],
)
def test_schemes_become_bio(read, scheme, tags):
    dataset = read("a.conll", "".join(f"w {tag}\n" for tag in tags))
    assert dataset.notes == [f"tag scheme {scheme} found, converted to BIO"]
    assert {tag[0] for tag in train(dataset)[0].tags} == set("BIO")
    assert len(train(dataset)[0].spans) == (3 if scheme == "IOB1" else 2)


def test_repaired_tags_are_counted(read, tmp_path):
    dataset = read("a.conll", "a S-X\n\nb O\nc E-X\n")
    assert train(dataset)[1].tags == ("O", "B-X")
    assert dataset.notes[1].startswith("1 illegal tag read")
    assert dataset.notes[1].endswith(f"first in {tmp_path}/a.conll:3")


def test_illegal_bio_tags_stay_as_they_are(read):
    example = train(read("a.conll", "a O\nb I-X\nc O\nd B-X\ne I-X\n"))[0]
    assert example.tags[1] == "I-X" and example.spans == (Span(1, 2, "X"), Span(3, 5, "X"))


def test_bare_types_are_spans_but_parts_of_speech_are_not(read):
    dataset = read("few.txt", "Ann\tperson-actor\nLee\tperson-actor\nran\tO\nto\tO\nx\tO\n")
    assert train(dataset)[0].tags == ("B-person-actor", "I-person-actor", "O", "O", "O")
    assert "no B- or I-" in dataset.notes[0]
    twitter = read("pos.txt", "i\tO\nsee\tV\nyou\tO\nLee\tN\nrun\tV\n")
    assert train(twitter)[0].tags == ("O", "V", "O", "N", "V")


@pytest.mark.parametrize(("stray", "line"), [("ner", 1), ("0", 5), ("X-B", 5)])
def test_one_stray_tag_does_not_make_plain_tags_of_all(error, stray, line):
    """A header, a misprint: without this the whole set would be learnt without spans."""
    tags = [stray if number == line else tag for number, tag in enumerate(["O", "B-X"] * 3, 1)]
    message = error("a.conll", "".join(f"w{n} x {tag}\n\n" for n, tag in enumerate(tags, 1)))
    assert f"a.conll:{2 * line - 1}: the word 'w{line}' has the tag {stray!r}" in message


@pytest.mark.parametrize(
    "tags",
    ["B_PER I_PER O B_LOC", "b-PER i-PER o b-LOC", "PER-B PER-I O LOC-B", "B-PER I_PER O B-LOC"],
)
def test_other_spellings_of_tags(read, tags):
    words = "".join(f"w {tag}\n" for tag in tags.split())
    dataset = read("a.conll", words)
    assert train(dataset)[0].tags == ("B-PER", "I-PER", "O", "B-LOC")
    assert dataset.notes[0].startswith("tags are read in their usual spelling: ")


def test_schemes_of_splits(tmp_path):
    (tmp_path / "train.conll").write_text("a B-X\nb I-X\nc E-X\n")
    (tmp_path / "test.conll").write_text("a B_X\nb M_X\nc E_X\n")
    dataset = read_tokens(str(tmp_path))
    assert dataset.splits["test"][0].tags == dataset.splits["train"][0].tags
    assert "tag scheme BIOES and BMES found, converted to BIO" in dataset.notes
    (tmp_path / "test.conll").write_text("a X\nb X\nc X\n")
    with pytest.raises(DataError, match=r"test.conll:1: the word 'a' has the tag 'X', but 3 tags"):
        read_tokens(str(tmp_path))


def test_prefixes_of_no_scheme(error):
    message = error("a.conll", "a B-X\nb L-X\nc B-X\nd E-X\n")
    assert "prefixes of the tags (B-, E-, L-) fit no one scheme" in message


# --- JSON ------------------------------------------------------------------------------------


ANN, BIO = ["Ann", "Lee", "ran"], ["B-PER", "I-PER", "O"]


@pytest.mark.parametrize(
    "row",
    [
        {"tokens": ANN, "tags": BIO},
        {"words": ANN, "ner_tags": BIO, "pos_tags": [1, 2, 3]},
        {"tokens": ANN, "labels": BIO},
        {"tokens": ANN, "spans": [{"start": 0, "end": 2, "label": "PER"}]},
        {"tokens": ANN, "entities": [[0, 2, "PER"]]},
        {"text": "Ann Lee ran", "entities": [{"start": 0, "end": 7, "label": "PER"}]},
        {"text": "Ann Lee ran", "spans": [{"start": 0, "end": 7, "type": "PER"}]},
        {"text": "Ann Lee ran", "entities": [[0, 7, "PER"]], "cats": {}},
        {"text": "Ann Lee ran", "entities": [{"type": "PER", "offsets": [[0, 3], [4, 7]]}]},
        {"text": "Ann Lee ran", "entities": [{"type": "PER", "offsets": [0, 7]}]},
        {"tokens": ANN, "spans": [{"offsets": [[0, 1], [1, 2]], "label": "PER"}]},
        {
            "text": "Ann Lee ran",
            "spans": [{"start_char": 0, "end_char": 7, "start": 0, "end": 2, "label": "PER"}],
        },
    ],
)
def test_json_forms(read, row):
    dataset = read("a.jsonl", jsonl({**row, "document": 3}))
    assert not any("discontinuous" in note for note in dataset.notes)
    example = train(dataset)[0]
    assert example.words == ("Ann", "Lee", "ran")
    assert example.tags == ("B-PER", "I-PER", "O")
    assert example.spans == (Span(0, 2, "PER"),)
    assert example.document == "3"
    if "text" in row:
        assert (example.text, example.offsets) == ("Ann Lee ran", ((0, 3), (4, 7), (8, 11)))


def test_parts_of_speech_in_json(read):
    rows = jsonl({"tokens": ["a", "b"], "upos": ["X", "Y"], "xpos": ["P", "Q"]})
    assert train(read("a.jsonl", rows))[0].tags == ("X", "Y")
    assert train(read("a.jsonl", rows, columns={"tags": "xpos"}))[0].tags == ("P", "Q")


def test_nested_spans_leave_all_tags_unset(read):
    rows = jsonl(
        {"tokens": ["a", "b"], "spans": [[1, 2, "Y"], [0, 2, "X"], [1, 2, "Y"]]},
        {"tokens": ["a", "b"], "spans": [[0, 1, "X"]]},
        {"tokens": ["a", "b"], "spans": []},
        {"tokens": ["a", "b"]},
    )
    examples = train(read("a.jsonl", rows))
    assert [e.tags for e in examples] == [None, None, None, None]
    assert examples[0].spans == (Span(0, 2, "X"), Span(1, 2, "Y"))
    assert examples[3].spans is None, "a row without spans has no gold"


def test_tags_and_nested_spans_side_by_side(read):
    rows = jsonl({"tokens": ["a", "b"], "tags": ["X", "Y"], "spans": [[0, 2, "P"], [0, 1, "Q"]]})
    example = train(read("a.jsonl", rows))[0]
    assert (example.tags, len(example.spans)) == (("X", "Y"), 2)
    only = train(read("a.jsonl", rows, columns={"tags": "tags"}))[0]
    assert only.spans is None


def test_spans_inside_a_word_are_kept_and_counted(read):
    entities = [[0, 5, "LOC"], [12, 15, "PER"]]
    dataset = read("a.jsonl", jsonl({"text": "Paris-based Anns", "entities": entities}))
    example = train(dataset)[0]
    assert example.spans == (Span(0, 1, "LOC"),) and example.misaligned == (Span(12, 15, "PER"),)
    assert example.tags == ("B-LOC", "O", "O", "O")
    assert dataset.notes[1].startswith("warning: 1 span in characters with an end inside a word")
    cut = split_at_gold(example)
    assert cut.words == ("Paris", "-", "based", "Ann", "s") and cut.misaligned == ()
    assert cut.tags == ("B-LOC", "O", "O", "B-PER", "O")
    assert words_to_chars(cut.offsets, cut.spans) == [Span(*entity) for entity in entities]
    assert split_at_gold(cut) is cut
    other = read("a.jsonl", jsonl({"text": "Paris-based Anns", "entities": entities[:1]}))
    assert dataset.fingerprint != other.fingerprint


def test_given_words_are_never_split(read):
    tokens = [{"start": 0, "end": 11}, {"start": 12, "end": 15}]
    row = {"text": "Paris-based Ann", "tokens": tokens, "spans": [[0, 5, "LOC"]]}
    example = train(read("a.jsonl", jsonl(row)))[0]
    assert example.words == ("Paris-based", "Ann") and example.spans == ()
    assert example.misaligned == (Span(0, 5, "LOC"),)
    assert split_at_gold(example) is example


def test_rows_without_words_are_counted(read):
    rows = {"tokens": ["a"], "tags": ["O"]}, {"tokens": [], "tags": []}, {"tokens": ["b"]}
    dataset = read("a.jsonl", jsonl(*rows))
    assert [(e.id, *e.words, e.tags) for e in train(dataset)] == [(0, "a", ("O",)), (1, "b", None)]
    assert dataset.notes == ["train: 1 row without words skipped"]


def test_numbers_without_names_are_noted(read):
    dataset = read("a.jsonl", jsonl({"tokens": ["a", "b"], "tags": [0, 3]}))
    assert train(dataset)[0].tags == ("0", "3")
    assert dataset.notes == ["tags are numbers without names: replace them by names"]


def test_json_and_columns_may_be_mixed(tmp_path):
    (tmp_path / "train.jsonl").write_text(jsonl({"tokens": ["a", "b"], "spans": [[0, 2, "X"]]}))
    (tmp_path / "dev.conll").write_text("a I-X\nb B-X\n")
    dataset = read_tokens(str(tmp_path))
    assert dataset.splits["validation"][0].spans == (Span(0, 1, "X"), Span(1, 2, "X"))
    assert dataset.splits["train"][0].tags == ("B-X", "I-X")
    assert dataset.format == "conll+jsonl"


def test_several_labels_of_one_extent_stay(read, tmp_path):
    both = {"tokens": ["Ann", "ran"], "spans": [[0, 1, "PER"], [0, 1, "Runner"], [0, 1, "PER"]]}
    assert train(read("a.jsonl", jsonl(both)))[0].spans == (Span(0, 1, "PER"), Span(0, 1, "Runner"))
    listed = {"text": "Ann ran", "spans": [{"start": 0, "end": 3, "labels": ["Runner", "PER"]}]}
    spans = [train(read("a.jsonl", jsonl(row)))[0].spans for row in (listed, both)]
    columns = "1\tAnn\tB-PER\tB-Runner\n2\tran\tO\tO\n"
    assert spans[0] == spans[1] == train(read("a.tsv", columns))[0].spans
    assert spans[0] == read_gold(tmp_path / "a.tsv")[0].spans


def test_discontinuous_spans_are_enclosed_and_counted(read, tmp_path):
    cancer = {"type": "Disease", "text": ["breast", "cancer"], "offsets": [[0, 6], [19, 25]]}
    ovarian = {"type": "Disease", "text": ["ovarian cancer"], "offsets": [[11, 25]]}
    rows = jsonl(
        {"text": "none here", "entities": []},
        {"text": "breast and ovarian cancer", "entities": [cancer, ovarian]},
        {"text": "a b c", "entities": [{"label": "X", "offsets": [[4, 5], [0, 1]]}]},
    )
    dataset = read("a.jsonl", rows)
    assert train(dataset)[1].spans == (Span(0, 4, "Disease"), Span(2, 4, "Disease"))
    assert train(dataset)[2].spans == (Span(0, 3, "X"),)
    assert dataset.notes[1].startswith("2 discontinuous spans: read from the first start")
    assert dataset.notes[1].endswith(f"first in {tmp_path / 'a.jsonl'}:2")
    words = {"tokens": ["a", "b", "c"], "spans": [{"label": "X", "offsets": [[0, 1], [2, 3]]}]}
    assert "1 discontinuous span" in read("a.jsonl", jsonl(words)).notes[0]


def test_gold_is_read_as_in_training(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("Ann\tPER\nLee\tPER\nran\tO\nto\tO\n\nOslo\tO\n")
    first, second = read_gold(path)
    assert first.spans == (Span(0, 2, "PER"),) and second.spans == ()
    path.write_text("Ann I-PER\nLee B-PER\n")
    assert read_gold(path)[0].spans == (Span(0, 1, "PER"), Span(1, 2, "PER"))


def test_the_text_of_a_span_may_differ_in_blanks_and_case(read):
    row = spanned("Ann  Lee ran", start=0, end=8, label="X", text="ANN Lee")
    assert train(read("a.jsonl", jsonl(row)))[0].spans == (Span(0, 2, "X"),)


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.conll", "a X O\nb O\n", ["a.conll:2: 2 columns where 3 are expected", "by blanks"]),
        ("a.tsv", "a\tO\nb O\n", ["a.tsv:2: 1 column where 2", "by tabs", "blank lines"]),
        ("a.conll", "a\nb\n", ["a.conll: there are words but no tags", "word<TAB>tag"]),
        ("a.conll", "\n\n", ["a.conll: the train split is empty"]),
        ("a.csv", "a,O\n", ["a.csv", "CSV rows cannot hold words", "CoNLL columns"]),
        ("a.conll", "a B-X\nb L-X\nc E-X\n", ["prefixes of the tags (B-, E-, L-) fit no one"]),
    ],
)
def test_errors_name_the_line_and_the_remedy(error, name, content, words):
    message = error(name, content)
    assert all(word in message for word in words), message


def spanned(text, /, **span):
    return {"text": text, "spans": [span]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "a.jsonl:1: 2 words but 1 tag in 'tags'"),
        ({"tokens": "a b", "tags": []}, "a.jsonl:1: column 'tokens' must be a list of words"),
        ({"tokens": [None], "tags": ["O"]}, "None in 'tokens' is not a word"),
        ({"tokens": ["a"], "tags": [""]}, "'' in 'tags' is not a tag"),
        ({"tokens": ["a"], "tags": [-100]}, "tag -100 in 'tags' marks subwords: give words"),
        ({"tokens": ["a"], "tags": None}, "words but no tags"),
        ({"foo": 1}, "known to hold words or a text; columns found: foo"),
        ({"tokens": ["a"]}, "known to hold tags or spans; columns found: tokens. Name it: --colum"),
        (
            {"tokens": ["a"], "spans": [[0, 2, "X"]]},
            "a.jsonl:1: span 0 to 2 (X) is empty or outside the 1 word of the row: 0 <= start <",
        ),
        ({"tokens": ["a"], "spans": [[0, 1]]}, "a.jsonl:1: [0, 1] is not a span: write"),
        (spanned("ab", start=0, end=2, labels=[]), "is not a span"),
        (spanned("ab", start=0, end=2, label=3), "is not a span"),
        (spanned("a  b", start=1, end=3, label="X"), "a.jsonl:1: characters 1 to 3 ('X') touch no"),
        (
            spanned("ab", label="X", offsets=[[0, 1], [1, 9]]),
            "span 1 to 9 (X) is empty or outside the 2 characters of the row",
        ),
        (
            spanned("Zoë Lee ran", start=5, end=8, label="X", text="Lee"),
            "a.jsonl:1: a span has the text 'Lee', but characters 5 to 8 are 'ee '",
        ),
        (
            {"text": "ab", "tokens": [{"text": "ab", "start": 0, "end": 3}], "spans": []},
            'is not a token of the text: write {"text": "The", "start": 0, "end": 3}, in char',
        ),
        (
            {
                "text": "abc",
                "tokens": [{"start": 2, "end": 3}, {"start": 0, "end": 2}],
                "spans": [],
            },
            "the token at character 0 overlaps its predecessor",
        ),
    ],
)
def test_errors_of_json_rows(error, row, words):
    assert words in error("a.jsonl", jsonl(row))


def test_numbers_outside_the_classes():
    datasets = pytest.importorskip("datasets")
    values = {"tokens": [["a"]], "tags": [[-1]]}
    words, tags = datasets.Value("string"), datasets.ClassLabel(names=["O", "B-X"])
    features = datasets.Features({"tokens": datasets.List(words), "tags": datasets.List(tags)})
    with pytest.raises(DataError, match=r"data, row 1: tag -1 in 'tags' is outside the 2 classes"):
        read_tokens(datasets.Dataset.from_dict(values, features=features))


# --- streaming -------------------------------------------------------------------------------


@pytest.fixture
def stream(written):
    return lambda name, content: list(written(read_token_file, name, content))


def test_streaming_raw_text(stream):
    examples = stream("a.txt", "Ann Lee ran.\n\nTo Paris\n")
    assert [e.words for e in examples] == [("Ann", "Lee", "ran", "."), (), ("To", "Paris")]
    assert [e.id for e in examples] == [0, 1, 2]
    assert examples[0].offsets == ((0, 3), (4, 7), (8, 11), (11, 12))
    assert examples[0].text == "Ann Lee ran."
    assert (examples[0].tags, examples[0].spans) == (None, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"tokens": ["Ann", "ran"]}\n{"tokens": ["x"]}\n'),
        ("a.jsonl", '{"text": "Ann ran"}\n{"text": "x"}\n'),
        ("a.csv", "text,other\nAnn ran,1\nx,2\n"),
        ("a.csv", "Ann ran\nx\n"),
        ("a.tsv", "id\ttext\n1\tAnn ran\n2\tx\n"),
        ("a.conll", "Ann\nran\n\nx\n"),
        ("a.conll", "Ann NN\nran VB O\n\nx\n"),
        ("a.txt", "Ann B-PER\nran O\n\nx O\n"),
        ("a.test", "Ann B-PER\nran O\n\nx O\n"),
        ("a.log", "Ann ran\nx\n"),
    ],
)
def test_streaming_words(stream, name, content):
    assert [(e.id, e.words) for e in stream(name, content)] == [(0, ("Ann", "ran")), (1, ("x",))]


def test_streaming_keeps_gold_where_there_is_some(stream):
    first, second = stream("a.conll", "a I-X\nb O\n\nc\n")
    assert (first.tags, second.tags) == (("I-X", "O"), None)
    spans = stream("a.jsonl", jsonl({"text": "Ann ran", "spans": [[0, 3, "PER"]]}))[0]
    assert (spans.tags, spans.spans) == (("B-PER", "O"), (Span(0, 1, "PER"),))
    assert stream("a.tsv", "1\ta\tB-X\tO\n2\tb\tI-X\tB-Y\n")[0].tags is None


def test_streaming_file_objects():
    assert [e.words for e in read_token_file(io.StringIO("a b\nc\n"))] == [("a", "b"), ("c",)]
    table = io.StringIO("id,text\n1,a b\n")
    assert [e.words for e in read_token_file(table)] == [("a", "b")]
    columns = io.StringIO("-DOCSTART- O\n\na B-PER\nb O\n")
    assert [(e.words, e.tags) for e in read_token_file(columns)] == [(("a", "b"), ("B-PER", "O"))]
    content = io.BytesIO(b'{"tokens": ["a b", ""]}\n')
    assert [e.words for e in read_token_file(content)] == [("a b", "")]
    with pytest.raises(DataError, match="known to hold words or a text"):
        list(read_token_file(io.StringIO('{"foo": 1}\n')))
    assert list(read_token_file(io.StringIO(""))) == []


words = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1).filter(
    lambda word: word.strip() and not word.startswith(("#", "-DOCSTART", "\ufeff"))
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(words, min_size=1, max_size=5), min_size=1, max_size=4))
def test_any_words_survive_tab_columns(tmp_path_factory, sentences):
    content = "\n".join("".join(f"{w}\tO\n" for w in sentence) for sentence in sentences)
    path = tmp_path_factory.mktemp("columns") / "a.tsv"
    path.write_text(content, encoding="utf-8", newline="")
    assert [list(e.words) for e in read_tokens(str(path)).splits["train"]] == sentences
