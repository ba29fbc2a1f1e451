"""Data sets of the hub: their splits, configurations, commits and labels, and clear refusals."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from huggingface_hub import constants

from finetune.config.tasks import ClassifyConfig
from finetune.data import DataError, read_text, read_tokens
from finetune.data import examples as holder
from finetune.data import hub as hub_data
from finetune.data.running_text import text_sources
from finetune.preprocessing import preparation
from finetune.pretraining.documents import read_running_text
from finetune.runtime import hub as hub_module
from finetune.runtime.hub import HubError, forget_repositories
from finetune.tasks import load_task
from finetune.types import TextExample, UserError
from tests.command import in_two_processes, run
from tests.covering import few
from tests.hub.server import Hub

Rows = Sequence[Mapping[str, Any]]
datasets.disable_progress_bars()
TEXT = datasets.Features(
    {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "maybe", "a"])}
)
TAGS = datasets.Features(
    {
        "tokens": datasets.List(datasets.Value("string")),
        "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "B-PER", "I-PER"])),
    }
)
COPY = "refs/convert/parquet"


def texts(split: str, count: int = 6) -> list[dict[str, Any]]:
    return [{"text": f"{split} text {i}", "label": i % 3} for i in range(count)]


def tagged(split: str, count: int = 4) -> list[dict[str, Any]]:
    return [{"tokens": [split, str(i)], "ner_tags": [1, 0]} for i in range(count)]


def publish(
    hub: Hub,
    id: str,
    configs: Mapping[str, Mapping[str, Rows]],
    features: Any = TEXT,
    revision: str = "main",
) -> Path:
    """Write a data set as ``push_to_hub`` does, or as a Parquet copy without a card.

    ``features`` may be features by configuration.
    """
    folder = hub.dataset(id, revision)
    shutil.rmtree(folder)
    card = []
    for config, splits in configs.items():
        for split, rows in splits.items():
            name = f"{config}/{split}/0000.parquet"
            (folder / name).parent.mkdir(parents=True)
            table = datasets.Dataset.from_list([*rows], features=features.get(config, features))
            table.to_parquet(folder / name)
        files = [{"split": s, "path": f"{config}/{s}/*"} for s in splits]
        card.append({"config_name": config, "data_files": files})
    if revision == "main":
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': card})}---\n")
    return folder


def scripted(hub: Hub, id: str, configs: Mapping[str, Mapping[str, Rows]], features: Any) -> Path:
    """A data set with a script, whose rows are in the hub's Parquet copy."""
    folder = hub.dataset(id)
    (folder / "README.md").write_text("---\nlicense: other\n---\n")
    (folder / f"{id.split('/')[1]}.py").write_text("raise SystemExit\n")
    return publish(hub, id, configs, features, COPY)


def ids(data: Any, split: str) -> list[str]:
    return [example.text for example in data.splits[split]]


@pytest.fixture
def offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Any:
    def switch(value: bool = True) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", value)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", value)
        forget_repositories()

    return switch


def test_all_splits_of_a_name_are_read(hub: Hub) -> None:
    rounds = {
        f"{split}_r{i}": texts(f"{split}{i}", i) for split in ("train", "dev") for i in (1, 2)
    }
    publish(hub, "lab/anli", {"plain_text": {**rounds, "unsupervised": texts("u")}})
    data = read_text("lab/anli")
    assert data.notes[0] == "splits not read: unsupervised"
    assert ids(data, "train") == ["train1 text 0", "train2 text 0", "train2 text 1"]
    assert "validation: joined from dev_r1, dev_r2" in data.notes
    chosen = read_text("lab/anli,train=train_r2,test=dev_r1")
    assert (len(chosen.splits["train"]), ids(chosen, "test")) == (2, ["dev1 text 0"])
    assert (chosen.pinned or "").endswith(",train=train_r2,test=dev_r1")


@pytest.mark.parametrize("revision", ["main", COPY])
def test_the_main_process_can_send_what_it_downloaded(revision: str, hub: Hub) -> None:
    publish(hub, "lab/sent", {"default": {"train": texts("a")}}, revision=revision)
    chosen = hub_data.HubDataset("lab/sent", None, None if revision == "main" else revision)
    found = hub_data.downloaded(chosen)
    sent, own = (each.tables() for each in (pickle.loads(pickle.dumps(found)), found))
    assert sent.keys() == own.keys() == {"train"}
    assert [r.values for r in sent["train"].rows] == [r.values for r in own["train"].rows]


def test_the_configuration_is_chosen(hub: Hub) -> None:
    publish(hub, "lab/glue", {name: {"train": texts(name)} for name in ("cola", "mrpc")})
    with pytest.raises(DataError, match=r"choose one of cola, mrpc, as in --data lab/glue:cola"):
        read_text("lab/glue")
    with pytest.raises(DataError, match=r"no configuration 'mrcp', only cola, mrpc.*meant 'mrpc'"):
        read_text("lab/glue:mrcp")
    data = read_text("lab/glue:mrpc")
    assert ids(data, "train")[0] == "mrpc text 0"
    assert data.label_order == ("no", "maybe", "a")


