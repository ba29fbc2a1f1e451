"""The model card against the hub's own reader, its example run as written, and uploads."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from finetune.reporting.environment import model_license
from finetune.reporting.model_card import PLACEHOLDER, without_paths
from tests import fixtures as fx
from tests.command import run
from tests.hub.server import Hub

SETUPS = ("classify", "numbers", "nli", "tag", "crf", "ner")
OWN = ("crf", "ner")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of finished runs."""
    folder = tmp_path_factory.mktemp("cards")
    for setup in SETUPS:
        shutil.copytree(fx.trained(setup), folder / setup)
    return folder


def card_of(run_folder: Path) -> str:
    return (run_folder / "best" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("setup", SETUPS)
def test_a_card_is_what_the_hub_reads_and_its_example_runs(
    setup: str, workdir: Path, capsys: pytest.CaptureFixture[str]
):
    card = ModelCard.load(workdir / setup / "best" / "README.md")
    words = setup in ("tag", "crf", "ner")
    expected = "token-classification" if words else "text-classification"
    assert card.data.pipeline_tag == expected
    assert card.data.library_name == ("finetune" if setup in OWN else "transformers")
    readme = (workdir / setup / "README.md").read_text("utf-8")
    assert ("pipeline(model=" in readme) == (setup not in OWN)
    assert card.data.base_model is None and card.data.datasets is None, "neither is on the hub"
    metrics = json.loads((workdir / setup / "metrics.json").read_text())
    text = card_of(workdir / setup)
    content = yaml.safe_load(text.split("---")[1])
    _, results = model_index_to_eval_results(content["model-index"])
    assert {result.dataset_split for result in results} >= {"validation", "test"}
    for result in results:
        assert result.metric_value == pytest.approx(
            metrics[result.dataset_split][result.metric_name], abs=1e-6
        )
        assert result.metric_type in content["metrics"]
    assert content["metrics"]
    assert "/tmp" not in text and "wrong" not in text, "nothing is asserted about gold"
    assert ("predicts a number" in text) == ("## Labels" not in text) == (setup == "numbers")
    assert "## Limitations\n\n-" in text or "Limitations" not in text
    config = json.loads((workdir / setup / "config.json").read_text())
    assert config["fingerprint"] in text and "| `batch_size` | `8` |" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    capsys.readouterr()
    exec(code.replace(PLACEHOLDER, str(workdir / setup / "best")), {})
    assert capsys.readouterr().out.strip()


def test_names_of_the_hub(workdir: Path):
    """A known short name stands for its id; data of the hub are named with their configuration."""
    from finetune.reporting.model_card import card
    from finetune.reporting.runs import load_runs

    system = load_runs(workdir / "nli", None)
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


@pytest.fixture
def signed_in(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, with the token of ana, who may write to ``ana`` and ``lab``."""
    monkeypatch.setenv("HF_TOKEN", "hf_ana")
    for id in ("lab/names", "ana/names"):
        shutil.rmtree(hub.model(id))
    return hub


def uploaded(hub: Hub, id: str) -> dict[str, bytes]:
    folder = hub.root / "models" / id
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_push_a_run(signed_in: Hub, workdir: Path, tmp_path: Path):
    hub = signed_in
    shutil.copytree(workdir / "tag", tmp_path / "run")
    outcome = run("push", tmp_path / "run", "lab/names", "--yes").ok()
    assert outcome.out.splitlines()[-1] == f"pushed: {hub.url}/lab/names"
    best, files = tmp_path / "run" / "best", uploaded(hub, "lab/names")
    assert set(files) == {path.name for path in best.iterdir()}
    assert not {"optimizer.safetensors", "trainer_state.json"} & set(files)
    assert files["model.safetensors"] == (best / "model.safetensors").read_bytes()
    assert b'model="lab/names"' in files["README.md"]
    assert PLACEHOLDER.encode() not in files["README.md"]
    for name in ("README.md", "finetune.json", "config.json", "tokenizer_config.json"):
        assert not any(str(path).encode() in files[name] for path in (workdir, tmp_path, hub.root))


def test_push_later(signed_in: Hub, workdir: Path):
    folder = signed_in.model("ana/names")  # whose files are kept
    (folder / "modules.json").write_text("{}")
    outcome = run("push", workdir / "ner", "ana/names", "--private", "--yes")
    assert (outcome.code, outcome.out) == (0, f"pushed: {signed_in.url}/ana/names\n")
    assert (folder / "modules.json").is_file() and (folder / "model.safetensors").is_file()
    assert signed_in.private == {"ana/names"}
    assert b'finetune.load("ana/names")' in uploaded(signed_in, "ana/names")["README.md"]
    (workdir / "ner" / "best" / "README.md").unlink()
    assert run("push", workdir / "ner" / "best", "ana/names", "--yes").code == 0
    assert "## Limitations" in card_of(workdir / "ner")
    edited = workdir / "ner" / "best" / "README.md"
    edited.write_text(edited.read_text("utf-8") + "Ask us.\n", "utf-8")
    assert run("report", workdir / "ner").code == 0
    assert card_of(workdir / "ner").endswith("Ask us.\n"), "a card that was edited is kept"
    assert run("push", workdir / "ner").code == 2


def test_a_degenerate_run_warns_and_is_pushed_only_with_yes(
    signed_in: Hub, workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("finetune.reporting.environment.degenerate", lambda *_: ["test: no spans"])
    folder = tmp_path / "run"
    fx.train("ner", folder).ok()
    for card in ("README.md", "best/README.md"):
        assert "**Warning: this run is degenerate" in (folder / card).read_text("utf-8")
    run("push", folder, "lab/names").refused("degenerate (test: no spans)")
    assert not uploaded(signed_in, "lab/names")
    run("push", folder, "lab/names", "--yes").ok()
    assert uploaded(signed_in, "lab/names")


def test_settings_are_those_that_differ_or_decide(workdir: Path):
    listed = re.findall(r"^\| `(\w+)` \| ", card_of(workdir / "crf").split("## Training")[1], re.M)
    config = json.loads((workdir / "crf" / "config.json").read_text())
    assert {"crf", "seed", "batch_size", "steps", "precision_used"} <= {*listed}
    assert not {"decoding", "clip", "freeze", "track", "model", "out"} & {*listed}
    assert {*listed} <= {*config}


def test_published_settings_have_no_paths(workdir: Path):
    def published(settings: dict[str, str | None]) -> dict[str, str | None]:
        return json.loads(without_paths(json.dumps({"config": settings})))["config"]

    kept = {"model": "owner/name", "data": "nyu-mll/glue:mnli", "init_from": None, "out": "x"}
    assert published(kept) == kept
    paths = {
        "data": f"train={workdir}/a.csv,test=/home/ana/gone/b.csv",
        "model": "../secret/bert",
        "init_from": "~/runs/x/best",
        "out": "runs/of/ana",
    }
    last = {"data": "b.csv", "model": "bert", "init_from": "best", "out": "ana"}
    assert published(paths) == last
    sets, metrics = ["de=/home/ana/de.csv", "fr=xnli:fr"], ["/home/ana/m.py:cost"]
    found = published({"test_sets": sets, "custom_metrics": metrics})
    assert found == {"test_sets": ["de=de.csv", "fr=xnli:fr"], "custom_metrics": ["m.py_cost"]}


def test_a_push_without_the_right_is_refused(
    signed_in: Hub, workdir: Path, monkeypatch: pytest.MonkeyPatch
):
    def refusal(id: str) -> str:
        outcome = run("push", workdir / "ner", id, "--yes")
        assert outcome.code == 2 and len(outcome.err.splitlines()) == 1, outcome.err
        return outcome.err

    sign_in = "sign in with `hf auth login`, or set HF_TOKEN"
    for id in ("a/b/c", "names"):
        assert f"{id}: write the owner and the name, as in OWNER/NAME" in refusal(id)
    assert not signed_in.asked("")
    assert "your token lacks the permission" in refusal("bob/names")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not know your token" in refusal("lab/names")
    monkeypatch.delenv("HF_TOKEN")
    assert sign_in in refusal("lab/names")
    signed_in.fault("POST /api/repos/create", times=9, status=500)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert "try again later" in (text := refusal("lab/names")) and sign_in not in text


def test_a_push_that_fails_keeps_the_model(
    signed_in: Hub, workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    signed_in.fault("/commit/main", times=9, status=503)
    folder = shutil.copytree(workdir / "tag", tmp_path / "a run")
    outcome = run("push", folder, "lab/names", "--private", "--yes")
    said = outcome.err.splitlines()[-1]
    assert outcome.code == 2 and "fails (status 503)" in said and "sign in" not in said
    assert said.endswith(f"is kept in {folder / 'best'}: repeat the command.")
    signed_in.faults.clear()
    run("push", folder, "lab/names", "--private", "--yes").ok()
    assert uploaded(signed_in, "lab/names")


def test_the_license_is_that_of_the_base_model(signed_in: Hub, workdir: Path, tmp_path: Path):
    base = Path(shutil.copytree(fx.checkpoint(), tmp_path / "base"))
    (base / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A base\n", "utf-8")
    flags = ("--data", fx.data("sentiment"), "--steps", "1", "--max-length", "40")
    starts = {"first": ("--model", base), "second": ("--init-from", tmp_path / "first")}
    for name, start in starts.items():
        done = run("classify", *start, *flags, "--out", tmp_path / name).ok()
        assert ModelCard.load(tmp_path / name / "best" / "README.md").data.license == "cc-by-4.0"
    done = run("push", tmp_path / "second", "ana/licensed", "--yes")
    assert done.code == 0 and "names no license" not in done.err, done.err
    done = run("push", tmp_path / "second", "ana/licensed", "--yes", "--license", "mit").ok()
    assert b"license: mit" in uploaded(signed_in, "ana/licensed")["README.md"]
    (base / "README.md").write_text("---\nlicense: [\n---\n", "utf-8")
    assert model_license(str(base)) is None


def test_push_refuses_other_folders(signed_in: Hub, tmp_path: Path):
    run("push", tmp_path, "ana/names").refused("no config.json of a model")
    assert not signed_in.requests
