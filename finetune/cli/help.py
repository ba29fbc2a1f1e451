"""The help of `finetune`, which lists the commands, and of a command.

The help of a command follows from its dataclass: fields, types, marks, and the texts under fields.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import shutil
import sys
import textwrap
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from finetune.config.options import Help, declared_fields
from finetune.config.tasks import WITHOUT_OPTION, TrainConfig, flag
from finetune.registry import TASKS

GROUPS = ("arguments", "data", "model", "task", "training", "options", "output", "run", "encoder")
"""The groups of options, in the order of the help."""
MOST_OPTIONS = 20
"""Most options that `--help` lists; if there are more, it lists options marked `COMMON`."""
_WIDTH, COLUMN = 100, 28
"""Most characters of a line, and the column of the texts."""
HEAD = """\
usage: finetune COMMAND [INPUT …] [--option value …]   (fine-tune pretrained text encoders)"""
FOOT = """\
options
  --help      this help, or the options of a command (--help-all: every option); --version
  --quiet     results and errors only; --verbose: more; --print-completion {bash,zsh,tcsh}
First run, without a download: finetune nli --model minilm --data examples/data/nli"""
COMMANDS_BY_GROUP: dict[str, dict[str, str]] = {
    "train": {
        **{name: row.summary for name, row in TASKS.items()},
        "vocabulary": "a subword vocabulary, also for a trained encoder",
        "distill": "a small student of a trained model",
        "run": "a recipe, a suite of recipes, several tasks, or a run; list recipes",
        "search": "search for the best settings",
    },
    "predict and score": {
        "predict": "predict texts or words with a trained model",
        "score": "score predictions, or a model on a file",
        "compare": "test whether models differ; tables for papers",
        "thresholds": "choose the thresholds of labels",
        "report": "a page on runs, or scores by subgroup, confusions and errors as text",
    },
    "data and annotation": {
        "check": "find problems in data before training",
        "convert": "convert annotated data to the format of another tool",
    },
    "inspect encoders": {
        "embed": "vectors of texts, words or subwords",
        "similarity": "similarity of texts or words, and its correlation with gold",
        "geometry": "anisotropy and attention of each layer",
        "map": "an embedding plot of a word in many contexts",
        "wsd": "word sense disambiguation",
        "perplexity": "pseudo-perplexity of texts, minimal pairs",
    },
    "share and serve": {
        "export": "an ONNX graph with a predictor, also in int8",
        "serve": "trained models over HTTP",
        "push": "upload a model to the hub",
    },
}
"""Every command with one line, in groups, on one screen."""


class Option(NamedTuple):
    """An option or a positional argument of a command.

    ``name`` is the option, such as ``--batch-size``, or the name of the positional argument;
    ``metavar`` the name of its value, empty for a switch; ``type`` the type of the value;
    ``default`` is ``dataclasses.MISSING`` if the option is required; ``text`` stands under the
    field, and ``group`` is the heading in the help.
    """

    field: str
    name: str
    metavar: str
    type: Any
    default: Any
    text: str
    group: str
    mark: Help

    @property
    def switch(self) -> bool:
        """True for an option whose value may be left out, such as `--resume [auto]`."""
        return bool in get_args(self.type) and NoneType not in get_args(self.type)

    @property
    def item(self) -> Any:
        """The type of the items of several values; None for one value."""
        types = [self.type] if get_origin(self.type) is tuple else get_args(self.type)
        several = next((type for type in types if get_origin(type) is tuple), None)
        return several and get_args(several)[0]

    @property
    def positional(self) -> bool:
        """True if the argument is positional."""
        return not self.name.startswith("--")

    @property
    def required(self) -> bool:
        """True if the option has no default."""
        return self.default is dataclasses.MISSING

    @property
    def spelling(self) -> str:
        """The option and its value, as a user writes them."""
        if self.positional:
            return self.name if self.required else f"[{self.name}]"
        name = f"--no-{self.name[2:]}" if self.default is True else self.name
        return f"{name} {self.metavar}".rstrip()

    @property
    def shown_default(self) -> str:
        """The default in parentheses; empty for unset options and switches."""
        default = self.default
        if self.required or isinstance(default, bool) or default in (None, "", ()):
            return ""
        value = " ".join(map(str, default)) if isinstance(default, tuple) else default
        return f" (default:\xa0{value})"


def options_of(cls: type[Any], defaults: object | None = None) -> list[Option]:
    """List the options of a command, its own before inherited ones.

    Args:
        cls: The dataclass of the command, or of settings.
        defaults: An instance whose values are the defaults, for instance of a recipe.
    """
    declared, options = declared_fields(cls), []
    unused = {*cls.unused, *WITHOUT_OPTION} if issubclass(cls, TrainConfig) else ()
    fields = [field for field in dataclasses.fields(cls) if field.name not in unused]
    for field in sorted(fields, key=lambda f: cls.__mro__.index(declared[f.name].classes[-1])):
        value_type, classes, marks = declared[field.name]
        helps = [Help(), *(mark for mark in marks if isinstance(mark, Help))]
        mark, first = helps[-1], classes[0]
        set_here = defaults is not None and not mark.positional
        value = vars(defaults)[field.name] if set_here else field.default
        if dataclasses.is_dataclass(value_type):
            options += options_of(cast("type[Any]", value_type), value if set_here else None)
            continue
        metavar = mark.metavar or _metavar(value_type, field.name)
        name = metavar if mark.positional else flag(field.name)
        ungrouped = "task" if issubclass(first, TrainConfig) else "options"
        groups = [vars(first).get("group", ungrouped), *(h.group for h in helps if h.group)]
        texts = (_field_texts(c.__module__).get((c.__qualname__, field.name)) for c in classes)
        text = [*filter(None, texts)][-1]
        options.append(Option(field.name, name, metavar, value_type, value, text, groups[-1], mark))
    return options


@cache
def _field_texts(module: str) -> dict[tuple[str, str], str]:
    texts = {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for line, following in itertools.pairwise(cls.body):
            if not isinstance(line, ast.AnnAssign) or not isinstance(following, ast.Expr):
                continue
            if isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
                texts[cls.name, ast.unparse(line.target)] = text
    return texts


def values_of(hint: Any) -> tuple[str, ...]:
    """List the legal values of a type, if they can be listed."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return tuple(value for member in get_args(hint) for value in values_of(member))
    return ()


