"""Parameter-efficient fine-tuning: train few weights of an encoder, besides its head.

LoRA (Hu et al., 2021, arXiv:2106.09685) adds a matrix of low rank to a matrix W,
W + (alpha / r) B A, where B starts at 0. BitFit (Ben Zaken et al., 2022, arXiv:2106.10199) trains
biases only. Masks (Zhao et al., 2020, arXiv:2004.12406) set weights to 0 and change no others.

Adapters are layers around linear layers of the encoder while a run lasts. Within ``plain_layers``,
where models are saved, they are ordinary linear layers again, under their ordinary names.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from finetune.config.tasks import TrainConfig
from finetune.models.heads.base import EncoderModel
from finetune.models.loading import resolve_model
from finetune.registry import install_command
from finetune.types import UserError, abbreviated

ADAPTER_FILE = "adapter.safetensors"
"""File in a checkpoint with the weights of adapters, beside the model without them."""
LORA = "lora_A"
THRESHOLD = 0.01
"""Weights with a score above it are kept; scores start at twice the threshold."""


class MaskedLinear(nn.Module):
    """y = (W * 1[scores > THRESHOLD]) x + b around a linear layer; the scores are trained.

    The step has the gradient of the identity (straight-through; Bengio et al., 2013).
    """

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.scores = nn.Parameter(torch.full_like(base_layer.weight, 2 * THRESHOLD))

    @property
    def mask(self) -> Tensor:
        """True for kept weights."""
        return self.scores > THRESHOLD

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer with its masked weight."""
        mask = self.mask.to(self.scores.dtype) + (self.scores - self.scores.detach())
        weight = self.base_layer.weight
        masked = weight * mask.to(weight.dtype)
        return nn.functional.linear(input, masked, self.base_layer.bias)


@contextlib.contextmanager
def parameter_efficient_tuning(head: Any, config: TrainConfig) -> Iterator[None]:
    """Freeze weights and add adapters, as ``freeze`` and ``tuning`` say, for a ``with`` block.

    At its end the adapters are merged into the weights, and all weights can be trained as before.
    """
    before = [(weight, weight.requires_grad) for weight in head.parameters()]
    head.encoder.freeze("all" if config.tuning == "head" else config.freeze)
    if config.tuning == "bitfit":
        for name, weight in head.named_parameters():
            if not head.is_head(name) and not name.endswith("bias"):
                weight.requires_grad_(False)
    elif config.tuning in ("lora", "mask"):
        _add_adapters(head, config)
    try:
        yield
    finally:
        for path, layer in adapters(head).items():
            layer.base_layer.weight.data = _merged(layer)
            head.set_submodule(path, layer.base_layer)
        for weight, trained in before:
            weight.requires_grad_(trained)


def adapters(head: nn.Module) -> dict[str, Any]:
    """The adapters of a model by the name of the layer in each; empty without adapters."""
    return {
        name: module
        for name, module in head.named_modules()
        if isinstance(module, MaskedLinear) or hasattr(module, LORA)
    }


@contextlib.contextmanager
def plain_layers(head: nn.Module, *, merged: bool) -> Iterator[None]:
    """Put the linear layers of a model back in place of adapters within a ``with`` block.

    With ``merged`` their weights include the trained adapters, else they are as before training.
    """
    layers = adapters(head)
    for path, layer in layers.items():
        linear = copy.copy(layer.base_layer)
        if merged:
            weight = nn.Parameter(_merged(layer), requires_grad=False)
            linear._parameters = {**linear._parameters, "weight": weight}
        head.set_submodule(path, linear)
    try:
        yield
    finally:
        for path, layer in layers.items():
            head.set_submodule(path, layer)


def save_adapter_state(head: nn.Module, folder: Path) -> None:
    """Write the weights of the adapters of a model, if it has any, to continue training."""
    state = {name: weight.detach().cpu().contiguous() for name, weight in _adapter_weights(head)}
    if state:
        save_file(state, folder / ADAPTER_FILE)


def load_adapter_state(head: nn.Module, folder: Path) -> None:
    """Restore the weights of the adapters of a model, if it has any."""
    weights = dict(_adapter_weights(head))
    if weights:
        saved = load_file(folder / ADAPTER_FILE)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(saved[name])


