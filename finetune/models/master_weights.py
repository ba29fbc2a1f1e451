"""Mixed precision: a model that computes in half precision, and its weights in single precision.

The weights of the model are bfloat16, and so are its activations. The optimizer updates float32
master weights, since most updates are smaller than the rounding of a bfloat16 weight (Micikevicius
et al., 2018, "Mixed Precision Training", section 3.1). Predictions need no masters.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from finetune.models.adapters import MaskedLinear
from finetune.models.encoder import Encoder
from finetune.models.families import family_of
from finetune.models.heads.crf import LinearChainCrf
from finetune.runtime.device import TYPES, autocast

FLOAT32_MODULES = (nn.RNNBase, LinearChainCrf, MaskedLinear)
"""Modules whose own parameters stay float32: cuDNN copies weights of recurrent layers, scores of
transitions add up over a sentence, and bfloat16 is too coarse for the thresholds of masks."""
ALIGNMENT = 64
"""Each weight begins at a multiple of this in a flat tensor, so that vectorized loops round every
number in the same way, however the tensor is divided."""


def half_weights(model: Any) -> list[nn.Parameter]:
    """Return the float32 weights of a model that may be in half precision.

    There are none if no test shows that the family runs in it: then autocast is used.
    """
    encoder = model if isinstance(model, Encoder) else model.encoder
    if family_of(encoder.model) is None or not encoder.family.half_precision:
        return []
    modules = (each for each in model.modules() if not isinstance(each, FLOAT32_MODULES))
    weights = (weight for each in modules for weight in each.parameters(recurse=False))
    found = {id(weight): weight for weight in weights if weight.dtype == torch.float32}
    return list(found.values())


def cast_weights(model: Any, precision: str) -> None:
    """Cast the weights of a model that only predicts to its precision."""
    for weight in half_weights(model):
        weight.data = weight.data.to(TYPES[precision])


_CAST: dict[int, tuple[int, list[tuple[nn.Parameter, Tensor]]]] = {}
"""By the id of a model: the number of blocks that use it now, its weights and their float32."""
_LOCK = threading.Lock()


@contextlib.contextmanager
def in_precision(model: Any, precision: str, device: torch.device) -> Iterator[None]:
    """Let a model predict in a precision within a ``with`` block; several threads may do so.

    A model in training, or after ``cast_weights``, has the weights already.
    """
    with _LOCK:
        count, weights = _CAST.get(id(model), (0, []))
        if not count and TYPES[precision] != torch.float32:
            weights = [(weight, weight.data) for weight in half_weights(model)]
            for weight, data in weights:
                weight.data = data.to(TYPES[precision])
        _CAST[id(model)] = count + 1, weights
    try:
        with casting(model, precision, device):
            yield
    finally:
        with _LOCK:
            count, weights = _CAST.pop(id(model))
            if count > 1:
                _CAST[id(model)] = count - 1, weights
            else:
                for weight, data in weights:
                    weight.data = data


def casting(model: Any, precision: str, device: torch.device) -> Any:
    """Return autocast for a model whose weights are float32, else a context that does nothing."""
    is_half = any(weight.dtype == TYPES[precision] for weight in model.parameters())
    return autocast("fp32" if is_half else precision, device)


class _Flat(NamedTuple):
    """Weights of a group of the optimizer, end to end: bfloat16, float32, and their gradients."""

    working: Tensor
    master: Tensor
    gradient: Tensor


class MasterWeights:
    """Float32 weights and gradients of a model that trains in bfloat16.

    The weights of the model become views of a flat bfloat16 tensor for each group of the
    optimizer, which updates flat float32 tensors in their place. A weight without a gradient in a
    step is not updated in it, nor decayed: the optimizer gets the parts around it.

    In ``fp32``, and for families that need autocast, all weights stay in place and nothing is flat.

    In each step come the backward passes, with ``add_gradients`` after each, ``gradients_of_step``,
    ``prepare``, the update of the optimizer, and ``finish_step``. Something else that computes
    gradients, such as a CUDA graph, writes those of ``working[i]`` to ``gradients[i]``: it copies
    them, or adds them where ``filled[i]``, and sets ``filled[i]``.

    Attributes:
        precision: See above.
        groups: The groups of the optimizer.
        working: The bfloat16 weights.
        gradients: Their float32 gradients, views of the flat tensors.
        filled: Whether each has a gradient in this step.
        shapes: The shapes of all trained weights by name.
    """

    def __init__(
        self,
        model: Any,
        groups: Sequence[Mapping[str, Any]],
        precision: str,
        whole: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Flatten the weights of a model.

        Args:
            model: The model, on its device, with adapters and frozen weights.
            groups: The groups of the optimizer: ``params``, their ``names``, and settings.
            precision: ``bf16``, ``fp16`` or ``fp32``.
            whole: A context in which a model that trains a part of its embeddings has all.
        """
        self.precision, self._whole = precision, whole
        self.groups: list[dict[str, Any]] = []
        self.working: list[nn.Parameter] = []
        self.gradients: list[Tensor] = []
        self._names: list[str] = []
        self._places: list[tuple[_Flat, int, int]] = []
        self._segments: dict[int, tuple[Tensor, range]] = {}
        self._plain: dict[nn.Parameter, str] = {}
        self._float32: list[tuple[nn.Parameter, Tensor]] = []
        half = half_weights(model) if precision == "bf16" else []
        frozen = {id(weight): weight for weight in half}
        for group in groups:
            flattened: dict[str, nn.Parameter] = {}
            plain: dict[nn.Parameter, str] = {}
            for name, weight in zip(group["names"], group["params"], strict=True):
                if frozen.pop(id(weight), None) is None:
                    plain[weight] = name
                else:
                    flattened[name] = weight
            flat = [self._flatten(flattened)] if flattened else []
            self._plain |= plain
            self.groups.append({**group, "params": [*flat, *plain]})
        for weight in frozen.values():
            self._float32.append((weight, weight.data))
            weight.data = weight.data.to(TYPES[precision])
        self.shapes = {name: weight.shape for weight, name in self._plain.items()}
        self.shapes |= zip(self._names, (weight.shape for weight in self.working), strict=True)
        self._flats = list({id(flat): flat for flat, *_ in self._places}.values())
        self.filled = [False] * len(self.working)
        self._filled_before = list(self.filled)

    def _flatten(self, weights: Mapping[str, nn.Parameter]) -> Tensor:
        sizes = [-(-weight.numel() // ALIGNMENT) * ALIGNMENT for weight in weights.values()]
        master = torch.zeros(sum(sizes), device=next(iter(weights.values())).device)
        flat = _Flat(master.bfloat16(), master, torch.zeros_like(master))
        first = len(self.working)
        for (name, weight), end in zip(weights.items(), accumulate(sizes), strict=True):
            start = end - -(-weight.numel() // ALIGNMENT) * ALIGNMENT
            part = slice(start, start + weight.numel())
            working, float32, gradient = (tensor[part].view(weight.shape) for tensor in flat)
            float32.copy_(weight.data)
            weight.data = working.copy_(float32)
            self.working.append(weight)
            self.gradients.append(gradient)
            self._names.append(name)
            self._places.append((flat, start, end))
            self._float32.append((weight, float32))
        return self._segment(range(first, len(self.working)))

    def _segment(self, numbers: range) -> Tensor:
        flat, start, _ = self._places[numbers[0]]
        segment = slice(start, self._places[numbers[-1]][2])
        tensor = flat.master[segment]
        self._segments[id(tensor)] = tensor, numbers
        return tensor

    def add_gradients(self) -> None:
        """Move the gradients of the working weights to the float32 gradients, which add up."""
        new: tuple[list[Tensor], list[Tensor]] = ([], [])
        more: tuple[list[Tensor], list[Tensor]] = ([], [])
        for number, weight in enumerate(self.working):
            if (gradient := weight.grad) is not None:
                targets, sources = more if self.filled[number] else new
                targets.append(self.gradients[number])
                sources.append(gradient)
                weight.grad, self.filled[number] = None, True
        if new[0]:
            torch._foreach_copy_(*new)
        if more[0]:
            torch._foreach_add_(*more)

    def gradients_of_step(self) -> list[Tensor]:
        """Return all gradients of the step, in flat tensors with 0 for weights without one."""
        if self.filled != self._filled_before:
            pairs = zip(self.gradients, self._filled_before, self.filled, strict=True)
            if stale := [gradient for gradient, before, now in pairs if before and not now]:
                torch._foreach_zero_(stale)
            self._filled_before = list(self.filled)
        plain = [weight.grad for weight in self._plain if weight.grad is not None]
        return [*(flat.gradient for flat in self._flats), *plain]

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer the gradients of the step, for the weights that have one."""
        if any(len({self.filled[i] for i in run}) > 1 for _, run in self._segments.values()):
            self._divide(optimizer, self.filled, self.moments(optimizer))
        for tensor, numbers in self._segments.values():
            flat, start, _ = self._places[numbers[0]]
            gradient = flat.gradient[start : start + len(tensor)]
            tensor.grad = gradient if self.filled[numbers[0]] else None

    def finish_step(self) -> None:
        """Write the updated weights to the model, and forget the gradients."""
        self._write_working()
        self.filled = [False] * len(self.working)
        for weight in self._plain:
            weight.grad = None

    def _write_working(self) -> None:
        if self._flats:
            masters = [flat.master for flat in self._flats]
            torch._foreach_copy_([flat.working for flat in self._flats], masters)

    @contextlib.contextmanager
    def float32(self) -> Iterator[None]:
        """Give the model its float32 weights within a ``with`` block, to save or change them.

        A model that trains a part of its embeddings has all of them there.
        """
        half = [weight.data for weight, _ in self._float32]
        for weight, data in self._float32:
            weight.data = data
        try:
            with self._whole():
                yield
        finally:
            for (weight, _), data in zip(self._float32, half, strict=True):
                weight.data = data
            self._write_working()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the model with float32 weights of its own."""
        for weight, data in self._float32:
            weight.grad, weight.data = None, data.clone()

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
        """Return the state of an optimizer for each weight by name, such as AdamW's moments."""
        names = {id(weight): name for weight, name in self._plain.items()}
        found: dict[str, dict[str, Tensor]] = {}
        for tensor, state in optimizer.state.items():
            if id(tensor) not in self._segments:
                found[names[id(tensor)]] = dict(state)
                continue
            _, numbers = self._segments[id(tensor)]
            for number in numbers:
                _, start, _ = self._places[number]
                begin, shape = start - self._places[numbers[0]][1], self.working[number].shape
                part = slice(begin, begin + shape.numel())
                found[self._names[number]] = {
                    kind: values[part].view(shape) if values.ndim else values.clone()
                    for kind, values in state.items()
                }
        return found

    def load_moments(
        self, optimizer: torch.optim.Optimizer, moments: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Restore what ``moments`` returned."""
        for weight, name in self._plain.items():
            if name in moments:
                state = {kind: value.to(weight.device) for kind, value in moments[name].items()}
                optimizer.state[weight] = state
        # weights of several heads have been updated in different steps
        steps = [float(moments[name]["step"]) if name in moments else None for name in self._names]
        self._divide(optimizer, steps, moments)

    def _divide(
        self,
        optimizer: torch.optim.Optimizer,
        kinds: Sequence[Any],
        moments: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        for group in optimizer.param_groups:
            divided: list[Tensor] = []
            for tensor in group["params"]:
                if id(tensor) not in self._segments:
                    divided.append(tensor)
                    continue
                _, numbers = self._segments.pop(id(tensor))
                optimizer.state.pop(tensor, None)
                for _, run in groupby(numbers, kinds.__getitem__):
                    first, *others = run
                    part = self._segment(range(first, first + 1 + len(others)))
                    divided.append(part)
                    self._join(optimizer, part, moments)
            group["params"] = divided

    def _join(self, optimizer: Any, tensor: Tensor, moments: Mapping[str, Any]) -> None:
        _, numbers = self._segments[id(tensor)]
        for number in numbers:
            begin = self._places[number][1] - self._places[numbers[0]][1]
            for kind, values in moments.get(self._names[number], {}).items():
                state = optimizer.state[tensor]
                if not values.ndim:
                    state[kind] = values.to(tensor.device)
                    continue
                whole = state.setdefault(kind, torch.zeros_like(tensor))
                whole[begin : begin + values.numel()] = values.flatten()
