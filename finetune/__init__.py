"""Fine-tune pretrained text encoders, from the command line or from Python.

The folders of the package are layers, which import only earlier ones (``config``, ``runtime``,
``data``, ``evaluation``, ``models``, ``preprocessing``, ``tasks``, ``inference``, ``training``,
``reporting``, ``cli``), and extensions: subjects that the layers do not import.
docs/development.md walks through them.

The public names stand in ``__init__.pyi``. They are imported on first use, so that ``import
finetune`` costs nothing and loads no torch.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    value: Any = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
