"""Completion of commands, options and their values in shells: ``finetune --print-completion``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.cli.help import COMMANDS_BY_GROUP, Option
from finetune.cli.parsing import add_options
from finetune.registry import install_command
from finetune.types import UserError

SHELLS = ("bash", "zsh", "tcsh")
"""The shells with completion."""


def completion(shell: str, options: Mapping[str, Sequence[Option]]) -> str:
    """Write the completion script of a shell, for the options of each command.

    Raises:
        UserError: If the shell is not one of `SHELLS`, or shtab is not installed.
    """
    if shell not in SHELLS:
        raise UserError(f"--print-completion {shell}: write {', '.join(SHELLS)}.")
    try:
        import shtab
    except ImportError:
        raise UserError(f"completion needs shtab: {install_command('shtab')}.") from None
    library: Any = shtab
    parser = argparse.ArgumentParser("finetune")
    commands = parser.add_subparsers()
    summaries = {k: v for group in COMMANDS_BY_GROUP.values() for k, v in group.items()}
    for name, of_command in options.items():
        command = commands.add_parser(name, help=summaries[name])
        command.add_argument("--help-all", action="store_true", help="All options.")
        add_options(command, of_command, complete=library.FILE)
    return str(library.complete(parser, shell))
