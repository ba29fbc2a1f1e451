"""The help of the commands."""

from __future__ import annotations

import shlex

import pytest

from finetune.cli.help import GROUPS, examples_of, first_sentence, options_of
from finetune.cli.main import COMMANDS, command_class, parse
from tests.command import run

every_command = pytest.mark.parametrize("command", COMMANDS)


@every_command
def test_help_fits_on_a_screen(command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    outcome = run(command, "--help")
    lines = outcome.out.splitlines()
    assert outcome.code == 0 and outcome.err == ""
    assert len(lines) <= 60 and max(map(len, lines)) <= 100
    options = [line for line in lines if line.startswith("  --")]
    assert 0 < len(options) <= 20 and not any("None" in option for option in options)
    assert lines[-1].startswith("--help-all shows the ")


@every_command
def test_help_is_complete(command: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    short, whole = (" ".join(run(command, each).out.split()) for each in ("-h", "--help-all"))
    options = options_of(command_class(command))
    for option in options:
        assert option.group in GROUPS, option
        assert " | " not in option.text, "it would end the cell of a table of the site"
        assert f"{option.spelling} {option.text}" in whole
        if option.mark.common or option.required:
            assert f"{option.spelling} {first_sentence(option.text)}" in short
    left_out = sum(f" {option.spelling} " not in short for option in options)
    assert not left_out or f"--help-all shows the other {left_out} option" in short


@every_command
def test_examples_can_be_parsed(command: str):
    examples = examples_of(command_class(command))
    assert 2 <= len(examples) <= 3
    assert examples[0].startswith(f"finetune {command}")
    for example in examples:  # the second one may use what the first one wrote
        _, name, *rest = shlex.split(example)
        if name != "run":  # its second example needs a run
            parse([name, *rest])
