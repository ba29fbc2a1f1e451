"""Former spellings of `similarity --threshold` and `predict`, accepted for one release."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from finetune.cli.output import show


def current_spelling(name: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command and the arguments that stand for `wic` and `wsd --senses` now.

    >>> current_spelling("wic", ["--run-folder", "runs/wic", "--data=new.jsonl"])
    ('predict', ['runs/wic', '--file', 'new.jsonl'])
    """
    rest = list(arguments)
    if name == "wsd" and (run := _take(rest, "--senses")) is not None:
        current = ["predict", run, *rest]
    elif name == "wic" and (run := _take(rest, "--run-folder")) is not None:
        data = _take(rest, "--data")
        current = ["predict", run, *([] if data is None else ["--file", data]), *rest]
    elif name == "wic":
        model = _take(rest, "--model") or "minilm"
        rest = [each for each in rest if each != "--no-standardize"]
        if "--standardize" in rest:
            rest.insert(rest.index("--standardize") + 1, "train")
        current = ["similarity", model, "--threshold", *rest]
    else:
        return name, rest
    show(f"note: this is now `finetune {shlex.join(current)}`.", error=True)
    return current[0], current[1:]


def _take(arguments: list[str], option: str) -> str | None:
    """Remove an option from the arguments and return its value; None without it."""
    for index, argument in enumerate(arguments):
        given, equals, value = argument.partition("=")
        if given == option and (equals or index + 1 < len(arguments)):
            value = value if equals else arguments[index + 1]
            del arguments[index : index + (1 if equals else 2)]
            return value
    return None
