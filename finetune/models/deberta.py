"""DeBERTa (v1, v2 and v3) on a packed row: its own layers, each sequence attending to itself alone.

The modelling code computes attention itself (He et al. 2021, arXiv:2006.03654, section 3.1): the
score of a pair of tokens i, j is that of their contents plus two of content and relative position,

    Q_i K_j + Q_i PK[i - j] + K_j PQ[i - j],    divided by sqrt(3 D),

with positions far apart sharing a bucket from v2 on. Here projections, norms and feed-forward run
on the T tokens, padding exists only inside attention, among sequences of near-equal length, and
only the relative positions within reach of the longest sequence are projected, once for all
sequences. All submodules are those of the Hugging Face model, which keeps its weights, names and
dropout.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from finetune.models.dropout import dropout as cheap_dropout
from finetune.models.grouping import order_of
from finetune.models.packing import Group, PackedLayout
from finetune.runtime.transfer import to_device

ACCELERATOR_WASTE = 1.0
"""Padding in attention off the CPU, as a share of the tokens: a call there costs more than rows."""


class Reach(NamedTuple):
    """The relative positions that sequences of up to L tokens can ask for.

    ``table`` [R, H] are their embeddings; ``rows`` [2L-1] says which one each distance -(L-1) ..
    L-1 has, None where each has its own, in this order.
    """

    table: Tensor
    rows: Tensor | None


def why_not(model: PreTrainedModel) -> str:
    """Why a model cannot run here, empty where it can."""
    from transformers import DebertaModel, DebertaV2Model

    config = model.config
    kinds = config.pos_att_type or []
    if type(model) not in (DebertaModel, DebertaV2Model):
        return f"{type(model).__name__} is not the {config.model_type} model that transformers has"
    if model.z_steps > 1:
        return "the model runs its last layer more than once"
    if config.model_type == "deberta" and model.encoder.layer[0].attention.self.talking_head:
        return "its attention heads mix their scores (talking_head)"
    if len({"c2p", "p2c"} & set(kinds)) != len(kinds):
        return f"its attention is of kinds {', '.join(kinds)}, not of c2p and p2c alone"
    return ""


def run(
    model: Any, *, input_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor,
    layout: PackedLayout, output_hidden_states: bool = False,
) -> BaseModelOutput:  # fmt: skip
    """A base model's forward for one packed row: ids [1, T] three times -> states [1, T, H]."""
    if input_ids.device.type != "cpu":
        layout = dataclasses.replace(layout, max_waste=ACCELERATOR_WASTE)
    hidden = embedded = model.embeddings(
        input_ids=input_ids, position_ids=position_ids, token_type_ids=token_type_ids
    )[0]  # [T, H]
    second = model.config.model_type == "deberta-v2"
    longest = max(group.longest for group in layout.groups)
    states, reach = [hidden], _reach(model.encoder, longest, second)
    for number, layer in enumerate(model.encoder.layer):
        attended = _attend(layer.attention.self, hidden, reach, layout, second)
        mixed = layer.attention.output(attended, hidden)
        hidden = layer.output(layer.intermediate(mixed), mixed)
        if number == 0 and second and model.encoder.conv is not None:
            hidden = _convolve(model.encoder.conv, embedded, hidden, layout)
        states.append(hidden)
    kept = tuple(state[None] for state in states) if output_hidden_states else None
    return BaseModelOutput(last_hidden_state=hidden[None], hidden_states=kept)


