"""Every encoder class that transformers maps for classification: proven, or refused by name."""

from __future__ import annotations

import functools
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertModel,
    BrosModel,
    ConvBertModel,
)
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from finetune.models.encoder import Encoder
from finetune.models.families import FAMILIES, REFUSED
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.heads.pretrained import SequenceClassifier, TokenClassifier
from finetune.models.loading import load_config, quiet, refusal
from finetune.models.master_weights import cast_weights, casting
from finetune.preprocessing.batching import pack
from finetune.types import Batch, TokenSequence, UserError
from tests.covering import few
from tests.models.reference import reference

SEQUENCES = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
TOKENS = modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
MASKED = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
KNOWN = sorted(set(FAMILIES) & set(CONFIG_MAPPING_NAMES))
"""The families that the installed transformers has; the newest release that is tested has all."""
SOME = few(
    KNOWN, "bert", "roberta", "modernbert", "deberta-v2", "distilbert", "xlnet", "squeezebert"
)
SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,
    "embedding_size": 16,
    "emb_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "d_model": 32,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "pad_token_id": 0,
    "num_labels": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
CHANGES: dict[str, dict[str, Any]] = {
    "big_bird": {"attention_type": "original_full"},
    "convbert": {"conv_kernel_size": 3},
    "esm": {"mask_token_id": 4, "token_dropout": True},
    "longformer": {"attention_window": [4, 4]},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 16},
    "mobilebert": {"intra_bottleneck_size": 32},
    "neomme": {"head_dim": 16, "sliding_window": 4},
    "roc_bert": {
        "pronunciation_vocab_size": 90,
        "shape_vocab_size": 90,
        "pronunciation_embed_dim": 16,
        "shape_embed_dim": 16,
    },
    "squeezebert": {"embedding_size": 32},
    "xlnet": {"n_layer": 2, "n_head": 4, "d_inner": 48},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "openai_privacy_filter": {"num_local_experts": 4, "num_experts_per_tok": 2},
}
SINGLE = {  # computed in single precision inside the model
    **dict.fromkeys(("deberta", "eurobert", "flaubert", "xlm", "ultrabert", "nomic_bert"), 2e-6),
    "openai_privacy_filter": 1e-4,
}
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
LENGTHS = (5, 40, 17, 9, 22, 22, 6)


@functools.cache
def config(family: str, dropout: float = 0.0) -> Any:
    default = AutoConfig.for_model(family)
    known = {*default.to_dict(), *default.attribute_map}
    known |= set(inspect.signature(type(default).__init__).parameters)
    sizes = {name: value for name, value in SIZES.items() if name in known}
    sizes |= {name: dropout for name in sizes if "dropout" in name}
    return AutoConfig.for_model(family, **sizes | CHANGES.get(family, {}))


def model_of(family: str, auto_class: Any = AutoModel, dropout: float = 0.0) -> Any:
    """A tiny model in float64, in which every weight matters, of padding ids too."""
    torch.manual_seed(0)
    with quiet():
        model = auto_class.from_config(config(family, dropout))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model.eval().double()


