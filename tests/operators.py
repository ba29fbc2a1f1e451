"""Operators that a piece of code runs, and those that would make the host wait for a GPU."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
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
VIEWS = frozenset(
    "_reshape_alias _unsafe_view alias as_strided detach empty empty_like empty_strided expand "
    "is_same_size lift_fresh new_empty new_empty_strided permute select slice split "
    "split_with_sizes squeeze t transpose unbind unflatten unsqueeze view".split()
)
"""Operators that start no kernel on a GPU."""


class CountOperators(TorchDispatchMode):
    """Counts the operators of a ``with`` block by name, without views and empty tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """The number of all operators."""
        return sum(self.counts.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if name not in VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def paths_of_a_gpu() -> Iterator[None]:
    """Let a CPU take the paths of a GPU: one operator for attention, and one for dropout.

    The results are wrong: attention has no boundaries. Operators are those of a GPU.
    """

    def flash(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
        rows = [each.transpose(0, 1)[None] for each in (query, key, value)]
        found = aten._scaled_dot_product_flash_attention_for_cpu(*rows)[0]
        return found[0].transpose(0, 1)

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return torch.native_dropout(input, p, training)[0]

    with (
        mock.patch.object(attention, "_flash_supports", lambda query: True),
        mock.patch.object(attention, "_flash", flash),
        mock.patch.object(torch.nn.functional, "dropout", dropout),
    ):
        yield


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
