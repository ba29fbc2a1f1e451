"""Mixed precision: a model that computes in half precision, and its weights in single precision.

The weights of the model are bfloat16, and so are its activations. The optimizer updates float32
master weights, since most updates are smaller than the rounding of a bfloat16 weight (Micikevicius
et al., 2018, "Mixed Precision Training", section 3.1). Predictions need no masters.

The weights of a group of the optimizer lie end to end: AdamW, norm and copies are then few kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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


class _Bucket:
    """Weights of a module that the optimizer updates as one float32 tensor, ``master``.

    They lie end to end, with those that the model reads and their gradients, which ``master`` has
    if a weight got one in this step; without ``dtype`` there is one weight, as it is.
    """

    def __init__(
        self, named: Mapping[str, nn.Parameter], module: str, dtype: torch.dtype | None = None
    ) -> None:
        self.names, self.weights, self.module = list(named), list(named.values()), module
        self.master: Tensor = self.weights[0]
        self.sizes, self.is_flat = [self.master.numel()], dtype is not None
        if dtype is not None:
            self.sizes = [-(-w.numel() // _ALIGNMENT) * _ALIGNMENT for w in self.weights]
            self.master = self.master.detach().new_zeros(sum(self.sizes))
            self.masters = self.parts(self.master)
            torch._foreach_copy_(self.masters, [weight.data for weight in self.weights])
            self.working, self.gradient = self.master.to(dtype), torch.zeros_like(self.master)
            self.gradients = self.parts(self.gradient)
            for weight, values in zip(self.weights, self.parts(self.working), strict=True):
                weight.data = values

    def parts(self, values: Tensor) -> list[Tensor]:
        """The part of each weight in a tensor of the size of ``master``."""
        pairs = zip(values.view(-1).split(self.sizes), self.weights, strict=True)
        return [part[: weight.numel()].view(weight.shape) for part, weight in pairs]


class MasterWeights(contextlib.AbstractContextManager[Any]):
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
        weights: The trained weights by name.
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
        self.weights: dict[str, nn.Parameter] = {}
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self._masters: dict[nn.Parameter, Tensor] = {}
        self._buckets: list[_Bucket] = []
        encoder = model if isinstance(model, Encoder) else model.encoder
        half = set(half_weights(model)) if precision == "bf16" else set[nn.Parameter]()
        is_recorded = not reason_to_run_plainly(encoder)
        flat_weights = set(_weights_outside(model, nn.RNNBase)) if is_recorded else half
        of_encoder = set(encoder.trained_parameters().values())
        for group in groups:
            buckets = list[_Bucket]()
            together: dict[Any, dict[str, nn.Parameter]] = {}
            for name, weight in zip(group["names"], group["params"], strict=True):
                self.weights[name] = weight
                module = "" if weight in of_encoder else name.rpartition(".")[0] or name
                if weight in flat_weights:
                    dtype = torch.bfloat16 if weight in half else weight.dtype
                    together.setdefault((module, dtype), {})[name] = weight
                else:
                    buckets.append(_Bucket({name: weight}, module))
            buckets += [_Bucket(named, *module_type) for module_type, named in together.items()]
            self._buckets += buckets
            self.groups.append({**group, "params": [bucket.master for bucket in buckets]})
        self._flats = [bucket for bucket in self._buckets if bucket.is_flat]
        for flat in self._flats:
            self._masters |= zip(flat.weights, flat.masters, strict=True)
            self.gradients |= zip(flat.weights, flat.gradients, strict=True)
        for weight in half - self._masters.keys():  # frozen
            self._masters[weight] = weight.data
            weight.data = weight.data.bfloat16()

    def add_gradients(self) -> None:
        """Move the gradients of a backward pass to the float32 gradients, which add up."""
        for flat in self._flats:
            pairs = zip(flat.gradients, flat.weights, strict=True)
            moved = [(total, weight.grad) for total, weight in pairs if weight.grad is not None]
            if moved:
                is_first = flat.master.grad is None
                if is_first and len(moved) < len(flat.weights):
                    flat.gradient.zero_()
                add: Any = torch._foreach_copy_ if is_first else torch._foreach_add_
                add(*zip(*moved, strict=True))
                flat.master.grad = flat.gradient
                for weight in flat.weights:
                    weight.grad = None

    @contextlib.contextmanager
    def encoder_gradients(self, *, add: bool) -> Iterator[None]:
        """Let recorded passes overwrite the gradients of the encoder within a ``with`` block.

        At its end those that the step has before are added again, or else they are put back.
        """
        flats = [flat for flat in self._flats if not flat.module]
        before = [(g, g.clone()) for flat in flats if (g := flat.master.grad) is not None]
        try:
            yield
        finally:
            for gradient, values in before:
                gradient.add_(values) if add else gradient.copy_(values)
            for flat in flats if add else ():
                flat.master.grad = flat.gradient

    def gradients_of_step(self, all_of: str | None = None) -> list[Tensor]:
        """The gradients of the step, which the optimizer reads.

        With ``all_of``, the start of the names in a head, weights of this head and of the encoder
        without a gradient get one of zeros, since another process may have one.
        """
        for bucket in self._buckets if all_of is not None else ():
            of_head = bucket.module.startswith(str(all_of))
            if bucket.master.grad is None and (of_head or not bucket.module):
                bucket.master.grad = torch.zeros_like(bucket.master)
        return [bucket.master.grad for bucket in self._buckets if bucket.master.grad is not None]

    def end_step(self) -> None:
        """Drop the gradients of the step, and write the new weights to the model."""
        for bucket in self._buckets:
            bucket.master.grad = None
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
            self.end_step()

    def __exit__(self, *error: object) -> None:
        """Leave the model with float32 weights of its own."""
        for weight, master in self._masters.items():
            weight.grad, weight.data = None, master.clone()

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Tensor]]:
        """The state of an optimizer for each weight by name, such as AdamW's moments."""
        moments: dict[str, dict[str, Tensor]] = {}
        for bucket in self._buckets:
            for moment, values in optimizer.state.get(bucket.master, {}).items():
                parts = bucket.parts(values) if values.ndim else [values] * len(bucket.names)
                for name, part in zip(bucket.names, parts, strict=True):
                    moments.setdefault(name, {})[moment] = part
        return moments

    def load_moments(
        self, optimizer: torch.optim.Optimizer, moments: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        """Restore the result of ``moments``."""
        for bucket in self._buckets:
            saved = {name: moments[name] for name in bucket.names if name in moments}
            for moment, values in next(iter(saved.values()), {}).items():
                state = values.to(bucket.master.device)
                if values.ndim:
                    state = torch.zeros_like(bucket.master)
                    for name, part in zip(bucket.names, bucket.parts(state), strict=True):
                        if name in saved:
                            part.copy_(saved[name][moment])
                optimizer.state[bucket.master][moment] = state


def _weights_outside(model: nn.Module, modules: Any) -> dict[nn.Parameter, None]:
    outside = (module for module in model.modules() if not isinstance(module, modules))
    return dict.fromkeys(w for module in outside for w in module.parameters(recurse=False))
