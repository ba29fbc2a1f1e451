"""DeBERTa v2 (v3) on a packed row: all options of the configuration, lengths, dropout; MPNet."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from finetune.models import deberta
from finetune.models.deberta import rows_of_distances
from finetune.models.encoder import Encoder
from finetune.models.packing import TOKEN_MULTIPLE
from finetune.preprocessing.batching import pack
from tests import tiny
from tests.models.parity import CLOSE, LENGTHS, assert_equal, encodings, plain_inputs


def assert_equals_plain(lengths=LENGTHS, family: str = "deberta-v2", **changes) -> None:
    """Hidden states of all layers and the gradient are those of the padded Hugging Face model."""
    model = tiny.model(family, **changes).double()
    tolerance = CLOSE.get(family, 1e-12)
    reference, made = copy.deepcopy(model), encodings(model, lengths)
    encoder, inputs = Encoder(model), plain_inputs(model, made)
    states = encoder.layers(pack(made))
    kept = inputs["attention_mask"].bool()
    expected = reference(**inputs, output_hidden_states=True).hidden_states
    expected = torch.stack([state[kept] for state in expected])
    assert_equal(states, expected, model, reference, tolerance)


ATTENTION_TYPES = (["c2p", "p2c"], ["c2p"], ["p2c"], [])


@pytest.mark.parametrize("types", ATTENTION_TYPES)
@pytest.mark.parametrize("shared", [True, False])
def test_options(types: list[str], shared: bool) -> None:
    for absolute, segments, norm in (  # each pair of values
        (True, 0, "none"),
        (True, 2, "layer_norm"),
        (False, 0, "layer_norm"),
        (False, 2, "none"),
    ):
        assert_equals_plain(
            (9, 24, 3, 10),
            pos_att_type=types,
            share_att_key=shared,
            norm_rel_ebd=norm,
            position_biased_input=absolute,
            type_vocab_size=segments,
        )


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({"embedding_size": 24}, LENGTHS),
        ({"relative_attention": False}, (64, 2, 64)),
        ({"relative_attention": False, "pos_att_type": None}, (1, 2)),
        ({"max_relative_positions": 20, "position_buckets": -1}, (64, 2, 64)),
        ({"max_relative_positions": 20, "position_buckets": 8}, LENGTHS),
        ({"position_buckets": -1}, (7, 7)),
        # distances on both sides of half the buckets, from which on they are shared
        *(({"position_buckets": n}, (64, 5, 1, 63, 64, 9, 8, 10)) for n in (8, 16, 64, 128, 200)),
        ({"position_buckets": 16}, (64,)),
        ({"position_buckets": 8}, (1, 2)),
        ({"position_buckets": 16}, (9, 8, 10)),
        (  # the buckets of the published models
            {"position_buckets": 256, "max_position_embeddings": 512, "num_hidden_layers": 1},
            (300, 17, 262),
        ),
    ],
)
def test_further_options(changes: dict, lengths: tuple[int, ...]) -> None:
    assert_equals_plain(lengths, **changes)


@pytest.mark.parametrize("lengths", [(200, 17, 170), (140, 140), (1, 2), (16, 16), (31, 33)])
def test_distances_of_mpnet_share_buckets(lengths: tuple[int, ...]) -> None:
    assert_equals_plain(lengths, "mpnet", max_position_embeddings=256)


def test_sequences_of_one_token() -> None:
    """Attention has no choice among one, so that its gradients are zero: the forward alone."""
    model = tiny.model("deberta-v2").double()
    made = encodings(model, (1, 1, 1))
    expected = model(**plain_inputs(model, made)).last_hidden_state[:, 0]
    torch.testing.assert_close(Encoder(model)(pack(made)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("buckets", "limit"), [(256, 512), (16, 64), (8, 64), (32, 50), (-1, 40), (-1, 20)]
)
def test_distances_have_the_rows_of_the_model(buckets: int, limit: int) -> None:
    span = buckets if buckets > 0 else limit
    for longest in (1, 2, 5, 16, 20, 33, 40, 50, 64, 127, 128, 129, 130, 255, 300, 511, 512):
        if longest > limit + 10:  # without buckets, distances out of span share the last row
            break
        layer = torch.empty(1, longest, 1)
        pairs = build_relative_position(layer, layer, buckets, limit)[0]  # [L, L]
        pairs = (pairs + span).clamp(0, 2 * span - 1)
        expected = torch.cat([pairs[0].flip(0), pairs[1:, 0]])  # distances -(L-1) .. L-1
        assert rows_of_distances(longest, span, buckets, limit).tolist() == expected.tolist()


def test_only_reachable_positions_are_projected() -> None:
    model = tiny.model("deberta-v2", position_buckets=32)
    seen: list[int] = []
    project = model.encoder.layer[0].attention.self.query_proj
    project.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    encoder = Encoder(model)
    encoder(pack(encodings(model, (5, 9, 3))))
    assert seen == [17, 2 * TOKEN_MULTIPLE - 1]
    encoder(pack(encodings(model, (64,))))
    assert seen[2:] == [64, 2 * 32 - 1]


@pytest.mark.parametrize("max_waste", [0.0, 1.0, 100.0])
def test_groups_of_any_waste_give_the_same(max_waste: float) -> None:
    """Accelerators get few large groups, the CPU many of near-equal lengths."""
    model = tiny.model("deberta-v2").double()
    encoder, batch = Encoder(model), pack(encodings(model))
    inputs = encoder.packed_inputs(batch)
    layout = dataclasses.replace(inputs.pop("layout"), max_waste=max_waste)
    coarse = deberta.hidden_states(model, model.embeddings(**inputs)[0], layout)[-1]
    torch.testing.assert_close(coarse, encoder(batch), rtol=0, atol=1e-12)


LAYERS = (
    "embeddings.dropout",
    "pos_dropout",
    "self.dropout",
    "attention.output.dropout",
    "0.output.dropout",
)


def spread(run: Callable[[], Tensor], copies: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of hidden states [T, H] over 250 draws of dropout.

    Each run has the hidden states of so many copies of the same sequences.
    """
    with torch.no_grad():
        found = torch.cat([run().unflatten(0, (copies, -1)) for _ in range(250 // copies)])
    return found.mean(0), found.std(0)


@pytest.mark.parametrize("layer", LAYERS)
def test_dropout_is_where_and_as_often_as_in_the_model(layer: str) -> None:
    model = tiny.model("deberta-v2", num_hidden_layers=1, initializer_range=0.1).train()
    rates = {n: m for n, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert sum(name.endswith(layer) for name in rates) == 1
    for name, module in rates.items():
        module.p = 0.3 if name.endswith(layer) else 0.0
    copies = 1 if layer == "pos_dropout" else 25  # of which all sequences share one draw
    made = encodings(model, (7, 5, 7)) * copies
    encoder, batch = Encoder(copy.deepcopy(model)).train(), pack(made)
    inputs = plain_inputs(model, made)
    kept = inputs["attention_mask"].bool()
    mean, width = spread(lambda: encoder(batch), copies)
    their_mean, their_width = spread(lambda: model(**inputs).last_hidden_state[kept], copies)
    assert (mean - their_mean).abs().mean() < 0.1 * their_width.mean()
    assert abs(width.mean() / their_width.mean() - 1) < 0.05
    torch.testing.assert_close(width, their_width, rtol=0.5, atol=0.02)


def test_what_is_not_covered_is_padded() -> None:
    repeated = tiny.model("deberta-v2")
    repeated.z_steps = 2
    assert "more than once" in Encoder(repeated).padding_reason
    assert "p2p" in Encoder(tiny.model("deberta-v2", pos_att_type=["c2p", "p2p"])).padding_reason
    convolved = tiny.model("deberta-v2", conv_kernel_size=3, conv_act="gelu").double()
    encoder, made = Encoder(convolved), encodings(convolved)
    assert "convolution" in encoder.padding_reason
    inputs = plain_inputs(convolved, made)
    expected = convolved(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    torch.testing.assert_close(encoder(pack(made)), expected, rtol=0, atol=1e-12)


@pytest.mark.gpu
def test_packed_equals_padded_on_a_device() -> None:
    model = tiny.model("deberta-v2").cuda()
    batch = pack(encodings(model)).to("cuda")
    packed, padded = Encoder(model)(batch), Encoder(model, "padded")(batch)
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-4)
