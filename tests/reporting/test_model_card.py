"""The model card against the hub's own reader, its example run as written, and uploads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import CommitOperationAdd, ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from finetune.reporting.hub_upload import without_paths
from finetune.reporting.model_card import PLACEHOLDER
from tests import small_data as data
from tests.command import Outcome, run
from tests.tiny import save_tiny_checkpoint

KINDS = {
    "classify": (data.sentiment, ()),
    "multi": (data.topics, ()),
    "number": (data.numbers, ()),
    "nli": (data.pairs, ("--calibrate", "temperature")),
    "tag": (data.entities, ()),
    "crf": (data.entities, ("--crf",)),
    "ner": (data.entities, ("--calibrate", "one")),
}
TASK = {"multi": "classify", "number": "classify", "crf": "tag"}
OWN = ("crf", "ner")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    save_tiny_checkpoint(folder / "bert", "bert")
    for name, (write, _) in KINDS.items():
        write(folder / f"{name}-data")
        assert train(folder, name, folder / name).code == 0
    return folder


def train(place: Path, kind: str, out: Path, *more: str) -> Outcome:
    return run(
        TASK.get(kind, kind), "--model", place / "bert", "--data", place / f"{kind}-data",
        "--out", out, "--steps", "2", "--batch-size", "8", "--precision", "fp32",
        *KINDS[kind][1], *more,
    )  # fmt: skip


def card_of(run_folder: Path) -> str:
    return (run_folder / "best" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_is_what_the_hub_reads(kind: str, place: Path):
    card = ModelCard.load(place / kind / "best" / "README.md")
    words = kind in ("tag", "crf", "ner")
    expected = "token-classification" if words else "text-classification"
    assert card.data.pipeline_tag == expected
    assert card.data.library_name == ("finetune" if kind in OWN else "transformers")
    readme = (place / kind / "README.md").read_text("utf-8")
    assert ("pipeline(model=" in readme) == (kind not in OWN)
    assert card.data.base_model is None and card.data.datasets is None, "neither is on the hub"
    metrics = json.loads((place / kind / "metrics.json").read_text())
    content = yaml.safe_load(card_of(place / kind).split("---")[1])
    _, results = model_index_to_eval_results(content["model-index"])
    assert {result.dataset_split for result in results} >= {"validation", "test"}
    for result in results:
        assert result.metric_value == pytest.approx(
            metrics[result.dataset_split][result.metric_name], abs=1e-6
        )
        assert result.metric_type in content["metrics"]
    assert content["metrics"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_runs(kind: str, place: Path, capsys: pytest.CaptureFixture[str]):
    (code,) = re.findall(r"```python\n(.*?)```", card_of(place / kind), flags=re.DOTALL)
    capsys.readouterr()
    exec(code.replace(PLACEHOLDER, str(place / kind / "best")), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_no_local_paths(kind: str, place: Path):
    text = card_of(place / kind)
    assert str(place) not in text and "/tmp" not in text
    assert "wrong" not in text, "nothing is asserted about gold"
    config = json.loads((place / kind / "config.json").read_text())
    assert config["fingerprint"] in text and "| `batch_size` | `8` |" in text


def test_names_of_the_hub(place: Path):
    """A known short name stands for its id; data of the hub are named with their configuration."""
    from finetune.reporting.model_card import card
    from finetune.reporting.runs import gather

    system = gather(place / "nli", None)
    config = system.runs[0].config
    config.update(model="roberta-base", data="mnli", revision_used="abc")
    system.runs[0].environment["data"] = "hub"
    content = yaml.safe_load(card(system).split("---")[1])
    assert content["base_model"] == "FacebookAI/roberta-base"
    assert content["datasets"] == ["nyu-mll/glue"]
    dataset = content["model-index"][0]["results"][0]["dataset"]
    assert (dataset["type"], dataset["config"]) == ("nyu-mll/glue", "mnli")
    config.update(model="somewhere/mine", revision_used=None)
    assert "base_model" not in yaml.safe_load(card(system).split("---")[1])


class Hub:
    """A hub client that records its calls."""

    def __init__(self) -> None:
        self.uploaded: dict[str, str | int] = {}
        self.created: list[tuple[str, Any]] = []
        self.refusal: Exception | None = None
        self.fails = False

    def __call__(self) -> Hub:
        return self

    def create_repo(self, id: str, *, private: bool | None, exist_ok: bool) -> Any:
        assert exist_ok
        if self.refusal is not None:
            raise self.refusal
        self.created.append((id, private))
        return type("Url", (), {"repo_id": id if "/" in id else f"ana/{id}"})

    def auth_check(self, repo_id: str, *, write: bool) -> None:
        assert write and "/" in repo_id

    def create_commit(
        self, repo_id: str, operations: list[CommitOperationAdd], *, commit_message: str
    ) -> None:
        if self.fails:
            raise ConnectionError("the line is dead")
        assert commit_message
        for each in operations:
            with each.as_file() as file:
                content = file.read()
            small = each.path_in_repo.endswith((".md", ".json"))
            self.uploaded[each.path_in_repo] = content.decode() if small else len(content)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr("finetune.reporting.hub_upload.HfApi", hub)
    monkeypatch.setattr("finetune.training.environment.degenerate", lambda *_: [])
    return hub


def test_push_after_training(hub: Hub, place: Path, tmp_path: Path):
    outcome = train(place, "tag", tmp_path / "run", "--push-to-hub", "lab/names")
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1] == "pushed: https://huggingface.co/lab/names"
    assert hub.created == [("lab/names", None)] * 2, "before training and after"
    best = tmp_path / "run" / "best"
    assert set(hub.uploaded) == {path.name for path in best.iterdir()}
    assert not {"optimizer.safetensors", "trainer_state.json"} & set(hub.uploaded)
    assert hub.uploaded["model.safetensors"] == (best / "model.safetensors").stat().st_size
    assert 'model="lab/names"' in hub.uploaded["README.md"]
    assert PLACEHOLDER not in hub.uploaded["README.md"]
    for name in ("README.md", "finetune.json", "config.json"):
        assert str(place) not in hub.uploaded[name] and str(tmp_path) not in hub.uploaded[name]


def test_push_later(hub: Hub, place: Path):
    outcome = run("push", place / "ner", "names", "--private", "--yes")
    assert (outcome.code, outcome.out) == (0, "pushed: https://huggingface.co/ana/names\n")
    assert hub.created == [("names", True)]
    assert 'finetune.load(snapshot_download("ana/names"))' in hub.uploaded["README.md"]
    (place / "ner" / "best" / "README.md").unlink()
    assert run("push", place / "ner" / "best", "names", "--yes").code == 0
    assert "## Limitations" in card_of(place / "ner")
    edited = place / "ner" / "best" / "README.md"
    edited.write_text(edited.read_text("utf-8") + "Ask us.\n", "utf-8")
    assert run("report", place / "ner").code == 0
    assert card_of(place / "ner").endswith("Ask us.\n"), "a card that was edited is kept"
    assert run("push", place / "ner").code == 2


def test_a_degenerate_run_warns_and_push_asks(
    hub: Hub, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("finetune.training.environment.degenerate", lambda *_: ["test: no spans"])
    folder = tmp_path / "run"
    outcome = train(place, "ner", folder, "--push-to-hub", "lab/names")
    assert outcome.code == 0 and not hub.uploaded
    assert outcome.out.splitlines()[-1] == (
        "not pushed, as the run is degenerate. Push it all the same with: "
        f"finetune push {folder} lab/names --yes"
    )
    for card in ("README.md", "best/README.md"):
        assert "**Warning: this run is degenerate" in (folder / card).read_text("utf-8")
    refused = run("push", folder, "lab/names")
    assert refused.code == 2 and "degenerate (test: no spans)" in refused.err and not hub.uploaded
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, code in (("n", 2), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda answer=answer: answer)
        assert run("push", folder, "lab/names").code == code
        assert bool(hub.uploaded) == (answer == "y")


def test_published_settings_have_no_paths(place: Path):
    def published(settings: dict[str, str | None]) -> dict[str, str | None]:
        return json.loads(without_paths(json.dumps({"config": settings})))["config"]

    kept = {"model": "owner/name", "data": "nyu-mll/glue:mnli", "init_from": None, "out": "x"}
    assert published(kept) == kept
    paths = {
        "data": f"train={place}/a.csv,test=/home/ana/gone/b.csv", "model": "../secret/bert",
        "init_from": "~/runs/x/best", "out": "runs/of/ana",
    }  # fmt: skip
    last = {"data": "b.csv", "model": "bert", "init_from": "best", "out": "ana"}
    assert published(paths) == last


def test_nothing_is_trained_without_a_login(hub: Hub, place: Path, tmp_path: Path):
    hub.refusal = OSError("Token is required\nmore lines")
    outcome = train(place, "tag", tmp_path / "run", "--push-to-hub", "lab/names")
    assert outcome.code == 2 and len(outcome.err.splitlines()) == 1, outcome.err
    for text in ("lab/names", "Token is required", "hf auth login", "OWNER/NAME"):
        assert text in outcome.err
    assert not (tmp_path / "run").exists()
    outcome = train(place, "tag", tmp_path / "run", "--push-to-hub", "x", "--seeds", "2")
    assert outcome.code == 2 and "finetune push RUN ID" in outcome.err


def test_a_push_that_fails_keeps_the_model(hub: Hub, place: Path, tmp_path: Path):
    hub.fails = True
    outcome = train(place, "tag", tmp_path / "run", "--push-to-hub", "ana/names")
    said = outcome.err.splitlines()[-1]
    assert outcome.code == 2 and "the line is dead" in said
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()
    again = said.partition("finetune ")[2].split()
    hub.fails = False
    assert run(*again).code == 0 and hub.uploaded


def test_push_refuses_other_folders(hub: Hub, tmp_path: Path):
    outcome = run("push", tmp_path, "ana/names")
    assert outcome.code == 2 and "no model saved by finetune" in outcome.err and not hub.created
