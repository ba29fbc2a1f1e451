"""Every command that a message prints is one that the command line takes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import finetune
from finetune.cli.main import COMMANDS, parse
from finetune.config.tasks import CONFIGS
from finetune.types import UserError

PACKAGE = Path(finetune.__file__).parent
HINT = re.compile(r"finetune ([a-z]+)\b((?: +[^\s`;,()]+)*)")
ARGUMENT = re.compile(r"-.*|[A-Z/|]+|.*VALUE.*|.*[\w…][./=]\w.*|\".*\"|…")
"""An argument of a hint in the middle of a sentence, whose other words begin with small letters."""


def texts(source: str) -> list[str]:
    """The strings of a module but its docstrings; what is filled in is VALUE."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings, parts = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            values = (p.value if isinstance(p, ast.Constant) else "VALUE" for p in node.values)
            strings.append("".join(map(str, values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in alone | parts:
                strings.append(node.value)
    return strings


def hints() -> dict[str, list[str]]:
    """The words of each hint, by the hint."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text("utf-8")
        for text in texts(source) if "finetune " in source else ():
            for name, rest in HINT.findall(text):
                words = [name]
                for word in rest.split():
                    word = word.rstrip(".:")
                    if not (ARGUMENT.fullmatch(word) or words[-1].startswith("--")):
                        break
                    words.append(word)
                if len(words) > 1:
                    found[f"{path.stem}: {' '.join(words)}"] = words
    return found


def test_hints_are_commands():
    """Values of a hint stand for others, so that they may have the wrong type."""
    for hint, words in (found := hints()).items():
        words = [word for word in words if word != "…"]
        assert words[0] in {*COMMANDS, *CONFIGS}, hint
        try:
            parse(words)
        except UserError as error:
            assert not re.search("unknown|unexpected|missing --", str(error)), (hint, error)
        except SystemExit as end:
            assert not end.code, hint
    assert len(found) > 20
    assert any("predict VALUE --text" in hint for hint in found)