def test_configurations_of_a_parquet_copy_are_not_joined(hub: Hub, offline: Any) -> None:
    configs = {name: {"train": tagged(name), "test": tagged("t")} for name in ("inter", "intra")}
    folder = scripted(hub, "lab/few", configs, TAGS)
    with pytest.raises(DataError, match=r"choose one of inter, intra, as in --data lab/few:inter"):
        read_tokens("lab/few")
    with pytest.raises(DataError, match=r"no configuration 'intre', only inter, intra"):
        read_tokens("lab/few:intre")
    data = read_tokens("lab/few:intra")
    assert [e.words[0] for e in data.splits["train"]] == ["intra"] * 4
    assert data.splits["train"][0].tags == ("B-PER", "O")
    assert data.splits["train"][0].where == "lab/few[train]:1"
    pinned = f"lab/few:intra@{hub.commit_id(folder)}"
    assert data.pinned == pinned
    offline()
    for spec in (pinned, "lab/few:intra@refs/convert/parquet"):
        assert read_tokens(spec).fingerprint == data.fingerprint
    with pytest.raises(DataError, match=r"'inter', only intra in the cache"):
        read_tokens(f"lab/few:inter@{COPY}")


def test_a_commit_is_recorded_and_pinned(hub: Hub, offline: Any) -> None:
    folder = publish(hub, "lab/rows", {"default": {"train": texts("old")}})
    commit = hub.commit_id(folder)
    first = read_text("lab/rows")
    assert first.pinned == f"lab/rows@{commit}"
    publish(hub, "lab/rows", {"default": {"train": texts("new")}})
    forget_repositories()
    assert ids(read_text("lab/rows"), "train")[0] == "new text 0"
    assert read_text(first.pinned).fingerprint == first.fingerprint
    offline()
    assert read_text("lab/rows").pinned != first.pinned
    with pytest.raises(DataError, match=r"the cache has commit .* instead: .*write lab/rows@"):
        read_text(first.pinned)


def test_the_cache_is_read_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(hub, "lab/rows", {"default": {"train": texts("a")}, "extra": {"train": texts("b")}})
    expected = read_text("lab/rows:extra").fingerprint
    forget_repositories()
    monkeypatch.setattr(hub_module, "TIMEOUT", 0.2)  # ask twice
    hub.fault("lab/rows", times=100, status=500)
    assert read_text("lab/rows:extra").fingerprint == expected
    with pytest.raises(DataError, match=r"the cache has only \['extra'\] of lab/rows: run once"):
        read_text("lab/rows:default")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(Path(constants.HF_HUB_CACHE) / "empty"))
    forget_repositories()
    with pytest.raises(HubError, match=r"status 500.*hf download lab/rows .* --data FOLDER"):
        read_text("lab/rows")


def test_refusals_name_the_data_set(hub: Hub) -> None:
    publish(hub, "lab/secret", {"default": {"train": texts("a")}})
    with pytest.raises(UserError, match="has no revision 'v9': name a branch, tag or commit"):
        read_text("lab/secret@v9")
    hub.gated = {"lab/secret": {"ana"}}
    with pytest.raises(UserError, match=f"ask for access at {hub.url}/datasets/lab/secret"):
        read_text("lab/secret")


def test_a_cut_download_is_continued(hub: Hub) -> None:
    folder = publish(hub, "lab/rows", {"default": {"train": texts("a", 3000)}})
    hub.fault("GET /.*lfs|resolve", times=50, cut=True)
    with pytest.raises(HubError, match=r"was cut .*Run again to continue it"):
        read_text("lab/rows")
    hub.faults.clear()
    forget_repositories()
    assert len(read_text("lab/rows").splits["train"]) == 3000
    assert folder


