"""Every family through the Encoder equals plain padded Hugging Face, forward and gradient."""

from __future__ import annotations

import copy

import pytest
import torch

from finetune.models import attention
from finetune.models.encoder import Encoder
from finetune.models.packing import TOKEN_MULTIPLE, needs_round_size, with_round_size
from finetune.preprocessing.batching import pack
from finetune.types import TokenSequence, UserError
from tests import tiny
from tests.models.parity import CLOSE, assert_equal, encodings, plain_inputs


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_layers_equal_hidden_states(family: str) -> None:
    model = tiny.model(family).double()
    reference, made = copy.deepcopy(model), encodings(model)
    encoder, batch = Encoder(model), pack(made)
    states = encoder.layers(batch)
    inputs = plain_inputs(reference, made)
    expected = reference(**inputs, output_hidden_states=True).hidden_states
    assert states.shape == (encoder.num_layers + 1, len(batch.input_ids), encoder.width)
    for mine, theirs in zip(states, expected, strict=True):
        kept = theirs[inputs["attention_mask"].bool()]
        torch.testing.assert_close(mine, kept, rtol=0, atol=CLOSE.get(family, 1e-12))
    torch.testing.assert_close(states[-1], encoder(batch), rtol=0, atol=1e-12)


def test_states_are_kept_only_where_some_are_asked_for() -> None:
    model = tiny.model()
    encoder, batch, kept = Encoder(model), pack(encodings(model)), []
    model.register_forward_hook(lambda *given: kept.append(given[-1].hidden_states is not None))
    hidden, states = encoder(batch, [0, 2])
    assert len(states) == 2 and torch.equal(hidden, encoder(batch))
    assert kept == [True, False]


