"""Commands in the files of a run can be pasted into a shell; what a run on few examples says."""

from __future__ import annotations

import pytest

from finetune.config.tasks import ClassifyConfig, TagConfig
from finetune.reporting.environment import advice, command_line, resume_command
from finetune.types import Example, TextExample, TokenExample


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


def texts(number: int) -> list[Example]:
    return [TextExample(index, "t", label="ab"[index % 2]) for index in range(number)]


def test_runs_on_few_examples_and_failed_runs_say_what_can_help():
    said = advice(ClassifyConfig(out="runs/x"), texts(45), False)
    assert "20 steps on 45 training examples" in said and "--few-shot" in said
    assert "more steps (--epochs)" in said and "--sizes" in said
    words = [TokenExample(n, ("w",), tags=("O",)) for n in range(20)]
    said = advice(TagConfig(out="x", steps=60), words, True)
    assert "--few-shot" not in said and "more steps (--steps)" in said
    config = ClassifyConfig(out="x", epochs=3)
    assert advice(config, texts(10_000), False) == ""
    assert "another --lr" in advice(config, texts(10_000), True)
    assert advice(ClassifyConfig(out="x", few_shot=True), texts(20), False) == ""
