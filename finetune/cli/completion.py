"""Completion of commands, options and their values in shells: ``finetune --print-completion``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from finetune.cli.help import COMMANDS_BY_GROUP, Option, first_sentence, options_of, values_of
from finetune.config.tasks import CONFIGS
from finetune.types import UserError

SHELLS = ("bash", "zsh", "fish")
"""The shells with completion."""

_BASH = """\
_finetune() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    words=@COMMANDS@
  else
    case "${COMP_WORDS[1]} $prev" in
@VALUES@
      *) case "${COMP_WORDS[1]} $cur" in
@OPTIONS@
      esac ;;
    esac
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$cur") )
}
complete -o default -F _finetune finetune"""
_ZSH = """\
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""


def completion(shell: str, options: Mapping[str, Sequence[Option]]) -> str:
    """Return the script that a shell reads, for the options of each command.

    Raises:
        UserError: If the shell is not one of `SHELLS`.
    """
    if shell not in SHELLS:
        raise UserError(f"--print-completion {shell}: write {', '.join(SHELLS)}.")
    if shell == "fish":
        return _fish(options)
    return (_ZSH if shell == "zsh" else "") + _bash(options)


def completed_options(kind: type, name: str) -> list[Option]:
    """Return the options to complete after a command: with `search classify`, also the task's."""
    options = options_of(kind)
    if name in ("run", "search"):
        options += [each for each in options_of(CONFIGS["classify"]) if each.group != "task"]
    return options


def _bash(options: Mapping[str, Sequence[Option]]) -> str:
    values, names = [], []
    for command, of_command in options.items():
        listed = [each.spelling.split()[0] for each in of_command if not each.positional]
        listed += ["--help", "--help-all"]
        names.append(f'        "{command} -"*) words={shlex.quote(" ".join(listed))} ;;')
        for option in of_command:
            if words := _values(option):
                after = command if option.positional else option.name
                values.append(f'      "{command} {after}") words={shlex.quote(" ".join(words))} ;;')
    script = _BASH.replace("@COMMANDS@", shlex.quote(" ".join(options)))
    return script.replace("@VALUES@", "\n".join(values)).replace("@OPTIONS@", "\n".join(names))


def _fish(options: Mapping[str, Sequence[Option]]) -> str:
    lines = []
    for summaries in COMMANDS_BY_GROUP.values():
        for command, summary in summaries.items():
            words = ["-n", "__fish_use_subcommand", "-f", "-a", command, "-d", summary]
            lines.append(_fish_line(words))
    for command, of_command in options.items():
        for option in of_command:
            words = ["-n", f"__fish_seen_subcommand_from {command}"]
            if not option.positional:
                words += ["-l", option.spelling.split()[0].removeprefix("--")]
            elif not _values(option):
                continue
            if legal := _values(option):
                words += ["-x", "-a", " ".join(legal)]
            elif option.metavar:
                words.append("-r")
            words += ["-d", first_sentence(option.text)]
            lines.append(_fish_line(words))
    return "\n".join(lines)


def _fish_line(words: Sequence[str]) -> str:
    escaped = (word.replace("\\", "\\\\").replace("'", "\\'") for word in words)
    return "complete -c finetune " + " ".join(f"'{word}'" for word in escaped)


def _values(option: Option) -> tuple[str, ...]:
    if option.name == "TASK":
        return tuple(CONFIGS)
    return values_of(option.kind)
