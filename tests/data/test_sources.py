"""Sources of --data: folders, files, saved sets, hub sets; fingerprints and held-out data."""

import gzip
import json
import os
from pathlib import Path

import pytest

from finetune.data import (
    DATASET_ALIASES,
    DataError,
    input_type_of,
    read_text,
    read_text_file,
    read_token_file,
    read_tokens,
)
from finetune.data import examples as holder
from finetune.data.hub import hub_dataset
from finetune.data.running_text import text_sources
from finetune.data.sources import canonical_split, input_files, resolve
from finetune.runtime.row_files import write_rows
from finetune.types import TextExample

ROW = '{"text": "fine film", "label": "pos"}\n'


def rows(count):
    return "".join(
        json.dumps({"text": f"text {i}", "label": "ab"[i % 2]}) + "\n" for i in range(count)
    )


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("eng.train", "train"),
        ("eng.testa", "validation"),
        ("eng.testb", "test"),
        ("NER-de-dev.tsv", "validation"),
        ("SICK_trial.txt", "validation"),
        ("en_ewt-ud-dev.conllu", "validation"),
        ("msr-para-val.tsv", "validation"),
        ("test_is_glue_dev.tsv", "test"),
        ("dev_matched.tsv", "validation_matched"),
        ("validation_mismatched", "validation_mismatched"),
        ("test_matched", "test_matched"),
        ("training", "train"),
        ("latest.jsonl", None),
        ("README.md", None),
    ],
)
def test_the_split_is_a_word_of_the_file_name(name, split):
    assert canonical_split(name) == split


def test_folder_reads_split_files_and_ignores_the_rest(tmp_path):
    for name in ("valid_matched.jsonl", "valid_mismatched.jsonl", "test.jsonl", "notes.jsonl"):
        (tmp_path / name).write_text(ROW)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(ROW.encode(), mtime=0))
    for name in ("README.md", "LICENSE", "train.py", "test.md", ".train.jsonl", "README_train.txt"):
        (tmp_path / name).write_text("nothing")
    (tmp_path / "train_matched.jsonl").write_text(ROW)
    dataset = read_text(str(tmp_path))
    validation = ["validation_matched", "validation_mismatched"]
    assert list(dataset.splits) == ["train", "train_matched", *validation, "test"]
    assert dataset.name == tmp_path.name
    assert dataset.notes == ["files not read: notes.jsonl"]
    where = f"{tmp_path / 'train.jsonl.gz'}:1"
    assert dataset.splits["train"][0] == TextExample(0, "fine film", None, "pos", where)


def test_two_files_of_a_split_are_an_error_but_packed_twins_and_shards_are_not(tmp_path):
    (tmp_path / "train.jsonl").write_text(ROW)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress((ROW * 2).encode()))
    assert len(read_text(str(tmp_path)).splits["train"]) == 1
    (tmp_path / "my-train.csv").write_text("text,label\na,b\n")
    with pytest.raises(DataError, match=r"two files for the train split, my-train.csv and train"):
        read_text(str(tmp_path))
    shards = tmp_path / "shards"
    shards.mkdir()
    for index in (1, 0):
        (shards / f"train-0000{index}-of-00002.jsonl").write_text(ROW.replace("fine", str(index)))
    texts = [e.text for e in read_text(str(shards)).splits["train"]]
    assert texts == ["0 film", "1 film"]


