"""Follow `finetune tag` and `finetune predict` through their calls, on a tiny model:

    python -m tests.end_to_end.calls

It lists, layer by layer, the files of which a function is called, and the climbs. A climb is a call
from a layer to one on its right in the order of ``tests/test_layers.py``, or two files of one layer
that call each other. A function counts as called by the nearest function of the package below it,
so a callback is a climb too. Imports, generator expressions and comprehensions are no calls.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

from tests import small_data
from tests.command import run
from tests.test_layers import LAYERS, ROOT
from tests.tiny import save_tiny_checkpoint

WITHIN = {"<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "__getattr__"}
"""Code that belongs to the function around it, or to an import, such as that of a public name."""

HELPING = {"config", "data", "evaluation", "reporting", "runtime"}
"""Layers beside the path from the command to the training step and back."""


def layer(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


class Calls:
    """The files that are called, and the functions of each pair of files that calls one another."""

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = defaultdict(set)
        self.pairs: dict[tuple[str, str], set[str]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        callee = self._file(frame)
        if event != "call" or not callee or self._importing(frame):
            return
        self.files[layer(callee)].add(callee)
        caller = frame.f_back
        while caller is not None and not self._file(caller):
            caller = caller.f_back
        if caller is not None and (file := self._file(caller)) != callee:
            self.pairs[file, callee].add(frame.f_code.co_qualname)

    @staticmethod
    def _file(frame: FrameType) -> str:
        path = Path(frame.f_code.co_filename)
        inside = frame.f_code.co_name not in WITHIN and path.suffix == ".py"
        return str(path.relative_to(ROOT)) if inside and path.is_relative_to(ROOT) else ""

    @staticmethod
    def _importing(frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False

    def climbs(self) -> list[str]:
        order = {name: place for place, name in enumerate(LAYERS)}
        found = []
        for (caller, callee), names in sorted(self.pairs.items()):
            up = order.get(layer(callee), 99) - order.get(layer(caller), 99)
            back = up == 0 and caller < callee and (callee, caller) in self.pairs
            if up > 0 or back:
                sign = "<->" if back else "->"
                found.append(f"{caller} {sign} {callee}: {', '.join(sorted(names))}")
        return found


def follow(*command: Any) -> None:
    calls = Calls()
    sys.setprofile(calls)
    try:
        outcome = run(*command)
    finally:
        sys.setprofile(None)
    assert outcome.code == 0, outcome.err
    climbs = calls.climbs()
    number = sum(map(len, calls.files.values()))
    path = sum(len(files) for name, files in calls.files.items() if name not in HELPING)
    print(f"\nfinetune {command[0]}: {number} files, {len(climbs)} climbs")
    print(f"{path} files without {', '.join(sorted(HELPING))}")
    for name in reversed(LAYERS):
        if files := calls.files.get(name):
            inside = (file.removeprefix(f"{name}/") for file in sorted(files))
            print(f"{name} ({len(files)}): {', '.join(inside)}")
    print(*climbs, sep="\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = save_tiny_checkpoint(folder / "model", "bert")
        data = small_data.entities(folder / "data")
        out, steps = folder / "run", ("--steps", "2", "--batch-size", "8")
        follow("tag", "--model", model, "--data", data, *steps, "--out", out)
        follow("predict", out, "--text", "Ann saw Bob")