def _metavar(hint: Any, name: str) -> str:
    if values := values_of(hint):
        return f"{{{','.join(values)}}}"
    if get_origin(hint) in (Union, UnionType):
        hints = [member for member in get_args(hint) if member is not NoneType]
        return "{true,false}" if hints == [bool] else _metavar(hints[0], name)
    if get_origin(hint) is tuple:
        metavar = _metavar(get_args(hint)[0], name.removesuffix("s")).removesuffix(" …")
        return f"{metavar} …"
    last = name.strip("_").split("_")[-1]
    return {bool: "", int: "N", float: "X"}.get(hint, last.upper())


def summary_of(cls: type[Any]) -> str:
    """Extract the summary from the documentation of a command."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def examples_of(cls: type[Any]) -> list[str]:
    """Extract the examples from the documentation of a command."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Examples:\n")[2]
    return [line.strip() for line in text.splitlines() if line.strip().startswith("finetune ")]


def command_help(name: str, cls: type[Any], defaults: object | None, *, everything: bool) -> str:
    """Format the help of a command: common options, or ``everything``.

    Args:
        name: The command.
        cls: Its dataclass.
        defaults: An instance whose values are the defaults.
        everything: List all options with their whole texts.
    """
    options = options_of(cls, defaults)
    all_fit = everything or sum(not option.positional for option in options) <= MOST_OPTIONS
    shown = [o for o in options if all_fit or o.mark.common or o.required or o.positional]
    needed = [option.spelling for option in options if option.positional]
    needed += [o.spelling for o in options if o.required and not o.positional]
    width = min(_WIDTH, max(60, shutil.get_terminal_size((_WIDTH, 24)).columns))
    usage = " ".join(["usage: finetune", name, *needed, "[--option value …]"])
    lines = [
        *(textwrap.fill(usage, width, subsequent_indent=" " * 7), ""),
        *(textwrap.fill(summary_of(cls), width), ""),
        *("examples", *(f"  {example}" for example in examples_of(cls)), ""),
    ]
    for group in GROUPS:
        of_group = [option for option in shown if option.group == group]
        lines += [group] if of_group else []
        for option in of_group:
            text = option.text if everything else first_sentence(option.text)
            body = textwrap.wrap(
                f"{text}{option.shown_default}",
                width - COLUMN,
                break_long_words=False,
                break_on_hyphens=False,
            )
            head = f"  {option.spelling}"
            if len(head) > COLUMN - 2:
                lines.append(head)
                head = ""
            column = [f"{head:<{COLUMN}}{body[0]}", *(" " * COLUMN + line for line in body[1:])]
            lines += [line.replace("\xa0", " ") for line in column]
        lines += [""] if of_group else []
    if not everything:
        number = len(options) - len(shown)
        count = "1 option" if number == 1 else f"{number} options"
        what = f"the other {count}" if number else "the whole text of each option"
        lines.append(f"--help-all shows {what}. --quiet and --verbose work with every command.")
    return "\n".join(lines).rstrip("\n")


def first_sentence(text: str) -> str:
    """Extract the first sentence of a text."""
    return re.split(r"(?<=[.])\s+(?=[A-Z`-])", text, maxsplit=1)[0]


def overview() -> str:
    """Format the list of all commands."""
    parts = [HEAD]
    for group, commands in COMMANDS_BY_GROUP.items():
        parts.append(group)
        parts += [f"  {name:<12}{summary}" for name, summary in commands.items()]
    return "\n".join([*parts, FOOT])
