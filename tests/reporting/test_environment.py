"""Commands in the files of a run can be pasted into a shell; what a run on few examples says."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.reporting.environment import again_command, command_line, resume_command


@pytest.mark.parametrize(
    ("variables", "program", "expected"),
    [
        ({}, "/bin/finetune", "finetune tag --data 'my data'"),
        ({}, "/x/finetune/__main__.py", "python -m finetune tag --data 'my data'"),
        (
            {"WORLD_SIZE": "4"},
            "/bin/finetune",
            "torchrun --nproc_per_node 4 -m finetune tag --data 'my data'",
        ),
    ],
)
def test_the_command_of_a_launch(
    variables: dict[str, str], program: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", [program, "tag", "--data", "my data", "--resume"])
    assert command_line() == expected, "and not --resume, which the first command had not"
    assert resume_command("runs/x y") == f"{expected} --out 'runs/x y' --resume"


@pytest.mark.parametrize(
    ("folder", "out"),
    [
        ("runs/a", "runs/a-again"),
        ("runs/a/seed-1", "runs/a-seed-1-again"),
        ("seed-1", "seed-1-again"),
    ],
)
def test_a_repeated_run_is_no_run_of_its_folder(folder: str, out: str):
    said = f"finetune run {folder}/config.json --out {out}"
    assert again_command(Path(folder)) == said
