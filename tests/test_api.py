"""``finetune.train``: one call from data to a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import finetune
from finetune.api import ReportPage
from finetune.cli.main import main
from tests import small_data
from tests.tiny import save_tiny_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_checkpoint(tmp_path_factory.mktemp("api") / "bert", "bert"))


def rows_of(folder: Path) -> dict[str, list[dict]]:
    return {
        path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in folder.glob("*.jsonl")
    }


def test_a_call_in_memory_equals_the_command(model: str, tmp_path: Path) -> None:
    folder = small_data.sentiment(tmp_path / "data")
    settings = {"steps": 4, "batch_size": 8, "lr": 1e-3}
    run = finetune.train(
        "classify", rows_of(folder), model, out=str(tmp_path / "call"), quiet=True, **settings
    )
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    options += [f"--model={model}", f"--data={folder}", f"--out={tmp_path / 'command'}"]
    main(["classify", *options])
    for name in ("best/model.safetensors", "metrics.json"):
        assert (run.folder / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert run.metrics == json.loads((run.folder / "metrics.json").read_text())
    assert run.predictor.predict(["a bright room"])[0].label in ("neg", "pos")
    page = run.report("validation")
    assert isinstance(page, ReportPage) and "&lt;!doctype html" in page._repr_html_()
    readme = (run.folder / "README.md").read_text("utf-8")
    assert "finetune.train('classify', data=…, model=" in readme and "steps=4" in readme


def test_a_call_with_a_path_resumes(model: str, tmp_path: Path) -> None:
    folder = small_data.entities(tmp_path / "data", words=3)
    settings = {"out": str(tmp_path / "run"), "steps": 2, "quiet": True}
    first = finetune.train("tag", folder, model, **settings)
    again = finetune.train("tag", folder, model, resume=True, **settings)
    assert again.metrics == first.metrics


def test_refuses_unknown_tasks_and_settings() -> None:
    with pytest.raises(finetune.UserError, match="Perhaps you meant 'classify'"):
        finetune.train("clasify")
    with pytest.raises(finetune.UserError, match=r"no setting 'epoch'\. Perhaps you meant 'epochs"):
        finetune.train("ner", epoch=3)


@pytest.mark.parametrize(("old", "new"), finetune._RENAMED.items())
def test_old_names_are_deprecated(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"finetune\.{old} .* use finetune\.{new}\."):
        assert getattr(finetune, old) is getattr(finetune, new)
