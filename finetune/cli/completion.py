"""Completion of commands, options and their values in shells: ``finetune --print-completion``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.cli.help import COMMANDS_BY_GROUP, Option, options_of
from finetune.cli.parsing import add_options
from finetune.config.tasks import CONFIGS
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
    of_task = [option for option in options_of(CONFIGS["classify"]) if option.group != "task"]
    for name, of_command in options.items():
        if name in ("run", "search"):  # they take the options of a task
            names = {option.name for option in of_command}
            of_command = [*of_command, *(o for o in of_task if o.name not in names)]
        command = commands.add_parser(name, help=summaries[name])
        command.add_argument("--help-all", action="store_true", help="All options.")
        add_options(command, of_command, complete=library.FILE)
    return str(library.complete(parser, shell))
