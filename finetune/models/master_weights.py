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
from typing import Any, NamedTuple, Self

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
    weights = _weights_outside(model, FLOAT32_MODULES)
    return [weight for weight in weights if weight.dtype == torch.float32]


def cast_weights(model: Any, precision: str) -> None:
    """Cast the weights of a model that only predicts to its precision."""
    for weight in half_weights(model):
        weight.data = weight.data.to(DTYPES[precision])


def casting(model: Any, precision: str, device: torch.device) -> Any:
    """Autocast for a model whose weights are float32, else a context that does nothing."""
    is_half = any(weight.dtype == DTYPES[precision] for weight in model.parameters())
    return autocast("fp32" if is_half else precision, device)


class Place(NamedTuple):
    """The place of a weight in a tensor that the optimizer updates."""

    updated: Tensor
    start: int
    shape: torch.Size

    def of(self, values: Tensor) -> Tensor:
        """The part of a tensor of the size of ``updated`` that belongs to the weight."""
        return values.view(-1)[self.start : self.start + self.shape.numel()].view(self.shape)


class _Flat:
    """Weights end to end: the float32 ones, those that the model reads, and their gradients."""

    filled = False
    """Whether a weight has a gradient in this step."""

    def __init__(
        self, named: Mapping[str, nn.Parameter], dtype: torch.dtype, *, of_encoder: bool
    ) -> None:
        self.of_encoder, self.weights = of_encoder, list(named.values())
        sizes = [-(-weight.numel() // _ALIGNMENT) * _ALIGNMENT for weight in self.weights]
        self.master = self.weights[0].detach().new_zeros(sum(sizes))
        starts = zip(named, accumulate(sizes, initial=0), self.weights, strict=False)
        self.places = {name: Place(self.master, start, w.shape) for name, start, w in starts}
        self.masters = self._parts(self.master)
        torch._foreach_copy_(self.masters, [weight.data for weight in self.weights])
        self.working, self.gradient = self.master.to(dtype), torch.zeros_like(self.master)
        self.gradients = self._parts(self.gradient)
        for weight, values in zip(self.weights, self._parts(self.working), strict=True):
            weight.data = values

    def _parts(self, flat: Tensor) -> list[Tensor]:
        return [place.of(flat) for place in self.places.values()]


class MasterWeights:
    """Float32 weights and gradients of a model that trains in bfloat16, or on a GPU.

    The weights of the model become views of flat tensors: one for each group of the optimizer, and
    in it for the encoder and each module above. The optimizer updates flat float32 tensors. Those
    without a gradient in a step stay as they are; in others a missing gradient of a weight is 0.

    Weights that the model reads in float32 lie in flat tensors only where passes are recorded as
    CUDA graphs, since moving gradients costs time and memory.

    In each step come the backward passes, with ``add_gradients`` after each, ``gradients_of_step``,
    the update of the optimizer, and ``end_step``.

    Attributes:
        precision: ``bf16``, ``fp16`` or ``fp32``.
        groups: The groups of the optimizer.
        places: The place of each trained weight by name.
        gradients: The float32 gradients of the weights in flat tensors.
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
        self._updated: dict[Tensor, str] = {}  # with its module; of the encoder it is empty
        self.places: dict[str, Place] = {}
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self._masters: dict[nn.Parameter, Tensor] = {}
        self._flats: list[_Flat] = []
        encoder = model if isinstance(model, Encoder) else model.encoder
        half = set(half_weights(model)) if precision == "bf16" else set[nn.Parameter]()
        is_recorded = not reason_to_run_plainly(encoder)
        flat_weights = set(_weights_outside(model, nn.RNNBase)) if is_recorded else half
        of_encoder = set(encoder.trained_parameters().values())
        for group in groups:
            parts: dict[Any, dict[str, nn.Parameter]] = {}
            updated: dict[Tensor, str] = {}
            for name, weight in zip(group["names"], group["params"], strict=True):
                part = "" if weight in of_encoder else name.rpartition(".")[0] or name
                if weight in flat_weights:
                    dtype = torch.bfloat16 if weight in half else weight.dtype
                    parts.setdefault((part, dtype), {})[name] = weight
                else:
                    updated[weight] = part
                    self.places[name] = Place(weight, 0, weight.shape)
            for (part, dtype), named in parts.items():
                flat = _Flat(named, dtype, of_encoder=not part)
                updated[flat.master] = part
                self.places |= flat.places
                self._flats.append(flat)
                self._masters |= zip(flat.weights, flat.masters, strict=True)
                self.gradients |= zip(flat.weights, flat.gradients, strict=True)
            self._updated |= updated
            self.groups.append({**group, "params": list(updated)})
        for weight in half - self._masters.keys():  # frozen
            self._masters[weight] = weight.data
            weight.data = weight.data.bfloat16()

    def add_gradients(self) -> None:
        """Move the gradients of a backward pass to the float32 gradients, which add up."""
        for flat in self._flats:
            pairs = zip(flat.gradients, flat.weights, strict=True)
            moved = [(total, weight.grad) for total, weight in pairs if weight.grad is not None]
            if moved:
                if not flat.filled and len(moved) < len(flat.weights):
                    flat.gradient.zero_()
                add: Any = torch._foreach_add_ if flat.filled else torch._foreach_copy_
                add(*zip(*moved, strict=True))
                flat.filled = True
                for weight in flat.weights:
                    weight.grad = None

    @contextlib.contextmanager
    def encoder_gradients(self, *, add: bool) -> Iterator[None]:
        """Let recorded passes overwrite the gradients of the encoder within a ``with`` block.

        At its end those that the step has before are added again, or else they are put back.
        """
        flats = [flat for flat in self._flats if flat.of_encoder]
        before = [(flat.gradient, flat.gradient.clone()) for flat in flats if flat.filled]
        try:
            yield
        finally:
            for gradient, values in before:
                gradient.add_(values) if add else gradient.copy_(values)
            for flat in flats:
                flat.filled |= add

    def gradients_of_step(self, all_of: str | None = None) -> list[Tensor]:
        """Give the gradients of the step to the optimizer, and return all of them.

        With ``all_of``, the start of the names in a head, weights of this head and of the encoder
        without a gradient get one of zeros, since another process may have one.
        """
        for flat in self._flats:
            flat.master.grad = flat.gradient if flat.filled else None
        if all_of is not None:
            for updated, module in self._updated.items():
                if updated.grad is None and (not module or module.startswith(all_of)):
                    updated.grad = torch.zeros_like(updated)
        return [updated.grad for updated in self._updated if updated.grad is not None]

    def end_step(self) -> None:
        """Drop the gradients of the step, and write the new weights to the model."""
        for updated in self._updated:
            updated.grad = None
        for flat in self._flats:
            flat.filled = False
        self._write_working()

    def _write_working(self) -> None:
        if flats := [flat for flat in self._flats if flat.working is not flat.master]:
            masters = [flat.master for flat in flats]
            torch._foreach_copy_([flat.working for flat in flats], masters)

    @contextlib.contextmanager
    def float32(self) -> Iterator[None]:
        """Give the model its float32 weights within a ``with`` block, to save or change them.

        A model that trains a part of its embeddings has all of them there.
        """
        working = [(weight, weight.data) for weight in self._masters]
        for weight, master in self._masters.items():
            weight.data = master
        try:
            with self._whole():
                yield
        finally:
            for weight, data in working:
                weight.data = data
            self._write_working()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the model with float32 weights of its own."""
        for weight, master in self._masters.items():
            weight.grad, weight.data = None, master.clone()

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
        """The state of an optimizer for each weight by name, such as AdamW's moments."""
        return {
            name: {
                moment: place.of(values) if values.ndim else values.clone()
                for moment, values in optimizer.state[place.updated].items()
            }
            for name, place in self.places.items()
            if place.updated in optimizer.state
        }

    def load_moments(
        self, optimizer: torch.optim.Optimizer, moments: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Restore the result of ``moments``."""
        for name, values in moments.items():
            place = self.places[name]
            state = optimizer.state[place.updated]
            for moment, value in values.items():
                if value.ndim:
                    values_of_all = state.setdefault(moment, torch.zeros_like(place.updated))
                    place.of(values_of_all).copy_(value)
                else:
                    state[moment] = value.to(place.updated.device)


def _weights_outside(model: nn.Module, modules: Any) -> dict[nn.Parameter, None]:
    outside = (module for module in model.modules() if not isinstance(module, modules))
    return dict.fromkeys(w for module in outside for w in module.parameters(recurse=False))
