"""Mixed precision: a model that computes in half precision, and its weights in single precision.

The weights of the model are bfloat16, and so are its activations. The optimizer updates float32
master weights, since most updates are smaller than the rounding of a bfloat16 weight (Micikevicius
et al., 2018, "Mixed Precision Training", section 3.1). Predictions need no masters.

The weights of a group of the optimizer lie end to end: AdamW, norm and copies are then few kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor, nn

from finetune.models.adapters import MaskedLinear
from finetune.models.encoder import Encoder
from finetune.models.families import family_of
from finetune.models.graphs import reason_to_run_plainly
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


class _Flat:
    """Weights end to end: float32, those that the model reads, and float32 gradients."""

    def __init__(self, weights: Mapping[str, nn.Parameter], dtype: torch.dtype) -> None:
        self.names, self.weights = list(weights), list(weights.values())
        sizes = [-(-weight.numel() // _ALIGNMENT) * _ALIGNMENT for weight in self.weights]
        self.starts = list(accumulate(sizes, initial=0))
        self.master = torch.zeros(self.starts[-1], device=self.weights[0].device)
        self.masters = self.views(self.master)
        torch._foreach_copy_(self.masters, [weight.data for weight in self.weights])
        self.working, self.gradient = self.master.to(dtype), torch.zeros_like(self.master)
        self.gradients = self.views(self.gradient)
        self.filled: set[int] = set()
        """The weights with a gradient in this step."""
        for weight, values in zip(self.weights, self.views(self.working), strict=True):
            weight.data = values

    @property
    def empty(self) -> list[int]:
        """The weights without a gradient in this step."""
        return [number for number in range(len(self.weights)) if number not in self.filled]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat tensor, in the shapes of the weights."""
        return [
            flat[start : start + weight.numel()].view(weight.shape)
            for start, weight in zip(self.starts, self.weights, strict=False)
        ]


class MasterWeights:
    """Float32 weights and gradients of a model that trains in bfloat16, or in float32.

    The weights of the model become views of a flat tensor, bfloat16 or float32, for each group of
    the optimizer, and in it for the encoder and each module above. The optimizer updates flat
    float32 tensors in their place. A weight without a gradient in a step stays as it is.

    All weights stay in place and nothing is flat in ``fp16``, for families that need autocast, and
    in ``fp32`` for passes that are not recorded as CUDA graphs, as on a CPU.

    In each step come the backward passes, with ``add_gradients`` after each, ``gradients_of_step``,
    and the update of the optimizer within ``updating``.

    Attributes:
        precision: See above.
        groups: The groups of the optimizer.
        working: The weights that are views of flat tensors.
        gradients: The float32 gradients of float32 weights among them.
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
        self.shapes: dict[str, torch.Size] = {}
        self._flats: list[_Flat] = []
        self._plain: dict[nn.Parameter, str] = {}
        encoder, dtype = model if isinstance(model, Encoder) else model.encoder, DTYPES[precision]
        # else it costs a copy of the gradients, and their memory
        in_fp32 = precision == "fp32" and not reason_to_run_plainly(encoder)
        is_flat = in_fp32 or precision == "bf16"
        flat_weights = {id(weight): weight for weight in half_weights(model)} if is_flat else {}
        of_encoder = {id(weight) for weight in encoder.trained_parameters().values()}
        for group in groups:
            parts: dict[str, dict[str, nn.Parameter]] = {}
            plain: dict[nn.Parameter, str] = {}
            for name, weight in zip(group["names"], group["params"], strict=True):
                self.shapes[name] = weight.shape
                if flat_weights.pop(id(weight), None) is None:
                    plain[weight] = name
                else:
                    part = "" if id(weight) in of_encoder else ".".join(name.split(".")[:2])
                    parts.setdefault(part, {})[name] = weight
            flats = [_Flat(weights, dtype) for weights in parts.values()]
            self._flats += flats
            self._plain |= plain
            self.groups.append({**group, "params": [*(flat.master for flat in flats), *plain]})
        self.working = [weight for flat in self._flats for weight in flat.weights]
        self._float32 = [
            pair for flat in self._flats for pair in zip(flat.weights, flat.masters, strict=True)
        ]
        for weight in flat_weights.values():  # frozen
            self._float32.append((weight, weight.data))
            weight.data = weight.data.to(dtype)
        self.gradients = {
            weight: gradient
            for flat in self._flats
            for weight, gradient in zip(flat.weights, flat.gradients, strict=True)
            if in_fp32
        }

    def add_gradients(self) -> None:
        """Move the gradients of the working weights to the float32 gradients, which add up.

        Those of float32 weights lie there from then on.
        """
        new: tuple[list[Tensor], list[Tensor]] = [], []
        more: tuple[list[Tensor], list[Tensor]] = [], []
        for flat in self._flats:
            for number, weight in enumerate(flat.weights):
                if weight.grad is None:
                    continue
                total = self.gradients.get(weight)
                if weight.grad is not total:
                    is_more = total is None and number in flat.filled
                    targets, gradients = more if is_more else new
                    targets.append(flat.gradients[number])
                    gradients.append(weight.grad)
                    weight.grad = total
                flat.filled.add(number)
        if new[0]:
            torch._foreach_copy_(*new)
        if more[0]:
            torch._foreach_add_(*more)

    def gradients_of_step(self) -> list[Tensor]:
        """All gradients of the step, in flat tensors with 0 for weights without one."""
        for flat in self._flats:
            if empty := [flat.gradients[number] for number in flat.empty]:
                torch._foreach_zero_(empty)
        plain = [grad for weight in self._plain if (grad := weight.grad) is not None]
        return [*(flat.gradient for flat in self._flats), *plain]

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Give the optimizer the gradients of the step; then write new weights to the model."""
        before = []
        for flat in self._flats:
            flat.master.grad = flat.gradient if flat.filled else None
            masters = [flat.masters[number] for number in flat.empty if flat.filled]
            before += [(master, master.clone()) for master in masters]
            flat.filled.clear()
        yield
        for master, values in before:
            master.copy_(values)
        self._write_working()
        for weight in (*self._plain, *self.gradients):
            weight.grad = None

    def _write_working(self) -> None:
        if self._flats and not self.gradients:
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
        moments: dict[str, dict[str, Tensor]] = {}
        for updated, names, views in self._updated():
            for moment, values in optimizer.state.get(updated, {}).items():
                parts = views(values) if values.ndim else [values.clone() for _ in names]
                for name, part in zip(names, parts, strict=True):
                    moments.setdefault(name, {})[moment] = part
        return moments

    def load_moments(
        self, optimizer: torch.optim.Optimizer, moments: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Restore the result of ``moments``."""
        for updated, names, views in self._updated():
            for number, name in enumerate(names):
                for moment, value in moments.get(name, {}).items():
                    state = optimizer.state[updated]
                    if value.ndim:
                        values = state.setdefault(moment, torch.zeros_like(updated))
                        views(values)[number].copy_(value)
                    else:
                        state[moment] = value.to(updated.device)

    def _updated(self) -> Iterator[tuple[Tensor, list[str], Callable[[Tensor], list[Tensor]]]]:
        for flat in self._flats:
            yield flat.master, flat.names, flat.views
        for weight, name in self._plain.items():
            yield weight, [name], lambda values: [values]
