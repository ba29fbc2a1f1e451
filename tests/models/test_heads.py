"""The heads equal the Hugging Face classes that they save, forward and gradient, per family."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from finetune.models.heads.pretrained import (
    ChoiceScorer,
    QuestionAnswerer,
    SequenceClassifier,
    TokenClassifier,
    subword_rows,
)
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.models.loading import MODEL_ALIASES, resolve_model
from finetune.preprocessing.batching import pack
from finetune.types import TokenSequence, UserError
from tests import fixtures as fx
from tests import tiny
from tests.models.heads import LABELS, OF_FAMILIES, expected_logits, head_of, sequences_of, words_of
from tests.models.parity import CLOSE, assert_equal, encodings

every_head = pytest.mark.parametrize(("family", "head_type"), OF_FAMILIES)


def both(head_type: str, family: str, **changes):
    """A head in float64, and a copy of its Hugging Face model under stock attention."""
    head = head_of(head_type, family, **changes)
    return head, copy.deepcopy(head.model), sequences_of(head_type, head)


def assert_equals_class(
    head_type: str, head, reference, made: list[TokenSequence], tolerance: float
) -> None:
    logits = head(pack(made))
    expected = expected_logits(head_type, reference, made)
    assert_equal(logits, expected, head.model, reference, tolerance)


@every_head
def test_equals_the_hugging_face_class(family: str, head_type: str) -> None:
    """Trap 4 among others: a Hugging Face class on a packed row answers once, for all."""
    head, reference, made = both(head_type, family)
    assert head.encoder.packed == (family in tiny.PACKED)
    assert_equals_class(head_type, head, reference, made, CLOSE.get(family, 1e-12))


def test_modernbert_mean_pooling() -> None:
    head, reference, made = both("sequence", "modernbert", classifier_pooling="mean")
    assert_equals_class("sequence", head, reference, made, 1e-12)


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
def test_eurobert_pooling(pooling: str, norms_in_float64: None) -> None:
    """Every way to pool, with texts that end in the padding token, as EuroBERT's do."""
    head, reference, made = both("sequence", "eurobert", classifier_pooling=pooling)
    end = reference.config.pad_token_id
    made = [TokenSequence(e.example, [*e.input_ids, end], None, e.word_starts) for e in made]
    assert head.encoder.packed
    assert_equals_class("sequence", head, reference, made, 1e-12)


def test_code_of_a_checkpoint_runs_as_it_is() -> None:
    """Under a listed model type it may have other layers, another head and other positions."""

    class Own(type(tiny.model("eurobert", AutoModelForSequenceClassification))):
        """A class such as --trust-remote-code loads."""

    class OwnBase(type(tiny.model("eurobert"))):
        """Its encoder."""

    model = Own(tiny.config("eurobert", num_labels=3)).eval().double()
    model.model = OwnBase(model.config).eval().double()
    reference = copy.deepcopy(model)
    head, made = SequenceClassifier(model), words_of(encodings(model))
    assert "OwnBase is not the eurobert model" in head.encoder.padding_reason
    assert_equals_class("sequence", head, reference, made, 1e-6)


def test_shared_layers_in_groups() -> None:
    head, reference, made = both("sequence", "albert", num_hidden_groups=3)
    assert_equals_class("sequence", head, reference, made, 1e-12)
    assert head.encoder.top_depth == 4


@pytest.mark.parametrize("head_type", ["tagging", "crf", "boundary"])
def test_heads_of_words_refuse_texts(head_type: str) -> None:
    head = head_of(head_type, "bert")
    text, no_words = TokenSequence(0, [2, 7, 8, 3]), TokenSequence(0, [2, 3], word_starts=[1])
    head(pack([no_words]))
    with pytest.raises(UserError, match=r"texts without words: .* loaded with words=True"):
        head(pack([text]))


def test_all_subwords_of_words() -> None:
    head, _, made = both("tagging", "roberta")
    batch = pack(made)
    tagger = TokenClassifier(head.model)
    tagger.all_subwords = True
    logits = tagger(batch)
    rows = [
        row
        for start, length in zip(batch.words.tolist(), batch.word_lengths.tolist(), strict=True)
        for row in range(start, start + length)
    ]
    assert subword_rows(batch).tolist() == rows
    assert logits.shape == (sum(batch.word_lengths), 3)
    first = batch.word_lengths.cumsum(0) - batch.word_lengths
    torch.testing.assert_close(logits[first], head(batch))


