"""Commands in the files of a run can be pasted into a shell."""

from __future__ import annotations

import pytest

from finetune.reporting.environment import command_line, resume_command

SEVERAL = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "program", "expected"),
    [
        ({}, "/bin/finetune", "finetune tag --data 'my data'"),
        ({}, "/x/finetune/__main__.py", "python -m finetune tag --data 'my data'"),
        (
            SEVERAL,
            "/bin/finetune",
            "torchrun --nnodes 2 --nproc_per_node 2 -m finetune tag --data 'my data'",
        ),
        (
            SEVERAL | {"ACCELERATE_USE_CPU": "true", "LOCAL_WORLD_SIZE": "4"},
            "/bin/finetune",
            "accelerate launch --cpu --num_processes 4 -m finetune tag --data 'my data'",
        ),
    ],
)
def test_the_command_of_a_launch(
    variables: dict[str, str], program: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", [program, "tag", "--data", "my data", "--resume"])
    assert command_line() == expected, "and not --resume, which the first command had not"
    assert resume_command("runs/x y") == f"{expected} --out 'runs/x y' --resume"
