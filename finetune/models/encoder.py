"""Encoder: any Hugging Face text encoder, flat tokens in, flat vectors out.

Heads never see padding. Where a family's modelling code routes attention through transformers'
attention interface, or ``finetune.models.deberta`` runs its layers, sequences share one packed row;
elsewhere they are padded in here. Both give the same numbers (tests/contract), so ``batching`` is
about speed alone.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from finetune.models import attention, deberta
from finetune.models.families import FAMILIES, UNPACKABLE, Family, depth_in_family, family_of
from finetune.models.loading import load_config, load_weights
from finetune.models.packing import PackedLayout
from finetune.models.padding import flat, flat_places, in_order, in_rows, length_groups
from finetune.models.rounding import pays, rounded
from finetune.types import Batch, UserError

Batching = Literal["auto", "packed", "padded"]


class Encoder(nn.Module):
    """A pretrained encoder over batches without padding.

    ``width`` H, ``num_layers`` L, ``max_length`` (tokens that fit, None without limit),
    ``vocabulary_size``, ``num_segments`` (0 or 1: segment ids make no difference), ``pad_id``;
    ``packed`` says how it runs and ``reason`` why not packed.
    """

    def __init__(self, model: PreTrainedModel, batching: Batching = "auto") -> None:
        """Wrap a base model; ``batching="packed"`` raises ValueError where that cannot be."""
        super().__init__()
        self.model = model
        config = model.config
        self.family = family_of(model) or _unlisted(model)
        self.pad_id: int = 0 if config.pad_token_id is None else config.pad_token_id
        self.width: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.vocabulary_size: int = config.vocab_size
        takes_segments = self.family.segments
        self.num_segments: int = getattr(config, "type_vocab_size", 0) if takes_segments else 0
        self._first_position = self.pad_id + 1 if self.family.positions == "behind padding" else 0
        limit = getattr(config, "max_position_embeddings", None)
        self.max_length: int | None = None if limit is None else limit - self._first_position
        self.reason = _why_padded(model, self.family, batching)
        self.packed = not self.reason
        self._routed = self.packed and self.family.packs == "interface"
        self._checkpointed = [m for m in model.modules() if hasattr(m, "gradient_checkpointing")]

    @classmethod
    def from_pretrained(
        cls, name: str, *, revision: str | None = None, batching: Batching = "auto",
        trust_remote_code: bool = False,
    ) -> Encoder:  # fmt: skip
        """The encoder of a hub id, short name or folder, in float32, without its pooler."""
        where = {"revision": revision, "trust_remote_code": trust_remote_code}
        config = load_config(name, **where)
        model = load_weights(AutoModel, name, config, **where)
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # reads the first token of a row: of no use without padding
        return cls(model, batching)

    def forward(self, batch: Batch) -> Tensor:
        """Last hidden states [T, H] of a batch of T tokens."""
        return self._states(batch, lambda output: [output.last_hidden_state])[0]

    def layers(self, batch: Batch) -> Tensor:
        """Hidden states [L+1, T, H]: the embeddings' output, then each layer's."""
        states = self._states(batch, lambda out: out.hidden_states, output_hidden_states=True)
        return torch.stack(states)

    def check(self, batch: Batch) -> None:
        """Raise ValueError for what the model has no embedding for.

        Ids are looked at only on the CPU, where that costs no wait; check before ``batch.to``.
        """
        if self.max_length is not None and batch.max_seqlen > self.max_length:
            raise UserError(
                f"a sequence of {batch.max_seqlen} tokens exceeds the {self.max_length} positions "
                "of the model: lower --max-length."
            )
        if batch.input_ids.is_cpu:
            _check_range("input id", batch.input_ids, self.vocabulary_size)
            if self.num_segments > 1 and batch.segment_ids is not None:
                _check_range("segment id", batch.segment_ids, self.num_segments)

    def packed_inputs(self, batch: Batch) -> dict[str, Any]:
        """The keywords of the model's forward for one packed row [1, T]."""
        layout = PackedLayout(batch.cu_seqlens, batch.lengths)
        inputs: dict[str, Any] = {
            "input_ids": batch.input_ids[None],
            "position_ids": (batch.position_ids + self._first_position)[None],
            "layout": layout,
        }
        if self.family.segments:
            inputs["token_type_ids"] = self._segments(batch)[None]
        return inputs

    def padded_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """The keywords of the model's forward for N padded rows, [N, longest] each."""
        place = flat_places(batch)
        shape = (len(batch.lengths), batch.max_seqlen)
        inputs = {
            "input_ids": in_rows(batch.input_ids, place, shape, self.pad_id),
            "attention_mask": in_rows(torch.ones_like(batch.input_ids), place, shape, 0),
        }
        if self.family.positions is not None:
            columns = torch.arange(shape[1], device=place.device) + self._first_position
            inputs["position_ids"] = columns.expand(shape)
        if self.family.segments:
            inputs["token_type_ids"] = in_rows(self._segments(batch), place, shape, 0)
        return inputs

    def freeze(self, what: str | int) -> int:
        """Stop training of ``"embeddings"``, of them and the n lowest layers (n), or of ``"all"``
        that makes the hidden states; returns how many parameters (numbers) that is.

        A pooler stays trainable: it comes after the hidden states, as heads do. ``"none"`` is 0.
        """
        if what == "none":
            return 0
        if what not in ("embeddings", "all") and not str(what).isdecimal():
            raise UserError(f"freeze must be none, embeddings, all or a number, not {what!r}")
        depth = {"embeddings": 0, "all": self.top_depth}.get(str(what))
        depth = int(what) if depth is None else depth
        if depth > self.top_depth or (depth == self.top_depth and what != "all"):
            raise UserError(f"cannot freeze {what} layers: the model has {self.top_depth - 1}")
        frozen = [
            parameter for name, parameter in self.model.named_parameters()
            if self.depth_of(name) <= depth and not name.startswith("pooler.")
        ]  # fmt: skip
        for parameter in frozen:
            parameter.requires_grad_(False)
        return sum(parameter.numel() for parameter in frozen)

    @property
    def top_depth(self) -> int:
        """The depth of everything above the layers: L+1, or with shared layers their number + 1."""
        return getattr(self.model.config, "num_hidden_groups", self.num_layers) + 1

    def depth_of(self, parameter_name: str) -> int:
        """How far up a parameter of the base model lies, for layer-wise learning rates.

        0 for embeddings (and what belongs to them: projections, relative positions), 1..L for
        layers, L+1 above them. ALBERT's shared layers count once.
        """
        name = parameter_name.removeprefix("model.")
        depth = depth_in_family(self.model.config.model_type, name)
        return self.top_depth if depth is None else depth

    @property
    def _recomputes(self) -> bool:
        """Whether layers run again in the backward pass (gradient checkpointing), where our
        attention is not in place."""
        return (
            self._routed
            and self.model.training
            and torch.is_grad_enabled()
            and any(module.gradient_checkpointing for module in self._checkpointed)
        )

    def _states(
        self, batch: Batch, taken: Callable[[Any], Sequence[Tensor]], **settings: Any
    ) -> list[Tensor]:
        """What is ``taken`` of the model's output, flat: [T, H] each."""
        self.check(batch)
        if self.packed and not self._recomputes:
            num_tokens = len(batch.input_ids)
            batch = rounded(batch, self.max_length) if pays(batch) else batch
            return [state[0, :num_tokens] for state in taken(self._packed(batch, **settings))]
        groups = list(length_groups(batch))
        parts = [
            [flat(state, group.batch) for state in taken(self._padded(group.batch, **settings))]
            for group in groups
        ]
        places = [group.tokens for group in groups]
        return [in_order(states, places) for states in zip(*parts, strict=True)]

    def _packed(self, batch: Batch, **settings: Any) -> Any:
        inputs = self.packed_inputs(batch)
        if not self._routed:
            return deberta.run(self.model, **inputs, **settings)
        with attention.packed_attention(self.model.config):
            return self.model(**inputs, **settings)

    def _padded(self, batch: Batch, **settings: Any) -> Any:
        inputs = self.padded_inputs(batch)
        device = batch.input_ids.device.type
        single = (
            contextlib.nullcontext() if self.family.half else torch.autocast(device, enabled=False)
        )
        with single:
            return self.model(**inputs, **settings)

    def _segments(self, batch: Batch) -> Tensor:
        if batch.segment_ids is None or self.num_segments <= 1:
            return torch.zeros_like(batch.input_ids)
        return batch.segment_ids