@pytest.mark.parametrize(
    ("problem", "labels", "head_type"),
    [
        ("single", LABELS, "single_label_classification"),
        ("multi", LABELS, "multi_label_classification"),
        ("regression", ["similarity"], "regression"),
    ],
)
def test_problems(problem, labels, head_type, tmp_path) -> None:
    source = str(fx.checkpoint())
    head = SequenceClassifier.from_pretrained(source, labels=labels, problem=problem)
    assert (head.problem, head.model.config.problem_type) == (problem, head_type)
    head.save_pretrained(tmp_path / "saved")
    again = SequenceClassifier.from_pretrained(str(tmp_path / "saved"), labels=None)
    assert again.problem == problem
    assert list(again.labels) == labels
    with pytest.raises(ValueError, match="regression has one label"):
        SequenceClassifier.from_pretrained(source, labels=["a", "b"], problem="regression")


def test_checkpoint_with_another_head(tmp_path) -> None:
    """An NLI model as the start of a task with other labels, or with its own in another order."""
    source = str(fx.checkpoint("roberta"))
    trained = SequenceClassifier.from_pretrained(source, labels=LABELS).eval()
    trained.save_pretrained(tmp_path / "nli")
    nli = str(tmp_path / "nli")
    assert len(SequenceClassifier.from_pretrained(nli, labels=["a", "b"]).labels) == 2
    order = ["perhaps", "yes", "no"]
    turned = SequenceClassifier.from_pretrained(nli, labels=order).eval()
    batch = pack([TokenSequence(0, [5, 6, 7]), TokenSequence(1, [8, 9])])
    with torch.no_grad():
        torch.testing.assert_close(turned(batch), trained(batch)[:, [2, 0, 1]])
    same_size = SequenceClassifier.from_pretrained(nli, labels=["a", "b", "c"])
    assert list(same_size.labels) == ["a", "b", "c"]


def test_classifier_dropout() -> None:
    for family in tiny.FAMILIES:
        source = str(fx.checkpoint(family, dropout=0.0))
        if family in ("mpnet", "eurobert", "squeezebert"):
            with pytest.raises(ValueError, match="have no such dropout"):
                SequenceClassifier.from_pretrained(source, labels=LABELS, dropout=0.4)
            continue
        head = SequenceClassifier.from_pretrained(source, labels=LABELS, dropout=0.4)
        rates = {name: m.p for name, m in head.named_modules() if isinstance(m, torch.nn.Dropout)}
        assert 0.4 in rates.values()
        assert all(rate == 0 for name, rate in rates.items() if ".encoder.layer." in name)


def test_errors_of_loading(tmp_path) -> None:
    """Beside those of every kind of head."""

    def message(name: str, labels=LABELS) -> str:
        with pytest.raises(ValueError) as caught:
            SequenceClassifier.from_pretrained(name, labels=labels)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert message("someone/some-model") == (
        "model 'someone/some-model': HF_HUB_OFFLINE is set, and the cache does not have it. "
        "Bring it: `hf download someone/some-model` on a machine with network, and copy HF_HOME, "
        "or name a folder of the model."
    )
    with pytest.raises(UserError, match="num_labels: name the labels instead"):
        SequenceClassifier.from_pretrained(fx.checkpoint(), num_labels=2)
    for head, labels in ((QuestionAnswerer, ["start", "end"]), (ChoiceScorer, ["score"])):
        with pytest.raises(UserError, match=r"not \['x'\]") as raised:
            head.from_pretrained(fx.checkpoint(), labels=["x"])
        assert f"labels of a {head.__name__} must be {labels}" in str(raised.value)
    with pytest.raises(UserError, match="has no encoder: give the labels to train"):
        SpanClassifier.from_pretrained(fx.checkpoint())
    bert = shutil.copytree(fx.checkpoint(), tmp_path / "bert")
    shutil.copy(fx.checkpoint("roberta") / "model.safetensors", bert)
    assert "encoder weights missing" in message(str(bert))
    for name in ("roberta-base", "FacebookAI/roberta-base"):
        assert "Perhaps" not in message(name), "a name is not its own suggestion"


def test_the_folder_of_a_run_is_its_model(tmp_path) -> None:
    shutil.copytree(fx.checkpoint(), tmp_path / "run" / "best")
    (tmp_path / "run" / "config.json").write_text('{"task": "classify", "model": "x"}')
    assert resolve_model(str(tmp_path / "run")) == str(tmp_path / "run" / "best")
    assert SequenceClassifier.from_pretrained(str(tmp_path / "run"), labels=["a", "b"])


def test_short_names_of_models(tmp_path, monkeypatch) -> None:
    assert resolve_model("roberta-base") == "FacebookAI/roberta-base"
    assert resolve_model("ModernBERT-base") == "answerdotai/ModernBERT-base"
    assert resolve_model("someone/else") == "someone/else"
    assert all(owner.count("/") == 1 for owner in MODEL_ALIASES.values())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roberta-base").mkdir()
    assert resolve_model("roberta-base") == "roberta-base", "a folder wins"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert resolve_model("minilm") == "sentence-transformers/all-MiniLM-L6-v2"
