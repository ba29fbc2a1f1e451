"""Encoder: a Hugging Face text encoder over batches without padding.

Sequences share one packed row if the model's code allows it; other models run on padded rows
inside. Both give the same numbers.

The code of transformers' models passes few arguments on, so a forward pass also depends on these,
each of which is set for a ``with`` block and put back at its end:

- the name of the attention in the configuration (``packed_attention``), since layers look it up
  there. The layout of a packed row is an argument.
- the function of gradient checkpointing of each layer (``_same_in_backward``), since a layer that
  runs again in the backward pass needs the first one again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint
from transformers import AutoModel, PreTrainedModel

from finetune.models import deberta, mpnet
from finetune.models.attention import packed_attention
from finetune.models.bilstm import BILSTM, add_bilstm
from finetune.models.dropout import same_modes
from finetune.models.families import (
    FAMILIES,
    Family,
    depth_in_family,
    family_of,
    first_position,
    position_limit,
)
from finetune.models.graphs import EncoderGraphs
from finetune.models.loading import load_config, load_weights
from finetune.models.packing import (
    MAX_WASTE,
    MAX_WASTE_ON_DEVICE,
    PackedLayout,
    group_by_length,
    needs_round_size,
    with_round_size,
)
from finetune.models.padding import pad_rows, padded_index, take_sequences, unpad
from finetune.models.shapes import RowShape
from finetune.runtime.device import to_device
from finetune.types import Batch, UserError

ABOVE = ("pooler.", f"{BILSTM}.")
"""Names of a base model's submodules above its hidden states."""
MAX_PADDING, MAX_PADDING_ON_DEVICE = 0.15, 1.0
"""Padding in a group of padded rows as a fraction of its tokens: on a GPU, starting a forward pass
costs more than computing padding."""
Batching = Literal["auto", "padded"]
OWN_LAYERS: dict[Any, Any] = {"deberta": deberta, "mpnet": mpnet}
"""By ``Family.packing``, the modules that run the layers of a model on packed rows."""