def test_named_files(tmp_path):
    path = tmp_path / "a,b.jsonl"
    path.write_text(ROW)
    alone, both = read_text(str(path)), read_text(f"train={path},dev={path}")
    assert (alone.name, list(alone.splits)) == ("a,b", ["train"])
    assert list(both.splits) == ["train", "validation"]
    with pytest.raises(DataError, match=r"'trian' is not a split: write train=FILE.*meant 'train'"):
        read_text(f"trian={path}")
    with pytest.raises(DataError, match="names the train split twice"):
        read_text(f"train={path},training={path}")
    with pytest.raises(DataError, match=r"no such file or folder. Perhaps you meant '.*a,b.jsonl'"):
        read_text(f"train={tmp_path / 'ab.jsonl'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="the folder holds no data files"):
        read_text(f"train={tmp_path / 'empty'}")


def test_a_pipe_is_no_data_to_read_twice(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for spec in (str(tmp_path / "pipe.jsonl"), f"train={tmp_path / 'pipe.jsonl'}"):
        with pytest.raises(DataError, match=r"pipe.jsonl: a pipe, and data are read more"):
            read_text(spec)


def test_several_files_of_a_split(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(ROW.replace("fine", name))
    (tmp_path / "README.md").write_text("the files of two weeks")
    expected = ["a film", "b film"]
    for spec in (f"train={tmp_path / 'a.jsonl'}+{tmp_path / 'b.jsonl'}", f"train={tmp_path}"):
        assert [e.text for e in read_text(spec).splits["train"]] == expected
    none = r"holds no split files .its entries: README.md, a.jsonl, .*: name .*, and train=.* all"
    with pytest.raises(DataError, match=none):
        read_text(str(tmp_path))
    with pytest.raises(DataError, match=r"b.json: no such file or folder. Perhaps you meant"):
        read_text(f"train={tmp_path / 'a.jsonl'}+{tmp_path / 'b.json'}")
    (tmp_path / "c.csv").write_text("no,header\n")
    with pytest.raises(DataError, match=r"files of several formats \(csv, jsonl\): name the files"):
        read_text(f"train={tmp_path}")


def test_predictions_of_a_run_are_no_data(tmp_path):
    for name in ("config.json", "metrics.json", "predictions.test.jsonl"):
        (tmp_path / name).write_text(ROW)
    for read in (read_text, input_files, text_sources, lambda path: read_text(f"train={path}")):
        with pytest.raises(DataError, match=r"is a run folder, .*config.json names"):
            read(str(tmp_path))


def test_several_files_to_predict(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text(ROW.replace("fine", name) * 2)
    (tmp_path / "b.jsonl").rename(tmp_path / "b.ndjson")
    (tmp_path / "README.md").write_text("three files")
    (tmp_path / "_predictions.json").write_text("{}")
    for spec in (tmp_path, str(tmp_path / "?.*js*"), str(tmp_path / "**" / "?.*son*")):
        found = list(read_text_file(spec))
        assert [e.text for e in found] == [f"{n} film" for n in "aabbcc"], spec
        assert [e.id for e in found] == list(range(6))
        assert found[3].where == f"{tmp_path / 'b.ndjson'}:2"
    opened = read_text_file(tmp_path)
    assert next(opened).text == "a film"
    (tmp_path / "c.jsonl").write_text("{")  # a file is opened once the files before it are read
    assert [next(opened).text for _ in range(3)] == ["a film", "b film", "b film"]
    with pytest.raises(DataError, match=r"c\.jsonl:1"):
        next(opened)
    (tmp_path / "d.csv").write_text("text\nx\n")
    with pytest.raises(DataError, match=r"several formats \(csv, jsonl\): write --file '.*jsonl'"):
        list(read_text_file(tmp_path))
    with pytest.raises(DataError, match="the pattern holds no data files"):
        list(read_text_file(str(tmp_path / "x*.jsonl")))


def test_several_files_of_columns_to_predict(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,p\n")
    (tmp_path / "b.csv").write_text("label,text\nq,y\n")
    assert [e.text for e in read_text_file(tmp_path)] == ["x", "y"]
    words = tmp_path / "words"
    words.mkdir()
    for name in ("a", "b"):
        content = f"-DOCSTART- O\n\n{name} B-PER\n\n{name} O\n"
        (words / f"{name}.conll").write_text(content)
    found = list(read_token_file(words))
    assert [(e.id, e.words) for e in found] == [(i, (w,)) for i, w in enumerate("aabb")]
    assert found[1].document == found[0].document != found[2].document


def test_columns_of_later_files_are_noted(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,p\n")
    (tmp_path / "b.csv").write_text("stars,label,text\n3,q,y\n")
    found = read_text(f"train={tmp_path}")
    assert [(e.text, e.label) for e in found.splits["train"]] == [("x", "p"), ("y", "q")]
    (note,) = (note for note in found.notes if "not read" in note)
    columns = f"columns that {tmp_path / 'a.csv'} does not have are not read: stars"
    assert note.endswith(f"b.csv: {columns}")


def test_files_that_do_not_fit_together(tmp_path):
    contents = {"a.csv": "text,label\nx,y\n", "b.csv": "x,y\n", "c.conll": "Ann B-PER\n"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"a\.csv names its columns and .*b\.csv does not"):
        read_text(f"train={tmp_path / 'a.csv'}+{tmp_path / 'b.csv'}")
    (tmp_path / "d.jsonl").write_text('{"tokens": ["Ann"], "tags": ["B-PER"]}\n')
    with pytest.raises(DataError, match="only one of them has rows of named columns"):
        read_tokens(f"train={tmp_path / 'c.conll'}+{tmp_path / 'd.jsonl'}")


def rows_of(*texts):
    return [{"text": text, "label": "p"} for text in texts]


def test_splits_of_one_name_are_joined_in_order():
    data = {"train_r1": rows_of("a", "b"), "dev_r1": rows_of("x"), "train_r2": rows_of("c", "b")}
    found = read_text(data)
    assert [e.text for e in found.splits["train"]] == ["a", "b", "c", "b"]
    assert [e.id for e in found.splits["train"]] == [0, 1, 2, 3]
    assert found.notes[0] == "train: joined from train_r1, train_r2"
    assert [e.text for e in read_text(data, splits=["dev"]).splits["validation"]] == ["x"]
    with pytest.raises(DataError, match="has no split 'test', only train, validation"):
        read_text(data, splits=["test"])


def test_large_splits_of_one_name_are_compared_by_their_first_rows(monkeypatch):
    monkeypatch.setattr(holder, "MOST_IN_MEMORY", 2)
    data = {"train_r1": rows_of(*"abcde"), "train_r2": rows_of(*"fg")}
    assert "".join(e.text for e in read_text(data).splits["train"]) == "abcdefg"
    with pytest.raises(DataError, match="2 of 2 rows of train_r1 are also in the others"):
        read_text(data | {"train_r2": rows_of(*"ab")})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_more_files_than_a_process_may_open(suffix, tmp_path):
    resource = pytest.importorskip("resource")
    for n in range(150):
        write_rows(tmp_path / f"{n:03}.{suffix}", [{"text": f"{n}", "label": "p"}])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/dev/fd")) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    try:
        assert len(read_text(f"train={tmp_path}").splits["train"]) == 150
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_splits_that_repeat_each_other_are_to_be_chosen(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {
        "train_2020": rows_of(*"abc"),
        "train_2021": rows_of(*"de"),
        "train_all": rows_of(*"abcde"),
        "test_2021": rows_of(*"xy"),
    }
    with pytest.raises(DataError, match="3 of 3 rows of train_2020 are also in the others: choose"):
        read_text(parts)
    folder = tmp_path / "tweets"
    tables = {name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}
    datasets.DatasetDict(tables).save_to_disk(folder)
    with pytest.raises(DataError, match=r"choose with --data tweets,train=train_2020"):
        read_text(str(folder))
    found = read_text(f"{folder},train=train_2021+train_2020,test=test_2021")
    assert [e.text for e in found.splits["train"]] == [*"deabc"]
    assert list(found.splits) == ["train", "test"]
    with pytest.raises(DataError, match=r"no split 'train_2022', only .*meant 'train_202"):
        read_text(f"{folder},train=train_2022")
    with pytest.raises(DataError, match="has no named splits to choose from"):
        read_text("examples/data/sentiment,train=a")


def test_datasets_of_one_split_number_their_classes_alike():
    datasets = pytest.importorskip("datasets")

    def part(*names):
        features = datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))}
        )
        rows = {"text": [f"{names[0]} film"], "label": [0]}
        return datasets.Dataset.from_dict(rows, features=features)

    with pytest.raises(DataError, match="number the classes of 'label' in different ways"):
        read_text({"train_a": part("neg", "pos"), "train_b": part("pos", "neg")})


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("./revews", r"no such file or folder. Perhaps .*reviews'"),
        ("reviews.jsonl", "no such file or folder"),
        ("reviews/nli", "reviews/nli: no such file or folder"),
        ("review", "neither a file or folder.*meant 'reviews'"),
        ("snlii", "Known short names: ag_news.*meant 'snli'"),
        ("genia", "genia: .*geniaproject.*--data FOLDER"),
        (" ", "--data is empty"),
    ],
)
def test_missing_paths_suggest_the_nearest_name(spec, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("reviews").mkdir()
    with pytest.raises(DataError, match=problem):
        resolve(spec)


def test_a_path_wins_over_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("mnli").hub == ("nyu-mll/glue", "mnli", None)
    for name in ("mnli", "genia"):
        Path(name).mkdir()
        Path(name, "train.jsonl").write_text(ROW)
        assert list(resolve(name).files) == ["train"]


def test_hub_names():
    assert hub_dataset("nyu-mll/glue:mrpc") == ("nyu-mll/glue", "mrpc", None)
    assert hub_dataset("wikiann:fr") == ("unimelb-nlp/wikiann", "fr", None)
    assert hub_dataset("AG-News") == DATASET_ALIASES["ag_news"]
    assert hub_dataset("trec").revision == "refs/convert/parquet"
    assert hub_dataset("bc5cdr") == ("tner/bc5cdr", None, "refs/convert/parquet")
    ewt = ("universal-dependencies/universal_dependencies", "en_ewt", "refs/convert/parquet")
    assert hub_dataset("UD-EWT") == ewt
    assert hub_dataset("nothing") is None


def test_folders_of_save_to_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    words, tags = datasets.Value("string"), datasets.ClassLabel(names=["O", "B-PER", "I-PER"])
    features = datasets.Features({"tokens": datasets.List(words), "ner_tags": datasets.List(tags)})
    values = {"tokens": [["Ann", "Lee", "ran"]], "ner_tags": [[1, 2, 0]]}
    one = datasets.Dataset.from_dict(values, features=features)
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one, "dev": one}).save_to_disk(tmp_path / "both")
    assert input_type_of(str(tmp_path / "one")) == "tokens"
    assert read_tokens(str(tmp_path / "one")).splits["train"][0].tags == ("B-PER", "I-PER", "O")
    both = read_tokens(str(tmp_path / "both"))
    assert (list(both.splits), both.format) == (["train", "validation"], "save_to_disk")
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(DataError, match="looks like a folder written by save_to_disk"):
        read_tokens(str(tmp_path / "one"))