def _reach(encoder: Any, longest: int, second: bool) -> Reach | None:
    """The relative positions of sequences of up to L tokens; None where the model has none."""
    embeddings = encoder.get_rel_embedding()
    if embeddings is None:
        return None
    buckets = encoder.position_buckets if second else -1
    rows = rows_of_distances(longest, len(embeddings) // 2, buckets, encoder.max_relative_positions)
    first, last = int(rows[0]), int(rows[-1])
    own = bool((rows.diff() == 1).all())
    inner = None if own else to_device(rows - first, embeddings.device)
    return Reach(embeddings[first : last + 1], inner)


def rows_of_distances(longest: int, span: int, buckets: int, max_distance: int) -> Tensor:
    """Which of 2 * ``span`` relative embeddings each distance -(L-1) .. L-1 has: [2L-1], ascending.

    Distances up to half of ``buckets`` have one of their own; beyond that they share buckets that
    widen with their logarithm. ``buckets`` below 1: no buckets. What is out of span has the last.
    """
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(1 - longest, longest)
    if buckets > 0 and max_distance > 0:
        distances = make_log_bucket_position(distances, buckets, max_distance).long()
    return (distances + span).clamp(0, 2 * span - 1)


def _attend(
    module: Any, hidden: Tensor, reach: Reach | None, layout: PackedLayout, second: bool
) -> Tensor:
    """A layer's attention, up to its output projection: [T, H] -> [T, H]."""
    query, key, value = (_contents_v2 if second else _contents_v1)(module, hidden)
    scale = _scale(module)
    to_keys, to_queries = _position_tables(module, reach, second)
    query = query / scale
    to_queries = None if to_queries is None else to_queries / scale
    dropout = module.dropout.p if module.training else 0.0
    num_heads = query.shape[1]
    order = order_of(layout, num_heads, heads_first=True)
    columns = [order.there(tensor).split(order.sizes) for tensor in (query, key, value)]
    results = []
    for group, *rows in zip(layout.groups, *columns, strict=True):
        dense = [own.unflatten(0, (num_heads, -1)) for own in rows]  # [A, size * L, D]
        results.append(_attend_group(dense, to_keys, to_queries, group, dropout))
    return order.again(torch.cat(results)).view(len(hidden), -1)


def _contents_v1(module: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """Q, K and V of the contents [T, H] by one projection, which has no bias: 3 of [T, A, D]."""
    heads = module.num_attention_heads
    query, key, value = module.in_proj(hidden).unflatten(-1, (heads, -1)).chunk(3, dim=-1)
    return query + module.q_bias.view(heads, -1), key, value + module.v_bias.view(heads, -1)


def _contents_v2(module: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """Q, K and V of the contents [T, H]: 3 of [T, A, D]."""
    projections = (module.query_proj, module.key_proj, module.value_proj)
    return tuple(p(hidden).unflatten(-1, (module.num_attention_heads, -1)) for p in projections)


def _scale(module: Any) -> float:
    """sqrt(D times the kinds of scores), in float32 as the model computes it."""
    product = module.attention_head_size * (1 + len(module.pos_att_type))
    return float(torch.tensor(product, dtype=torch.float32).sqrt())


def _position_tables(
    module: Any, reach: Reach | None, second: bool
) -> tuple[Tensor | None, Tensor | None]:
    """PK for distances L-1 .. -(L-1), PQ for -(L-1) .. L-1: [A, D, 2L-1] each, None if unused."""
    if reach is None:
        return None, None
    table = module.pos_dropout(reach.table)  # [R, H]

    def projected(kind: str) -> Tensor:
        made = _position_projection(module, kind, second)(table)
        made = made if reach.rows is None else made.index_select(0, reach.rows)
        return made.unflatten(-1, (module.num_attention_heads, -1)).permute(1, 2, 0)

    to_keys = projected("c2p").flip(-1) if "c2p" in module.pos_att_type else None
    return to_keys, projected("p2c") if "p2c" in module.pos_att_type else None


def _position_projection(module: Any, kind: str, second: bool) -> nn.Module:
    """What makes PK (``"c2p"``) or PQ (``"p2c"``) of relative embeddings."""
    if not second:
        return module.pos_proj if kind == "c2p" else module.pos_q_proj
    if module.share_att_key:
        return module.key_proj if kind == "c2p" else module.query_proj
    return module.pos_key_proj if kind == "c2p" else module.pos_query_proj


def _attend_group(
    dense: list[Tensor], to_keys: Tensor | None, to_queries: Tensor | None,
    group: Group, dropout: float,
) -> Tensor:  # fmt: skip
    """Attention among the sequences of a group: [A, size * L, D] three times -> [A * size * L, D].

    ``to_keys`` and ``to_queries`` reach at least as far as the group's L; the middle is used.
    """
    sequences = (group.size, group.longest)
    query, key, value = (tensor.unflatten(1, sequences) for tensor in dense)  # [A, size, L, D]
    scores = query @ key.transpose(-1, -2)  # [A, size, L, L]
    if to_keys is not None:
        pairs = dense[0] @ _middle(to_keys, group.longest)  # [A, size * L, 2L-1]
        scores += _by_pair(pairs.unflatten(1, sequences))
    if to_queries is not None:
        pairs = dense[1] @ _middle(to_queries, group.longest)
        scores += _by_pair(pairs.unflatten(1, sequences)).transpose(-1, -2)
    if group.keys is not None:
        scores.masked_fill_(~group.keys[:, 0], float("-inf"))
    weights = cheap_dropout(scores.softmax(-1), dropout)
    return (weights.to(value.dtype) @ value).flatten(0, 2)


def _middle(table: Tensor, longest: int) -> Tensor:
    """The distances within L of a table of further ones: [A, D, M] -> [A, D, 2L-1]."""
    cut = (table.shape[-1] - (2 * longest - 1)) // 2
    return table[..., cut : table.shape[-1] - cut]


def _by_pair(scores: Tensor) -> Tensor:
    """[…, L, 2L-1] with the pair i, j in column L-1 + j - i of row i -> […, L, L], without a copy.

    The columns wanted shift by one from row to row, which is a matter of strides alone.
    """
    scores = scores.contiguous()
    *outer, length, _ = scores.shape
    *steps, row, _ = scores.stride()
    return scores.as_strided(
        (*outer, length, length), (*steps, row - 1, 1), scores.storage_offset() + length - 1
    )


def _convolve(layer: Any, embedded: Tensor, hidden: Tensor, layout: PackedLayout) -> Tensor:
    """The convolution beside the first layer (xlarge): the embeddings [T, H] and the layer's output
    [T, H] -> [T, H].

    It reads neighbouring tokens, so that the row is spread with zeros between sequences.
    """
    gap = layer.conv.kernel_size[0] // 2
    lengths = layout.cu_seqlens.diff().long()
    number = torch.arange(len(lengths), device=hidden.device)
    places = torch.arange(len(hidden), device=hidden.device)
    places = places + gap * torch.repeat_interleave(number, lengths, output_size=len(hidden))
    spread = len(hidden) + gap * (len(lengths) - 1)
    rows = (_spread(tensor, places, spread)[None] for tensor in (embedded, hidden))
    real = _spread(torch.ones_like(places), places, spread)[None]  # [1, T + gaps]
    return layer(*rows, real)[0].index_select(0, places)


def _spread(values: Tensor, places: Tensor, size: int) -> Tensor:
    """Values [T, …] at their places among zeros: [size, …]."""
    return values.new_zeros(size, *values.shape[1:]).index_copy(0, places, values)
