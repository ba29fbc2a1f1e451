"""Mixed precision: a model that computes in half precision, and its weights in single precision.

The weights of the model are bfloat16, and so are its activations. The optimizer updates float32
master weights, since most updates are smaller than the rounding of a bfloat16 weight (Micikevicius
et al., 2018, "Mixed Precision Training", section 3.1). Predictions need no masters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor, nn

from finetune.models.adapters import MaskedLinear
from finetune.models.encoder import Encoder
from finetune.models.families import family_of
from finetune.models.heads.crf import LinearChainCrf
from finetune.runtime.device import DTYPES, autocast

FLOAT32_MODULES = (nn.RNNBase, LinearChainCrf, MaskedLinear)
"""Modules whose own parameters stay float32: cuDNN copies weights of recurrent layers, scores of
transitions add up over a sentence, and bfloat16 is too coarse for the thresholds of masks."""
_ALIGNMENT = 64
"""Each weight begins at a multiple of this in a flat tensor, so that vectorized loops round every
number in the same way, however the tensor is divided."""


def half_weights(model: Any) -> list[nn.Parameter]:
    """The float32 weights of a model that may be in half precision.

    There are none if no test shows that the family runs in it: then autocast is used.
    """
    encoder = model if isinstance(model, Encoder) else model.encoder
    if family_of(encoder.model) is None or not encoder.family.half_precision:
        return []
    modules = (module for module in model.modules() if not isinstance(module, FLOAT32_MODULES))
    weights = (weight for module in modules for weight in module.parameters(recurse=False))
    by_id = {id(weight): weight for weight in weights if weight.dtype == torch.float32}
    return list(by_id.values())


def cast_weights(model: Any, precision: str) -> None:
    """Cast the weights of a model that only predicts to its precision."""
    for weight in half_weights(model):
        weight.data = weight.data.to(DTYPES[precision])


def casting(model: Any, precision: str, device: torch.device) -> Any:
    """Autocast for a model whose weights are float32, else a context that does nothing."""
    is_half = any(weight.dtype == DTYPES[precision] for weight in model.parameters())
    return autocast("fp32" if is_half else precision, device)


@dataclass(eq=False)
class _Flat:
    """Weights end to end: bfloat16, float32, and their gradients."""

    working: Tensor
    master: Tensor
    gradient: Tensor
    numbers: range
    """The indices of the weights in ``MasterWeights.working``."""


class MasterWeights:
    """Float32 weights and gradients of a model that trains in bfloat16.

    The weights of the model become views of a flat bfloat16 tensor for each group of the
    optimizer, and in it for the encoder and each module above. The optimizer updates flat float32
    tensors in their place. A weight without a gradient in a step stays as it is.

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
        self.shapes: dict[str, torch.Size] = {}
        self._names: list[str] = []
        self._starts: list[int] = []
        self._flats: list[_Flat] = []
        self._plain: dict[nn.Parameter, str] = {}
        self._float32: list[tuple[nn.Parameter, Tensor]] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        half = {id(weight): weight for weight in half_weights(model)} if precision == "bf16" else {}
        encoder = model if isinstance(model, Encoder) else model.encoder
        of_encoder = {id(weight) for weight in encoder.trained_parameters().values()}
        for group in groups:
            parts: dict[str, dict[str, nn.Parameter]] = {}
            plain: dict[nn.Parameter, str] = {}
            for name, weight in zip(group["names"], group["params"], strict=True):
                self.shapes[name] = weight.shape
                module = "" if id(weight) in of_encoder else ".".join(name.split(".")[:2])
                if half.pop(id(weight), None) is None:
                    plain[weight] = name
                else:
                    parts.setdefault(module, {})[name] = weight
            masters = [self._flatten(weights) for weights in parts.values()]
            self._plain |= plain
            self.groups.append({**group, "params": [*masters, *plain]})
        for weight in half.values():  # frozen
            self._float32.append((weight, weight.data))
            weight.data = weight.data.to(DTYPES[precision])
        self.filled = [False] * len(self.working)
        self._filled_before = list(self.filled)

    def _flatten(self, weights: Mapping[str, nn.Parameter]) -> Tensor:
        sizes = [-(-weight.numel() // _ALIGNMENT) * _ALIGNMENT for weight in weights.values()]
        master = torch.zeros(sum(sizes), device=next(iter(weights.values())).device)
        first = len(self.working)
        numbers = range(first, first + len(weights))
        flat = _Flat(master.bfloat16(), master, torch.zeros_like(master), numbers)
        self._flats.append(flat)
        self.working += weights.values()
        self._names += weights
        self._starts += accumulate(sizes[:-1], initial=0)
        for number, weight in zip(numbers, weights.values(), strict=True):
            float32 = self._view(flat.master, number).copy_(weight.data)
            weight.data = self._view(flat.working, number).copy_(float32)
            self.gradients.append(self._view(flat.gradient, number))
            self._float32.append((weight, float32))
        return master

    def _view(self, flat: Tensor, number: int) -> Tensor:
        start, shape = self._starts[number], self.working[number].shape
        return flat[start : start + shape.numel()].view(shape)

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
        """All gradients of the step, in flat tensors with 0 for weights without one."""
        if self.filled != self._filled_before:
            pairs = zip(self.gradients, self._filled_before, self.filled, strict=True)
            if stale := [gradient for gradient, before, now in pairs if before and not now]:
                torch._foreach_zero_(stale)
            self._filled_before = list(self.filled)
        plain = [weight.grad for weight in self._plain if weight.grad is not None]
        return [*(flat.gradient for flat in self._flats), *plain]

    def prepare(self) -> None:
        """Give the optimizer the gradients of the step, for the weights that have one."""
        for flat in self._flats:
            empty = [number for number in flat.numbers if not self.filled[number]]
            flat.master.grad = flat.gradient if len(empty) < len(flat.numbers) else None
            if flat.master.grad is not None:
                masters = [self._view(flat.master, number) for number in empty]
                self._before += [(master, master.clone()) for master in masters]

    def finish_step(self) -> None:
        """Write the updated weights to the model, and forget the gradients."""
        for master, before in self._before:
            master.copy_(before)
        self._before.clear()
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
        """The state of an optimizer for each weight by name, such as AdamW's moments."""
        state = optimizer.state
        moments = {
            name: dict(state[weight]) for weight, name in self._plain.items() if weight in state
        }
        for flat in self._flats:
            for number in flat.numbers if flat.master in state else ():
                moments[self._names[number]] = {
                    moment: self._view(values, number) if values.ndim else values.clone()
                    for moment, values in state[flat.master].items()
                }
        return moments

    def load_moments(
        self, optimizer: torch.optim.Optimizer, moments: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Restore the result of ``moments``."""
        for weight, name in self._plain.items():
            if name in moments:
                state = {moment: value.to(weight.device) for moment, value in moments[name].items()}
                optimizer.state[weight] = state
        for flat in self._flats:
            for number in flat.numbers:
                state = optimizer.state[flat.master] if self._names[number] in moments else {}
                for moment, value in moments.get(self._names[number], {}).items():
                    if value.ndim:
                        values = state.setdefault(moment, torch.zeros_like(flat.master))
                        self._view(values, number).copy_(value)
                    else:
                        state[moment] = value.to(flat.master.device)
