"""The strings under the fields of a dataclass: one text for help, recipes and README."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap


def field_docs(config: type) -> dict[str, str]:
    """The documentation under each field of a configuration class and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for node, following in zip(body, body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr):
                docs[node.target.id] = " ".join(following.value.value.split())  # type: ignore
    return docs
