"""The frozen command line."""

from __future__ import annotations

from tests.cli.command_line import FILE, command_line


def test_the_command_line_is_the_recorded_one():
    """A change of an option is meant, and its commit says so in command_line.txt."""
    assert FILE.read_text("utf-8") == command_line(), (
        "write it again: python -m tests.cli.command_line > tests/cli/command_line.txt"
    )
