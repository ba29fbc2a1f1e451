"""Every command and program of README.md runs as written, on a tiny model in place of the real."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from finetune.cli.main import COMMANDS, main
from tests.tiny import save_tiny_checkpoint

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = ("python3 -m venv", "pip install", "python -m pytest")  # what .ci/run does


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line) for line in lines if not line.startswith(SET_UP)]


def on_tiny_model(words: list[str], model: str) -> list[str]:
    words = [model if word == "minilm" else word for word in words]
    if words[0] == "run":
        words += ["--model", model]
    if words[0] in ("classify", "nli", "tag", "ner", "run"):
        words += ["--steps", "2", "--limit", "60"]
    if "--label-errors" in words:
        words += ["--epochs", "0.1"]
    return words


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    save_tiny_checkpoint(folder / "tiny", "bert", max_position_embeddings=256)
    for name in ("examples", "recipes"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_commands_and_programs_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(place)
    ran = []
    for words in commands():
        assert words[0] == "finetune", f"README has a command that no test runs: {words}"
        main(on_tiny_model(words[1:], str(place / "tiny")))
        assert capsys.readouterr().out, words
        ran.append(words[1])
    assert set(COMMANDS) - {"bench", "push"} <= set(ran)
    for program in blocks("python"):
        exec(program.replace('"minilm"', f'"{place / "tiny"}"'), {})
    assert (place / "runs" / "own-loop" / "model.safetensors").is_file()


def test_every_block_is_of_a_kind_that_is_run():
    assert set(re.findall(r"```(\w*)\n", README)) <= {"bash", "python", ""}
