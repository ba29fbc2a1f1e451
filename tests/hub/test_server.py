"""The hub of the tests answers huggingface_hub and datasets as the real one does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub.server import Hub


@pytest.fixture
def repository(hub: Hub) -> Path:
    shutil.rmtree(hub.model("lab/files"))
    folder = hub.model("lab/files")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    return folder


def test_snapshots_branches_and_commits(hub: Hub, repository: Path) -> None:
    hub.renamed = {"files": "lab/files"}
    first = hub.commit_id(repository)
    (hub.model("lab/files", "v1") / "config.json").write_text('{"tag": 1}')
    (repository / "config.json").write_text('{"second": 1}')
    contents = {
        revision: Path(snapshot_download("files", revision=revision), "config.json").read_text()
        for revision in ("main", "v1", first)
    }
    assert contents == {"main": '{"second": 1}', "v1": '{"tag": 1}', first: "{}"}
    weights = Path(snapshot_download("lab/files"), "model.safetensors")
    assert weights.read_bytes() == b"weights" * 100
    with pytest.raises(RevisionNotFoundError):
        snapshot_download("lab/files", revision="v2")


def test_rights(hub: Hub, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated = {"lab/files": {"ana"}}
    with pytest.raises(GatedRepoError):
        snapshot_download("lab/files")
    monkeypatch.setenv("HF_TOKEN", "hf_ana")
    snapshot_download("lab/files")
    hub.private = {"lab/files"}
    monkeypatch.setenv("HF_TOKEN", "hf_bob")
    with pytest.raises(RepositoryNotFoundError):
        HfApi().model_info("lab/files")
    hub.private, hub.gated = set(), {}
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    with pytest.raises(HfHubHTTPError, match="rights to write"):
        HfApi().auth_check("lab/files", write=True)


def test_pushes(hub: Hub, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ana")
    HfApi().create_repo("lab/files", exist_ok=True)
    operations = [
        CommitOperationAdd("sub/model.safetensors", b"more"),
        CommitOperationAdd("README.md", b"card"),
        CommitOperationDelete("config.json"),
    ]
    pushed = HfApi().create_commit("lab/files", operations, commit_message="x")
    folder = Path(snapshot_download("lab/files", revision=pushed.oid))
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {"sub/model.safetensors", "README.md", "model.safetensors"}
    assert (folder / "sub/model.safetensors").read_bytes() == b"more"


def test_faults(hub: Hub, repository: Path) -> None:
    hub.fault("GET /api/models/lab/files", status=400)
    with pytest.raises(HfHubHTTPError, match="Fault on demand"):
        HfApi().model_info("lab/files")
    hub.fault("GET /_objects/", cut=True)  # the client tries again
    snapshot_download("lab/files")
    assert len(hub.asked("GET /_objects/")) == 2


def test_data_sets(hub: Hub) -> None:
    import datasets

    rows = [{"text": f"row {n}", "label": n % 2} for n in range(4)]
    folder = hub.dataset("lab/plain-rows")
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = datasets.load_dataset("lab/plain-rows")
    assert {split: rows.to_list() for split, rows in loaded.items()} == {
        "train": rows,
        "test": rows,
    }