def batch_of(lengths: tuple[int, ...] = LENGTHS, words: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(1)
    made = []
    for example, length in enumerate(lengths):
        ids = torch.randint(5, 85, (length,), generator=generator).tolist()
        made.append(TokenSequence(example, ids, None, list(range(length + 1)) if words else []))
    return pack(made)


def alone(model: Any, batch: Batch, output: str) -> list[Tensor]:
    """The output of plain Hugging Face for each sequence alone, without its row dimension."""
    found = []
    for ids in batch.input_ids.split(batch.lengths):
        rows = ids[None]
        found.append(getattr(model(input_ids=rows, attention_mask=torch.ones_like(rows)), output))
    return [tensor[0] for tensor in found]


@pytest.mark.parametrize("family", KNOWN)
@torch.no_grad()
def test_results_do_not_depend_on_the_batch(family: str) -> None:
    """Hidden states and logits of sequences of mixed lengths equal those of each alone."""
    tolerance = {"rtol": 1e-10, "atol": SINGLE.get(family, 1e-12)}
    model, batch = model_of(family), batch_of()
    expected = torch.cat(alone(model, batch, "last_hidden_state"))
    for batching in ("auto", "padded"):
        torch.testing.assert_close(Encoder(model, batching)(batch), expected, **tolerance)
    if family in SEQUENCES:
        model = model_of(family, AutoModelForSequenceClassification)
        expected = torch.stack(alone(model, batch, "logits"))
        torch.testing.assert_close(SequenceClassifier(model)(batch), expected, **tolerance)
    if family in TOKENS:
        model, batch = model_of(family, AutoModelForTokenClassification), batch_of(words=True)
        expected = torch.cat(alone(model, batch, "logits"))
        torch.testing.assert_close(TokenClassifier(model)(batch), expected, **tolerance)


@pytest.mark.parametrize("family", SOME)
def test_masked_language_model(family: str, tmp_path) -> None:
    """Logits and losses at chosen positions equal those of the class at all positions."""
    if family not in MASKED:
        config(family).save_pretrained(tmp_path)
        with pytest.raises(UserError, match=f"no class for MaskedLM of type '{family}'"):
            MaskedLanguageModel.from_pretrained(str(tmp_path))
        return
    tolerance = {"rtol": 1e-10, "atol": SINGLE.get(family, 1e-12)}
    model, batch = model_of(family, AutoModelForMaskedLM), batch_of()
    position = torch.tensor([0, 3, 44, 45, 60, 119, 2])
    batch = replace(batch, targets={"position": position, "token": batch.input_ids[position]})
    with torch.no_grad():
        logits = torch.cat(alone(model, batch, "logits"))[position]
        head = MaskedLanguageModel(model)
        torch.testing.assert_close(head.logits(batch), logits, **tolerance)
        loss, best = head(batch)
        everywhere = head(replace(batch, targets={}))
        torch.testing.assert_close(everywhere[position], logits, **tolerance)
    expected = torch.nn.functional.cross_entropy(logits, batch.targets["token"], reduction="none")
    torch.testing.assert_close(loss, expected, **tolerance)
    assert torch.equal(best, logits.argmax(1))


@pytest.mark.parametrize("family", SOME)
def test_trains_in_half_precision_up_to_the_limit_of_positions(family: str) -> None:
    model = model_of(family).float().train()
    encoder = Encoder(model)
    batch = batch_of((min(encoder.max_length or 48, 48), 7))
    cast_weights(encoder, "bf16")
    with casting(encoder, "bf16", torch.device("cpu")):
        encoder(batch).float().square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("family", KNOWN)
def test_layers_have_a_depth_and_can_be_frozen(family: str) -> None:
    encoder = Encoder(model_of(family))
    depths = {encoder.depth_of(name) for name, _ in encoder.model.named_parameters()}
    assert depths >= set(range(encoder.top_depth))
    assert 0 < encoder.freeze("embeddings") < encoder.freeze(1)


def test_every_other_class_is_refused() -> None:
    kinds = sorted({*SEQUENCES, *TOKENS} - set(FAMILIES))
    accepted = []
    for model_type in kinds:
        if model_type in REFUSED:
            continue
        if not refusal(AutoConfig.for_model(model_type)):
            accepted.append(model_type)
    assert not accepted, "add a row to FAMILIES that the tests here prove, or one to REFUSED"
    assert not set(REFUSED) & set(FAMILIES)
    if is_newest():
        assert set(REFUSED) <= {*SEQUENCES, *TOKENS} and KNOWN == sorted(FAMILIES)


def is_newest() -> bool:
    """Return whether transformers is at least the version of constraints.txt."""
    pinned = re.search(r"^transformers==(.*)$", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned
    return Version(transformers.__version__) >= Version(pinned[1])


def test_families_of_a_newer_transformers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "futurebert", FAMILIES["bert"])
    (tmp_path / "config.json").write_text('{"model_type": "futurebert"}')
    version = re.escape(transformers.__version__)
    with pytest.raises(UserError, match=f"'futurebert', which transformers {version} does not"):
        load_config(str(tmp_path))


@pytest.mark.parametrize(
    ("model_type", "settings", "reason"),
    [
        ("tapas", {}, "reads tables"),
        ("t5", {}, "encoder and a decoder"),
        ("t5gemma", {}, "encoder and a decoder"),
        ("llama", {}, "only the tokens before"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "attends in both directions"),
    ],
)
def test_refusals_name_the_type_and_the_reason(model_type, settings, reason, tmp_path) -> None:
    AutoConfig.for_model(model_type, **settings).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"'{model_type}', which .*{reason}.*roberta-base"):
        load_config(str(tmp_path))


def test_the_page_of_models_is_current() -> None:
    if not is_newest():
        pytest.skip("the page has the families of the newest transformers")
    text = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    assert text == reference(), "write it: python -m tests.models.reference > docs/models.md"


def test_a_setting_under_which_results_depend_on_the_batch_is_refused(tmp_path) -> None:
    model = AutoModel.from_config(AutoConfig.for_model("big_bird", **SIZES, block_size=4))
    with pytest.raises(UserError, match=r"attention_type='original_full' .*not 'block_sparse'"):
        Encoder(model)
    model.save_pretrained(tmp_path)
    assert not Encoder.from_pretrained(str(tmp_path)).family.packing


def test_a_type_without_the_head_of_a_task_is_refused(tmp_path) -> None:
    config("openai_privacy_filter").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no class for SequenceClassification of type 'openai_p"):
        SequenceClassifier.from_pretrained(str(tmp_path), labels=["a", "b"])


class OwnConvolution(ConvBertModel):
    """A model that no row of the table describes, with a convolution."""


class OwnMean(BertModel):
    """A model in which the sequences of a batch affect each other."""

    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.last_hidden_state = output.last_hidden_state + output.last_hidden_state.mean(0)
        return output


class OwnBoxes(BrosModel):
    """A model that needs more than token ids."""


@torch.no_grad()
def test_other_models_are_probed() -> None:
    model, batch = OwnConvolution(config("convbert")).double().train(), batch_of()
    encoder = Encoder(model)
    assert encoder.family.reads_padding and "OwnConvolution" in encoder.padding_reason
    assert all(module.training for module in model.modules())
    expected = torch.cat(alone(model.eval(), batch, "last_hidden_state"))
    torch.testing.assert_close(encoder(batch), expected, rtol=1e-10, atol=1e-12)
    bert = type("OwnBert", (BertModel,), {"__module__": __name__})(config("bert"))
    assert not Encoder(bert).family.reads_padding
    with pytest.raises(UserError, match="bert models cannot be batched"):
        Encoder(OwnMean(config("bert")))
    with pytest.raises(UserError, match=r"bros models do not run on token ids alone: .*bbox"):
        Encoder(OwnBoxes(config("bros")))