@pytest.mark.parametrize("family", tiny.PACKED)
def test_a_round_number_of_tokens_changes_nothing(family: str, monkeypatch) -> None:
    """In bfloat16 on the CPU one more sequence makes it round."""
    model = tiny.model(family).double()
    reference, made = Encoder(copy.deepcopy(model)), encodings(model)
    encoder, batch = Encoder(model), pack(made)
    expected = reference(batch)
    assert len(batch.input_ids) % TOKEN_MULTIPLE
    sizes: set[int] = set()
    table = model.get_input_embeddings()
    table.register_forward_hook(lambda layer, inputs, out: sizes.add(out.shape[-2]))
    monkeypatch.setattr("finetune.models.encoder.needs_round_size", lambda *_: True)
    hidden = encoder(batch)
    assert sizes == {-(-len(batch.input_ids) // TOKEN_MULTIPLE) * TOKEN_MULTIPLE}
    assert_equal(hidden, expected, model, reference.model, CLOSE.get(family, 1e-12))


def test_only_half_precision_on_the_cpu_is_rounded() -> None:
    batch = pack(encodings(tiny.model("bert")))
    assert needs_round_size(batch, torch.bfloat16)
    assert not needs_round_size(batch, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert needs_round_size(batch, torch.float32)
        with torch.autocast("cpu", enabled=False):
            assert not needs_round_size(batch, torch.float32)


def test_numbers_of_tokens_are_rounded_by_few() -> None:
    made = [encoding for _ in range(40) for encoding in encodings(tiny.model("bert"))]
    sizes, lengths = set(), []
    for number in range(1, len(made)):
        batch = pack(made[:number])
        larger = with_round_size(batch)
        size, least = len(larger.input_ids), len(batch.input_ids)
        assert 0 <= size - least < max(TOKEN_MULTIPLE, least / 32) and sum(larger.lengths) == size
        assert int(larger.cu_seqlens[-1]) == size == len(larger.position_ids)
        sizes.add(size)
        lengths.append(least)
    assert len(sizes) <= 32 * 2 + max(lengths) / 16
    short = with_round_size(pack(made[:1]), max_length=3)
    assert max(short.lengths[1:], default=0) < 3, "no longer than the positions of the model"


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(UserError, match="read a Batch, not list: make one of texts"):
        Encoder(tiny.model("bert"))(["a text"])  # type: ignore[arg-type]


def test_plain_attention_on_a_packed_row_is_what_must_not_happen() -> None:
    """Trap 1: without a layout, tokens of one sequence would see the others."""
    model = tiny.model("bert").double()
    encoder, batch = Encoder(model), pack(encodings(model))
    inputs = encoder.packed_inputs(batch)
    layout = inputs.pop("layout")
    with (
        attention.packed_attention(model.config),
        pytest.raises(ValueError, match="without its layout"),
    ):
        model(**inputs)
    mixed = model(**inputs).last_hidden_state[0]
    assert (mixed - encoder(batch)).abs().max() > 0.1
    assert layout.max_seqlen == 62


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_wrapping_changes_nothing_of_the_model(family: str, implementation: str) -> None:
    """Trap 2: configuration, classes, identities and modes, also after an error inside."""
    model = tiny.model(family)
    if family in tiny.PACKED and "deberta" not in family:
        model.set_attn_implementation(implementation)
    modules, config = dict(model.named_modules()), copy.deepcopy(model.config)
    types = {name: type(module) for name, module in modules.items()}
    setting, keys = model.config._attn_implementation, list(model.state_dict())
    encoder = Encoder(model)
    encoder(pack(encodings(model)))
    model.get_input_embeddings().register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encoder(pack(encodings(model)))
    assert dict(model.named_modules()) == modules
    assert {name: type(module) for name, module in modules.items()} == types
    assert not any(module.training for module in modules.values())
    assert model.config.to_dict() == config.to_dict()
    assert model.config._attn_implementation == setting and list(model.state_dict()) == keys


def test_threads_share_a_model() -> None:
    config = tiny.model("bert").config
    with attention.packed_attention(config):
        with attention.packed_attention(config):
            assert config._attn_implementation == attention.NAME
        assert config._attn_implementation == attention.NAME
    assert config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_compiler_changes_nothing(family: str) -> None:
    model = tiny.model(family).double()
    encoder, batch = Encoder(model), pack(encodings(model))
    compiled = torch.compile(encoder, backend="eager")
    torch.testing.assert_close(
        compiled(batch), encoder(batch), rtol=0, atol=CLOSE.get(family, 1e-12)
    )


@pytest.mark.parametrize("family", tiny.PADDED)
def test_families_that_cannot_pack(family: str) -> None:
    """Trap 2: setting the implementation on them would only warn."""
    model = tiny.model(family)
    encoder = Encoder(model)
    assert not encoder.packed
    assert family in encoder.padding_reason
    with pytest.raises(ValueError, match="auto or padded"):
        Encoder(model, "flat")


def test_padded_families_run_in_groups_of_near_equal_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, shapes = Encoder(tiny.model("squeezebert")), []
    plain = encoder.model.forward

    def watched(**inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return plain(**inputs)

    monkeypatch.setattr(encoder.model, "forward", watched)
    batch = pack(encodings(encoder.model, (50, 3, 49, 4, 20, 3)))
    encoder(batch)
    assert shapes == [(2, 3), (1, 4), (1, 20), (2, 50)]
    assert sum(rows * longest for rows, longest in shapes) <= 1.15 * len(batch.input_ids)


def test_positions_of_roberta_begin_behind_the_padding_id() -> None:
    """Trap 3, and the room that it leaves."""
    encoder = Encoder(tiny.model("roberta"))
    batch = pack([TokenSequence(0, [5, 6, 7]), TokenSequence(1, [8, 9])])
    assert encoder.packed_inputs(batch)["position_ids"].tolist() == [[2, 3, 4, 2, 3]]
    assert encoder.max_length == tiny.POSITIONS - 2
    assert Encoder(tiny.model("bert")).max_length == tiny.POSITIONS


def test_a_padding_id_inside_a_text_changes_nothing() -> None:
    """Hugging Face's RoBERTa stops counting at it; packed and padded count on."""
    model = tiny.model("roberta").double()
    batch = pack([TokenSequence(0, [5, 1, 7, 8]), TokenSequence(1, [6, 9])])
    packed, padded = Encoder(model)(batch), Encoder(model, "padded")(batch)
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-12)


def test_says_what_does_not_fit() -> None:
    encoder = Encoder(tiny.model("bert"))
    size = encoder.vocabulary_size
    with pytest.raises(ValueError, match="65 tokens exceeds the 64 positions"):
        encoder(pack([TokenSequence(0, [5] * 65)]))
    with pytest.raises(ValueError, match=rf"input id {size} .* 0\.\.{size - 1}"):
        encoder(pack([TokenSequence(0, [5, size])]))
    with pytest.raises(ValueError, match="token type id 2"):
        encoder(pack([TokenSequence(0, [5, 6], [0, 2])]))


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert", "squeezebert"])
def test_freeze(family: str) -> None:
    def trained(what: str | int) -> set[int]:
        encoder = Encoder(tiny.model(family))
        count = encoder.freeze(what)
        left = [(n, p) for n, p in encoder.model.named_parameters() if p.requires_grad]
        total = sum(parameter.numel() for parameter in encoder.model.parameters())
        assert count == total - sum(parameter.numel() for _, parameter in left)
        return {encoder.depth_of(name) for name, _ in left if not name.startswith("pooler")}

    top = Encoder(tiny.model(family)).top_depth
    assert {0, 1} <= trained("none")
    assert min(trained("embeddings")) == 1
    assert trained("all") == set()
    assert not {0, 1} & trained("1")
    assert trained(top - 1) <= {top}
    for number in (top, -1):
        with pytest.raises(ValueError, match="cannot freeze"):
            trained(number)


def test_loads_in_float32_without_pooler(tmp_path) -> None:
    """Trap 6: a checkpoint in half precision must not give half-precision weights."""
    from transformers import AutoModelForMaskedLM

    model = tiny.model("bert", AutoModelForMaskedLM).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    encoder = Encoder.from_pretrained(str(tmp_path))
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    assert not list(encoder.model.pooler.parameters())
    assert encoder(pack([TokenSequence(0, [5, 6, 7])])).shape == (3, tiny.WIDTH)