def export_adapter(head: Any, config: TrainConfig, folder: Path) -> None:
    """Write the matrices of LoRA, and the head, for peft to load on top of the starting model."""
    from peft import LoraConfig

    model: Any = head if isinstance(head, EncoderModel) else head.model
    layers = adapters(model)
    adapter = {id(weight) for _, weight in _adapter_weights(model)}
    trained = {
        name.rpartition(".")[0]
        for name, weight in model.named_parameters()
        if weight.requires_grad and id(weight) not in adapter
    }
    modules = [n for n in sorted(trained) if not any(n.startswith(f"{o}.") for o in trained)]
    state: dict[str, Tensor] = {}
    for name in modules:
        state |= model.get_submodule(name).state_dict(prefix=f"{name}.")
    for path, layer in layers.items():
        for name in (LORA, "lora_B"):
            state[f"{path}.{name}.weight"] = getattr(layer, name).default.weight
    first_layer = next(iter(layers.values()))
    LoraConfig(
        r=first_layer.r["default"],
        lora_alpha=first_layer.lora_alpha["default"],
        target_modules=list(layers),
        modules_to_save=modules,
        inference_mode=True,
        base_model_name_or_path=resolve_model(config.init_from or str(config.model)),
    ).save_pretrained(str(folder))
    state = {f"base_model.model.{n}": w.detach().cpu().clone() for n, w in state.items()}
    save_file(state, folder / "adapter_model.safetensors", {"format": "pt"})


def weight_numbers(head: nn.Module) -> tuple[int, int]:
    """The number of trained weights of a model, and of all its weights without adapters."""
    adapter = {id(weight) for _, weight in _adapter_weights(head)}
    trained = sum(weight.numel() for weight in head.parameters() if weight.requires_grad)
    return trained, sum(weight.numel() for weight in head.parameters() if id(weight) not in adapter)


def _add_adapters(head: Any, config: TrainConfig) -> None:
    names = _linear_layers(head, config)
    for name, weight in head.named_parameters():
        weight.requires_grad_(weight.requires_grad and head.is_head(name))
    if config.tuning == "mask":
        for name in names:
            layer: Any = head.encoder.model.get_submodule(name)
            head.encoder.model.set_submodule(name, MaskedLinear(layer))
        return
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError(f"--tuning lora needs peft: {install_command('peft')}.") from error
    trained_weights = [weight for weight in head.parameters() if weight.requires_grad]
    rank = int(config.lora.partition(":")[0])
    lora = LoraConfig(r=rank, lora_alpha=rank, target_modules=names)
    inject_adapter_in_model(lora, head.encoder.model)
    del head.encoder.model.peft_config
    for weight in trained_weights:  # peft freezes all weights but its own
        weight.requires_grad_(True)


def _linear_layers(head: Any, config: TrainConfig) -> list[str]:
    prefix = head.encoder_prefix
    names = [
        name.removeprefix(prefix)
        for name, module in head.named_modules()
        if isinstance(module, nn.Linear)
        and name.startswith(prefix)
        and module.weight.requires_grad
        and not head.is_head(f"{name}.weight")
    ]
    targets = tuple(filter(None, config.lora.partition(":")[2].split(",")))
    chosen = [name for name in names if not targets or _ends_with(name, targets)]
    unknown = [target for target in targets if not any(_ends_with(n, (target,)) for n in names)]
    if unknown or not chosen:
        legal = abbreviated(list(dict.fromkeys(name.rpartition(".")[2] for name in names)), 20)
        wrong = f"lora {config.lora}: {unknown[0]}" if unknown else f"--tuning {config.tuning}"
        raise UserError(
            f"{wrong}: the encoder has no such unfrozen linear layer; its layers are "
            f"{legal or 'none'}."
        )
    return chosen


def _ends_with(name: str, targets: tuple[str, ...]) -> bool:
    return any(f".{name}".endswith(f".{target}") for target in targets)


def _adapter_weights(head: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for path, layer in adapters(head).items():
        for name, weight in layer.named_parameters():
            if not name.startswith("base_layer."):
                yield f"{path}.{name}", weight


@torch.no_grad()
def _merged(layer: Any) -> Tensor:
    weight: Tensor = layer.base_layer.weight
    if isinstance(layer, MaskedLinear):
        return weight * layer.mask
    return weight + layer.get_delta_weight("default")  # type: ignore[no-any-return]