class Encoder(nn.Module):
    """A pretrained encoder: a ``Batch`` of T tokens in, hidden states [T, H] out.

    Wrapping changes nothing of the model. Gradient checkpointing of the model works as ever.

    Args:
        model: A base model of transformers, such as ``AutoModel`` loads.
        batching: ``"auto"`` packs sequences where the model allows it, ``"padded"`` pads them in
            groups of near-equal length. The numbers are the same.

    Attributes:
        width: H, the size of hidden states.
        num_layers: L, the number of layers.
        max_length: Number of tokens that fit; None without limit.
        num_token_types: Number of token type ids; 0 or 1 if they make no difference.
        packed: Whether sequences share a packed row.
        padding_reason: Why sequences are padded; empty if they are packed.

    Examples:
        >>> from finetune import Encoder, SubwordTokenizer
        >>> tokenizer = SubwordTokenizer.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> encoder = Encoder.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> encoder(tokenizer(["A film.", "Dull."])).shape  # doctest: +SKIP
        torch.Size([10, 768])
    """

    def __init__(self, model: PreTrainedModel, batching: Batching = "auto") -> None:
        super().__init__()
        self.model = model
        add_bilstm(model)
        config = model.config
        self.pad_id: int = 0 if config.pad_token_id is None else config.pad_token_id
        self.family = family_of(model) or _probed_family(model, self.pad_id)
        if (setting := self.family.setting) and getattr(config, setting[0]) != setting[1]:
            raise UserError(
                f"{config.model_type} models need {setting[0]}={setting[1]!r} in their "
                f"configuration, not {getattr(config, setting[0])!r}: else the results of a "
                "sequence depend on others in its batch, or on chance."
            )
        self.width: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.vocabulary_size: int = config.vocab_size
        num_types = getattr(config, "type_vocab_size", 0)
        self.num_token_types: int = num_types if self.family.token_types else 0
        self._first_position = first_position(config, self.family)
        self.max_length = position_limit(config, self.family)
        self.padding_reason = _padding_reason(model, self.family, batching)
        self.packed = not self.padding_reason
        self.graphs: EncoderGraphs | None = None
        """Runs the passes of packed rows, from CUDA graphs where it can; None: they run plainly."""
        self.prediction_graphs: EncoderGraphs | None = None
        """Those of the last predictions, for rows of similar sizes."""
        self.checkpointable: list[Any] = [
            module for module in model.modules() if hasattr(module, "gradient_checkpointing")
        ]
        """The layers that support gradient checkpointing; to find them takes time in each step."""

    @classmethod
    def from_pretrained(cls, name: str, *, batching: Batching = "auto", **options: Any) -> Encoder:
        """Load an encoder in float32, without its pooler.

        Args:
            name: Hub id, short name such as ``roberta-base``, or folder.
            batching: As for the class.
            options: As in ``load_config``, such as ``revision``.

        Raises:
            UserError: The model does not exist, is not an encoder, or its weights do not match.
        """
        model = load_weights(AutoModel, name, load_config(name, **options), **options)
        remove_pooler(model)
        return cls(model, batching)

    def forward(
        self, batch: Batch, layers: Sequence[int] = (), vectors: Tensor | None = None
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Compute the last hidden states [T, H] of a batch of T tokens, after the top layers.

        Args:
            batch: The batch.
            layers: Numbers of layers (as in ``layers``) whose hidden states are returned, too: the
                result is then the last hidden states and a list of these, [T, H] each.
            vectors: [T, E] to read in place of the embeddings of the ids.
        """
        hidden, *states = self._run(batch, layers, vectors)
        if (bilstm := self.model._modules.get(BILSTM)) is not None:
            hidden = bilstm(hidden, batch.lengths)
        return (hidden, states) if layers else hidden

    def layers(self, batch: Batch, numbers: Sequence[int] | None = None) -> Tensor:
        """Compute hidden states [L+1, T, H]: the embeddings' output, then each layer's.

        With ``numbers`` only those [len(numbers), T, H]; negative ones count from the last.
        """
        chosen = range(self.num_layers + 1) if numbers is None else numbers
        return torch.stack(self._run(batch, chosen)[1:])

    def check_batch(self, batch: Batch) -> None:
        """Raise ``UserError`` if a batch has lengths or ids that the model has no embedding for."""
        if not isinstance(batch, Batch):
            raise UserError(
                f"encoders and heads read a Batch, not {type(batch).__name__}: make one of texts "
                "with a SubwordTokenizer, tokenizer([text, …])."
            )
        if self.max_length is not None and batch.max_seqlen > self.max_length:
            raise UserError(
                f"a sequence of {batch.max_seqlen} tokens exceeds the {self.max_length} positions "
                "of the model: lower --max-length."
            )
        batch = batch.host or batch
        if batch.input_ids.is_cpu:  # reading them from a device would wait for it
            _check_range("input id", batch.input_ids, self.vocabulary_size)
            if self.num_token_types > 1 and batch.token_type_ids is not None:
                _check_range("token type id", batch.token_type_ids, self.num_token_types)

    def packed_inputs(
        self, batch: Batch, vectors: Tensor | None = None, shape: RowShape | None = None
    ) -> dict[str, Any]:
        """Build the keyword arguments of the model's forward pass for one packed row [1, T].

        ``vectors`` are as for ``forward``; a last, filling sequence may lack them. ``shape`` is of
        a row that is filled up to it; a batch without ``lengths`` stands for all of this shape.
        """
        inputs: dict[str, Any] = {"input_ids": batch.input_ids[None]}
        if vectors is not None:
            filler = len(batch.input_ids) - len(vectors)
            inputs = {"inputs_embeds": pad(vectors, (0, 0, 0, filler))[None]}
        waste = MAX_WASTE if batch.input_ids.is_cpu else MAX_WASTE_ON_DEVICE
        inputs |= {
            "position_ids": (batch.position_ids + self._first_position)[None],
            "layout": PackedLayout(batch.cu_seqlens, batch.lengths, waste, shape),
        }
        if self.family.token_types:
            inputs["token_type_ids"] = self._token_type_ids(batch)[None]
        return inputs

    def in_padded_rows(
        self,
        compute: Callable[..., list[Tensor]],
        batch: Batch,
        vectors: Tensor | None = None,
        *,
        per_token: bool = True,
    ) -> list[Tensor]:
        """Compute groups of a batch in padded rows, and join the results in its order.

        ``compute`` gets the arguments of the model's forward pass, and returns tensors of tokens
        [N, longest, X], which become [T, X], or else of sequences [N, X].
        """
        device, sequences = batch.input_ids.device, list(range(len(batch.lengths)))
        waste = MAX_PADDING if device.type == "cpu" else MAX_PADDING_ON_DEVICE
        groups = list(group_by_length(batch.lengths, 0.0 if self.family.reads_padding else waste))
        single_precision = torch.autocast(device.type, enabled=False)
        parts, indices = [], []
        for members in groups if len(groups) > 1 else [sequences]:
            part, tokens = take_sequences(batch, members)
            rows = None if vectors is None else vectors.index_select(0, tokens)
            inputs = self.padded_inputs(part, rows)
            with contextlib.nullcontext() if self.family.half_precision else single_precision:
                results = compute(**inputs)
            parts.append([unpad(r, part) for r in results] if per_token else results)
            indices.append(tokens if per_token else to_device(torch.tensor(members), device))
        order = torch.cat(indices).argsort()
        return [torch.cat(states).index_select(0, order) for states in zip(*parts, strict=True)]

    def padded_inputs(self, batch: Batch, vectors: Tensor | None = None) -> dict[str, Tensor]:
        """Build the keyword arguments of the model's forward pass for padded rows [N, longest]."""
        index = padded_index(batch)
        shape = (len(batch.lengths), batch.max_seqlen)
        inputs = {"input_ids": pad_rows(batch.input_ids, index, shape, self.pad_id)}
        if vectors is not None:
            inputs = {"inputs_embeds": pad_rows(vectors, index, shape, 0)}
        inputs["attention_mask"] = pad_rows(torch.ones_like(batch.input_ids), index, shape, 0)
        if self.family.positions is not None:
            columns = torch.arange(shape[1], device=index.device) + self._first_position
            inputs["position_ids"] = columns.expand(shape)
        if self.family.token_types:
            inputs["token_type_ids"] = pad_rows(self._token_type_ids(batch), index, shape, 0)
        return inputs

    def freeze(self, what: str | int) -> int:
        """Stop training a part of the model; return the number of frozen scalar parameters.

        The part is ``"none"``, ``"embeddings"``, a number of layers (from the lowest, with the
        embeddings) or ``"all"`` below the hidden states. A pooler and top layers stay trainable.
        """
        depths = {"none": -1, "embeddings": 0, "all": self.top_depth}
        depth = depths[what] if what in depths else int(what)
        if what not in depths and not 0 <= depth < self.top_depth:
            raise UserError(f"cannot freeze {what} layers: the model has {self.top_depth - 1}")
        frozen = [
            parameter
            for name, parameter in self.model.named_parameters()
            if self.depth_of(name) <= depth and not name.startswith(ABOVE)
        ]
        for parameter in frozen:
            parameter.requires_grad_(False)
        return sum(parameter.numel() for parameter in frozen)

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters of the model below the hidden states, by name."""
        return {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and not name.startswith(ABOVE)
        }

    @property
    def top_depth(self) -> int:
        """The depth of everything above the layers: L+1; shared layers count once."""
        return int(getattr(self.model.config, "num_hidden_groups", self.num_layers)) + 1

    def depth_of(self, parameter_name: str) -> int:
        """The depth of a base model's parameter: 0 embeddings, 1..L layers, L+1 above."""
        name = parameter_name.removeprefix("model.")
        depth = depth_in_family(self.model.config.model_type, name)
        return self.top_depth if depth is None else depth

    def _run(
        self, batch: Batch, layers: Sequence[int], vectors: Tensor | None = None
    ) -> list[Tensor]:
        self.check_batch(batch)
        if self.packed:
            if self.graphs is not None and vectors is None:
                states = self.graphs(batch, layers)
                if states is not None:
                    return states
            row = batch
            if needs_round_size(batch, self.model.dtype):
                row = with_round_size(batch, self.max_length)
            states = self.packed_states(row, layers, vectors)
            return [state[: len(batch.input_ids)] for state in states]
        settings: dict[str, Any] = {"output_hidden_states": True} if layers else {}

        def compute(**inputs: Tensor) -> list[Tensor]:
            return _selected(self.model(**inputs, **settings), layers)

        return self.in_padded_rows(compute, batch, vectors)

    def packed_states(
        self,
        row: Batch,
        layers: Sequence[int] = (),
        vectors: Tensor | None = None,
        *,
        shape: RowShape | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> list[Tensor]:
        """Compute the last hidden states [T, H] of a packed row, and those of ``layers``.

        ``vectors`` are as for ``forward``, ``shape`` as for ``packed_inputs``. ``weights`` by name
        are read in place of the model's parameters.
        """
        inputs = self.packed_inputs(row, vectors, shape)
        attention = partial(packed_attention, self.model.config)
        with self._same_in_backward(attention):
            if own_layers := OWN_LAYERS.get(self.family.packing):
                layout, embeddings = inputs.pop("layout"), self.model.get_submodule("embeddings")
                states = own_layers.hidden_states(self.model, embeddings(**inputs)[0], layout)
                return [states[number] for number in (-1, *layers)]
            if layers:
                inputs["output_hidden_states"] = True
            with attention():
                if weights is None:
                    output = self.model(**inputs)
                else:
                    output = functional_call(self.model, dict(weights), (), inputs)
        return [state[0] for state in _selected(output, layers)]

    @contextlib.contextmanager
    def _same_in_backward(
        self, attention: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> Iterator[None]:
        layers: list[Any] = []
        if self.model.training and torch.is_grad_enabled():
            layers = [layer for layer in self.checkpointable if layer.gradient_checkpointing]

        def contexts() -> tuple[Any, Any]:
            return contextlib.nullcontext(), attention()

        run = partial(checkpoint, use_reentrant=False, context_fn=contexts)
        before = [layer._gradient_checkpointing_func for layer in layers]
        for layer in layers:
            layer._gradient_checkpointing_func = run
        try:
            yield
        finally:
            for layer, function in zip(layers, before, strict=True):
                layer._gradient_checkpointing_func = function

    def _token_type_ids(self, batch: Batch) -> Tensor:
        if batch.token_type_ids is None or self.num_token_types <= 1:
            return torch.zeros_like(batch.input_ids)
        return batch.token_type_ids


@contextlib.contextmanager
def checkpointed_layers(encoder: Encoder) -> Iterator[None]:
    """Turn gradient checkpointing on for a ``with`` block; UserError if the model has none."""
    model_type = encoder.model.config.model_type
    layers = encoder.checkpointable
    if not (encoder.model.supports_gradient_checkpointing and layers):
        raise UserError(
            f"--gradient-checkpointing: transformers has none for {model_type} models: leave it "
            "out, or lower --max-tokens."
        )
    before = [layer.gradient_checkpointing for layer in layers]
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.gradient_checkpointing = value


def remove_pooler(model: Any) -> None:
    """Remove the pooler of a base model: it reads the first token of a row, useless when packed."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = nn.Identity()  # not None, which some models would call


def _probed_family(model: Any, pad_id: int) -> Family:
    takes_token_types = "token_type_ids" in inspect.signature(model.forward).parameters
    family = Family(positions=None, token_types=takes_token_types)
    ids = torch.arange(16, device=model.device).view(2, 8) % model.config.vocab_size
    padded = ids.index_fill(1, torch.arange(5, 8, device=ids.device), pad_id)
    padded[0] = ids[0]
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    model_type = model.config.model_type
    try:
        with torch.no_grad(), same_modes(model):
            model.eval()
            among_longer = model(input_ids=padded, attention_mask=mask).last_hidden_state[1, :5]
            among_equal = model(input_ids=ids[:, :5], attention_mask=mask[:, :5])
            alone = model(input_ids=ids[1:, :5], attention_mask=mask[1:, :5]).last_hidden_state[0]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        detail = f"{' '.join(str(error).split()):.200}"
        raise UserError(f"{model_type} models do not run on token ids alone: {detail}") from error
    tolerance = max(1e-3, torch.finfo(alone.dtype).eps ** 0.5) * float(alone.abs().max())
    if not torch.allclose(among_equal.last_hidden_state[1], alone, rtol=0, atol=tolerance):
        raise UserError(
            f"{model_type} models cannot be batched: sequences of a batch affect each other."
        )
    if torch.allclose(among_longer, alone, rtol=0, atol=tolerance):
        return family
    return dataclasses.replace(family, reads_padding="forward pass, as a probe shows")


def _selected(output: Any, layers: Sequence[int]) -> list[Tensor]:
    return [output.last_hidden_state, *(output.hidden_states[i] for i in layers)]


def _check_range(name: str, ids: Tensor, size: int) -> None:
    lowest, highest = (int(bound) for bound in ids.aminmax())
    if lowest < 0 or highest >= size:
        raise UserError(
            f"{name} {lowest if lowest < 0 else highest} is outside the model's 0..{size - 1}: "
            "tokenizer and model do not belong together."
        )


def _padding_reason(model: PreTrainedModel, family: Family, batching: Batching) -> str:
    if batching not in ("auto", "padded"):
        raise UserError(f"batching must be auto or padded, not {batching!r}")
    if batching == "padded":
        return "batching is padded"
    model_type = model.config.model_type
    if model_type not in FAMILIES:
        return f"no test shows that {model_type} models give the same results packed"
    if family_of(model) is None:
        return f"{type(model).__name__} is not the {model_type} model that transformers has"
    if family.packing == "deberta":
        return deberta.unsupported_reason(model)
    if family.packing != "mpnet" and not (family.packing and model.is_backend_compatible()):
        return f"{model_type} models have no forward pass for packed rows"
    is_decoder = getattr(model.config, "is_decoder", False)
    return "the model is configured as a decoder" if is_decoder else ""
