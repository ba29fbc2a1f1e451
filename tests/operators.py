"""Operators that a piece of code runs, and those that would make the host wait for a GPU."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import finetune
from finetune.models import attention

PACKAGE = f"{Path(finetune.__file__).parent}/"
aten = torch.ops.aten
HOST, DEVICE = torch.device("cpu"), torch.device("meta")
"""The meta device stands for a GPU: its tensors have shapes, types and gradients, and no values."""


class FindWaits(TorchDispatchMode):
    """Finds what would make the host wait for a GPU, with the meta device in its place.

    ``waits`` has the operators and the lines that called them: a value that the host reads, a shape
    that depends on values, and a copy from the host other than those of ``runtime.device``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        there = [each for each in tensors if each.device == DEVICE]
        here = [each for each in tensors if each.device == HOST and each.ndim]
        if func is aten._local_scalar_dense.default and there:
            self.found("read")
            return 0
        to_host = kwargs.get("device") == HOST or func is aten.copy_.default
        if to_host and there and (args[0].device == HOST or func is aten._to_copy.default):
            self.found("copy to the host")
            return torch.zeros_like(args[0], device="cpu")
        if there and func in (aten.nonzero.default, aten.masked_select.default, aten.equal.default):
            self.found(str(func))
            return torch.empty(1, args[0].ndim, dtype=torch.int64, device=DEVICE)
        if func in (aten.index.Tensor, aten.index_put_.default, aten._unsafe_index.Tensor) and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        ):
            self.found("boolean index")
            return args[0]
        if here and (there or kwargs.get("device") == DEVICE):
            self.found("copy from the host")
        return func(*args, **kwargs)

    def found(self, what: str) -> None:
        """Add a wait, unless ``runtime.device`` copies."""
        frames = [f for f in traceback.extract_stack() if f.filename.startswith(PACKAGE)]
        if frames and frames[-1].filename == f"{PACKAGE}runtime/device.py":
            return
        lines = [f"{f.filename.removeprefix(PACKAGE)}:{f.lineno} {f.line}" for f in frames[-2:]]
        self.waits.append(f"{what}: {' > '.join(lines)}")


class FindHostValues(TorchFunctionMode):
    """Finds tensors on the meta device that are made of numbers or lists of the host."""

    NEW = (torch.tensor, torch.as_tensor, Tensor.new_tensor)
    INDEX = (Tensor.__getitem__, Tensor.__setitem__)

    def __init__(self, mode: FindWaits) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in self.NEW and found.device == DEVICE:
            self.mode.found("new tensor of host values")
        if func in self.INDEX and args[0].device == DEVICE:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(each, list) for each in index):
                self.mode.found("list as an index")
        return found


@contextlib.contextmanager
def finding_waits() -> Iterator[list[str]]:
    """Collect the waits of a ``with`` block that uses the meta device."""

    def flash(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
        return query + key + value

    mode = FindWaits()
    with (
        mock.patch.object(attention, "_flash_supports", lambda query: query.device == DEVICE),
        mock.patch.object(attention, "_flash", flash),
        mock.patch.object(torch, "autocast", lambda *_, **__: contextlib.nullcontext()),
        mode,
        FindHostValues(mode),
    ):
        yield mode.waits