def _check_range(what: str, ids: Tensor, size: int) -> None:
    lowest, highest = (int(bound) for bound in ids.aminmax())
    if lowest < 0 or highest >= size:
        raise UserError(
            f"{what} {lowest if lowest < 0 else highest} is outside the model's 0..{size - 1}: "
            "tokenizer and model do not belong together."
        )


def _unlisted(model: PreTrainedModel) -> Family:
    takes_segments = "token_type_ids" in inspect.signature(model.forward).parameters
    return Family(packs=None, positions=None, segments=takes_segments)


def _why_padded(model: PreTrainedModel, family: Family, batching: Batching) -> str:
    """Why a model runs padded, empty where it runs packed."""
    if batching not in ("auto", "packed", "padded"):
        raise UserError(f"batching must be auto, packed or padded, not {batching!r}")
    if batching == "padded":
        return "batching is padded"
    kind = model.config.model_type
    reason = ""
    if kind not in FAMILIES:
        no_test = f"no test shows that {kind} models give the same results packed"
        reason = UNPACKABLE.get(kind, no_test)
    elif family_of(model) is None:
        reason = f"{type(model).__name__} is not the {kind} model that transformers has"
    elif family.packs == "forward":
        reason = deberta.why_not(model)
    elif not (family.packs and model.is_backend_compatible()):
        reason = f"{kind} models compute attention themselves, not through the attention interface"
    elif getattr(model.config, "is_decoder", False):
        reason = "the model is configured as a decoder"
    if reason and batching == "packed":
        raise UserError(f"--batching packed: {reason}; use auto or padded.")
    return reason
