"""FSDP: each process holds a shard of every weight, gradient and moment of the optimizer.

A layer's weights are gathered while the layer runs, forward and backward, and its gradients are
summed into the shards (``torch.distributed.fsdp.fully_shard``; Zhao et al., 2023). Every process
must run the same number of passes, as each pass gathers weights from all processes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from finetune.runtime.precision import TYPES
from finetune.runtime.processes import num_processes, process_index, uses_fsdp
from finetune.types import UserError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Functions import torch.distributed, which takes time and is not in every build of torch.


def place(head: Any, device: torch.device, precision: str) -> Any:
    """Move a model to the device of this process; under FSDP, shard it over all processes.

    No weight stays memory-mapped.

    Args:
        head: The model, on the CPU. With ``fsdp_cpu_ram_efficient_loading`` one process of each
            machine has its weights, and process 0 distributes them.
        device: The device.
        precision: The type of matrix products, a key of ``TYPES``.

    Raises:
        UserError: The model, or a setting of accelerate for its layers, does not fit FSDP.
    """
    if not uses_fsdp():
        if device.type == "cpu":
            for tensor in (*head.parameters(), *head.buffers()):
                tensor.data = tensor.data.clone()  # a mapped file that changes would crash it
        return head.to(device)
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    layers = head.encoder.layers_to_shard()
    name = type(layers[0]).__name__
    if (named := os.environ.get("FSDP_TRANSFORMER_CLS_TO_WRAP", name)) != name:
        raise UserError(f"accelerate's fsdp_transformer_layer_cls_to_wrap is {named}: set {name}.")
    by_name = dict(head.named_parameters(remove_duplicate=False))
    if len({id(weight) for weight in by_name.values()}) < len(by_name):
        raise UserError(
            "FSDP does not support models whose head shares the weights of the embeddings, as in "
            "`finetune pretrain`: start without FSDP."
        )
    distribute = os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "").lower() in ("1", "true")
    weights = head.state_dict() if distribute and process_index() == 0 else {}
    reshard = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "").lower() != "false"
    mesh = init_device_mesh(device.type, (num_processes(),))
    settings: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": reshard}
    # Autocast would keep a copy of all weights in half precision until the end of the pass.
    in_half = device.type == "cuda" and precision != "fp32"
    policy = MixedPrecisionPolicy(
        TYPES[precision] if in_half else None,
        torch.float32 if in_half else None,
        cast_forward_inputs=False,
    )
    for layer in layers:
        fully_shard(layer, mp_policy=policy, **settings)
    fully_shard(head.encoder.model.get_input_embeddings(), **settings)
    fully_shard(head, **settings)
    for module in head.modules():
        if isinstance(module, FSDPModule):  # gradients are summed; the step divides them once
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    if distribute:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(head, weights, options=options)
    return head


def is_sharded(head: Any) -> bool:
    """Return whether ``place`` sharded a model."""
    if not uses_fsdp():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(head, FSDPModule)


def reshard(head: Any) -> None:
    """Let ``parameters()`` be the shards again after passes without gradients.

    Without ``fsdp_reshard_after_forward`` they stay the whole weights, which no step would update.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in head.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def shards(head: Any) -> dict[str, DTensor]:
    """Return the sharded parameters by name, without copying them."""
    from torch.distributed.tensor import DTensor

    state = head.state_dict()  # which ends the gathering of weights
    return {name: value for name, value in state.items() if isinstance(value, DTensor)}


def whole_state(head: Any) -> dict[str, Tensor]:
    """Gather the whole weights, by name, in the memory of process 0; others return none."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(head, options=options)
    return state
