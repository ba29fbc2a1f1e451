"""A bidirectional LSTM between an encoder and its head.

It is a submodule of the encoder, saved with its weights and named in its configuration, so that
every head has it again when it is loaded. Plain transformers would leave it out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from finetune.runtime.device import all_to_device

BILSTM = "bilstm"
"""Name of the submodule, and of the setting that adds it."""


class BiLstm(nn.Module):
    """A bidirectional LSTM over each sequence (RoBERTa-BiLSTM; Rahman et al., 2024).

    The vector of a token joins the states of both directions. Heads read the vector of the first
    token for the whole sequence, so it has the forward state after the last token.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(config.hidden_size, config.hidden_size // 2, bidirectional=True)

    def forward(self, hidden: Tensor, lengths: tuple[int, ...]) -> Tensor:
        """Compute states [T, H] for hidden states [T, H] of sequences with these lengths.

        The weights stay in single precision.
        """
        # the order is computed on the CPU, as packing on a device waits for it
        rows = torch.arange(sum(lengths)).split(lengths)
        order, sizes, *_ = pack_sequence(sorted(rows, key=len, reverse=True))
        rank = order.argsort()  # of each token among the packed ones
        ends = torch.tensor(lengths).cumsum(0)
        rank_of_last = rank.index_copy(0, ends - torch.tensor(lengths), rank[ends - 1])
        order, rank, rank_of_last = all_to_device([order, rank, rank_of_last], hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            states = hidden.to(next(self.lstm.parameters()).dtype).index_select(0, order)
            packed, _ = self.lstm(PackedSequence(states, sizes))
        before, after = packed.data.split(self.lstm.hidden_size, dim=1)
        both = [before.index_select(0, rank_of_last), after.index_select(0, rank)]
        return torch.cat(both, 1).to(hidden.dtype)


def add_bilstm(model: Any) -> bool:
    """Add a BiLSTM to a base model whose configuration names one that it lacks; return whether."""
    missing = getattr(model.config, BILSTM, False) and BILSTM not in model._modules
    if missing:
        model.add_module(BILSTM, BiLstm(model.config).to(model.device, model.dtype))
    return bool(missing)


def load_bilstm(model: Any, folder: Path) -> set[str]:
    """Add the BiLSTM that a base model's configuration names, with its weights from its checkpoint.

    Returns the names of weights that the checkpoint lacks.
    """
    from safetensors import safe_open

    if not add_bilstm(model):
        return set()
    prefix = f"{BILSTM}."
    missing = {name: weight for name, weight in model.named_parameters() if name.startswith(prefix)}
    path = folder / "model.safetensors"
    if path.is_file():
        with safe_open(path, "pt") as file, torch.no_grad():
            for key in file.keys():
                for name in [n for n in missing if f".{key}".endswith(f".{n}")]:
                    missing.pop(name).copy_(file.get_tensor(key))
    if not missing:
        for module in model.get_submodule(BILSTM).modules():
            module._is_hf_initialized = True  # else a head around the encoder draws them again
    return set(missing)