def test_other_files_of_the_hub(hub: Hub) -> None:
    folder = hub.dataset("lab/plain")
    for split in ("train", "dev"):
        rows = [{"text": f"{split} {i}", "label": "ab"[i % 2]} for i in range(4)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_text("lab/plain")
    assert {split: len(rows) for split, rows in data.splits.items()} == {
        "train": 4,
        "validation": 4,
    }
    empty = hub.dataset("lab/empty")
    (empty / "README.md").write_text("nothing")
    with pytest.raises(DataError, match="`datasets` cannot read this data set"):
        read_text("lab/empty")


def test_running_text(hub: Hub, encoder: Path) -> None:
    lines = ["= Title =", "One line .", "", "Another line ."]
    features = datasets.Features({"text": datasets.Value("string")})
    splits = {"train": [{"text": line} for line in lines], "test": [{"text": "The end ."}]}
    publish(hub, "lab/text", {"raw": splits}, features)
    data = read_running_text("lab/text:raw")
    assert ids(data, "train") == ["= Title =\nOne line .", "Another line ."]
    assert (list(data.splits), data.format) == (["train", "test"], "hub")
    assert (data.pinned or "").startswith("lab/text:raw@")
    again = read_running_text("en=lab/text:raw,de=lab/text:raw", without_test=True)
    assert [row.key for row in again.splits["train"]] == ["en", "en", "de", "de"]
    assert list(again.splits) == ["train"]
    assert [*text_sources("lab/text:raw")[0].lines()] == [line for line in lines if line]


@pytest.mark.slow
def test_two_processes_load_once_and_report_once(hub: Hub, encoder: Path, tmp_path: Path) -> None:
    publish(hub, "lab/rows", {"default": {"train": texts("a", 40), "test": texts("b")}})
    flags = ["--model", "lab/encoder", "--steps", "1", "--max-length", "16", "--precision", "fp32"]

    def both(data: str) -> list[tuple[int, str]]:
        hub.requests.clear()
        words = ["-m", "finetune", "classify", "--data", data, "--out", str(tmp_path / "run")]
        processes = in_two_processes([sys.executable, *words, *flags])
        errors = [process.communicate(timeout=120)[1] for process in processes]
        return [(p.returncode, e) for p, e in zip(processes, errors, strict=True)]

    outcomes = both("lab/absent")
    assert [code for code, _ in outcomes] == [2, 2]
    assert "'lab/absent' does not exist" in outcomes[0][1] and not outcomes[1][1]
    outcomes = both("lab/rows")
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    assert len(hub.asked("GET /api/datasets/lab/rows 200")) == 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data_used"].startswith("lab/rows@") and config["data"] == "lab/rows"
    assert len(hub.asked("GET /_objects/.* 200")) <= 3, "each file once, and the weights"


def test_a_run_is_continued_on_its_commit(hub: Hub, encoder: Path, tmp_path: Path) -> None:
    publish(hub, "lab/rows", {"default": {"train": texts("old", 12)}})
    flags = (*"--model lab/encoder --steps 2 --max-length 16 --out".split(), tmp_path / "x")
    assert run("classify", "--data", "lab/rows", *flags).code == 0
    used = json.loads((tmp_path / "x" / "config.json").read_text())["data_used"]
    publish(hub, "lab/rows", {"default": {"train": texts("new", 12)}})
    forget_repositories()
    refused = run("classify", "--data", "lab/rows", *flags, "--resume")
    assert refused.code == 2 and f"continue with the same data, --data {used}" in refused.err
    assert run("classify", "--data", used, *flags, "--resume").code == 0


SMALL_STORES = {(holder, "MOST_IN_MEMORY"): 5, (holder, "CHUNK"): 4, (preparation, "MIN_BYTES"): 0}
"""Settings with which 12 rows do not fit in memory."""


@pytest.mark.parametrize("data", few(["lab/rows", "lab/copy@refs/convert/parquet"], "lab/rows"))
def test_large_data_are_read_once(
    data: str,
    hub: Hub,
    encoder: Path,
    tmp_path: Path,
    offline: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for (module, name), value in SMALL_STORES.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "kept"))
    read: list[str] = []
    for opens in (hub_data.dataset_tables, hub_data._copied_tables):

        def opened(rows: Any, id: str, opens: Any = opens) -> Any:
            read.append(id)
            return opens(rows, id)

        monkeypatch.setattr(hub_data, opens.__name__, opened)

    def publish_rows(name: str) -> None:
        rows = {"default": {"train": texts(name, 12), "test": texts("test")}}
        publish(hub, "lab/rows", rows)
        publish(hub, "lab/copy", rows, revision=COPY)
        forget_repositories()

    def content(**changes: Any) -> Any:
        read.clear()
        settings = {"data": data, "test_sets": ("more=lab/rows",), "max_length": 16, **changes}
        loaded = load_task(ClassifyConfig(model="lab/encoder", **settings), "classify")[1]
        rows = {split: list(own) for split, own in loaded.splits.items()}
        return rows, loaded.notes, loaded.pinned, loaded.fingerprint

    publish_rows("old")
    first = content()
    assert len(read) == 2 and isinstance(first[0]["train"][0], TextExample)
    locations = [int(row.where.rpartition(":")[2]) for row in first[0]["train"]]
    assert locations == sorted(locations) and 1 <= locations[0] <= locations[-1] <= 12
    forget_repositories()
    assert content() == first and not read
    content(columns=("text=text",))
    assert len(read) == 2
    publish_rows("new")
    assert content() != first and len(read) == 2
    second = content()
    assert second[2].partition("@")[2] != first[2].partition("@")[2] and not read
    forget_repositories()
    offline()
    assert content() == second and not read