def test_fingerprint_is_of_the_content_only(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x\\u00e9", "label": "p"}\n')
    (tmp_path / "b.csv").write_text("label,text\n\np,xé\n")
    (tmp_path / "c.csv").write_text("label,text\nq,xé\n")
    a, b, c = (read_text(str(tmp_path / name)) for name in ("a.jsonl", "b.csv", "c.csv"))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert a.fingerprint == "2296be6824d2d29a38a4bb1e3a97a256c2b8da99620bffd98ebeab8f0bf042c4"


def test_input_type_of(tmp_path):
    files = {
        "a.jsonl": ('{"tokens": ["a"], "tags": ["O"]}\n', "tokens"),
        "b.jsonl": (ROW, "text"),
        "c.jsonl": ('{"text": "a b", "entities": [[0, 1, "X"]]}\n', "tokens"),
        "d.tsv": ("text\tlabel\nx\ty\n", "text"),
        "e.tsv": ("Ann\tB-PER\nran\tO\n", "tokens"),
        "f.conll": ("Ann NN\n", "tokens"),
        "g.txt": ("a DT\nb NN\n\n" * 10, "tokens"),
        "h.txt": ("just a text\n", "text"),
        "i.csv": ("text,label\nx,y\n", "text"),
        "j.train": ("Ann NNP I-NP I-PER\n", "tokens"),
    }
    for name, (content, expected) in files.items():
        (tmp_path / name).write_text(content)
        assert input_type_of(str(tmp_path / name)) == expected, name


def test_example_data_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert set(resolve("examples/data/nli").files) == {"train", "validation", "test"}
    with pytest.raises(ValueError, match="no such file or folder"):
        resolve("examples/data/none")
