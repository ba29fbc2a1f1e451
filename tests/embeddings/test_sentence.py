"""Sentence encoders: the texts they learn from, their scores, and their vectors elsewhere."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

import finetune
from finetune.data import Dataset
from finetune.data.splitting import unmeasured_labels
from finetune.embeddings import sentence_objectives as losses
from finetune.embeddings.sentence import ranking_scores
from finetune.embeddings.sentence_objectives import TEMPLATE_ALONE
from finetune.inference.embed import Embedder
from finetune.models.heads.sentence_encoder import SentenceEncoder
from finetune.tasks.few_shot import cosine_loss
from finetune.types import TextExample, UserError
from tests import fixtures as fx
from tests.command import run
from tests.small_data import read_jsonl, write_jsonl

TEXTS = [
    "the train from paris was late",
    "a man is playing a guitar",
    "what a great story !",
    "two children run across the street because it rains",
    "anna saw a big red dog",
]
SHORT = ["the late train", "a guitar", "great story", "children in the rain", "anna and a dog"]
SETTINGS: dict[str, Any] = {"steps": 2, "lr": 1e-3, "batch_size": 32}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentence")
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, SHORT, strict=True)]
    numbers = [{**row, "label": float(index)} for index, row in enumerate(pairs)]
    write_jsonl(folder / "numbers.jsonl", numbers)
    write_jsonl(folder / "pairs.jsonl", pairs)
    (folder / "texts.txt").write_text("\n".join([*TEXTS, TEXTS[0], *SHORT]), "utf-8")
    names = ["entailment", "contradiction", "neutral"]
    nli = [
        {"premise": text, "hypothesis": f"{short} {name}", "label": name}
        for text, short in zip(TEXTS, SHORT, strict=True)
        for name in names
    ]
    write_jsonl(folder / "nli.jsonl", nli)
    return folder


def config_of(
    workdir: Path, objective: str, train: str, validation: str = "", **changes: Any
) -> Any:
    files = {"train": train, "validation": validation or train}
    data = ",".join(f"{split}={workdir / name}" for split, name in files.items())
    return fx.config("sentence", data=data, objective=objective, **{**SETTINGS, **changes})


def loaded(*arguments: Any, **changes: Any) -> tuple[Any, Dataset]:
    return fx.load(config_of(*arguments, **changes))


def texts_of(rows: list[TextExample]) -> list[tuple[str | None, ...]]:
    return [(row.text, row.pair, row.negative) for row in rows]


# --- Data -----------------------------------------------------------------------------------------


def test_texts_for_objectives_without_labels(workdir: Path) -> None:
    """Texts without pairs are scored with half of their words."""
    for train in ("numbers.jsonl", "texts.txt"):
        _, data = loaded(workdir, "mirror", train, "numbers.jsonl")
        assert sorted(row.text for row in data.splits["train"]) == sorted([*TEXTS, *SHORT])
        assert data.splits["train"][0].label is None
    task, data = loaded(workdir, "simcse", "texts.txt")
    for row in data.splits["validation"]:
        words, half = row.text.split(), str(row.pair).split()
        assert len(half) == len(words) // 2 and set(half) <= set(words)
    again = loaded(workdir, "simcse", "texts.txt", seed=9)[1].splits["validation"]
    assert texts_of(again) == texts_of(data.splits["validation"])
    assert task.state.metric == "ranking_accuracy"
    config = replace(config_of(workdir, "simcse", "texts.txt"), data=str(workdir / "texts.txt"))
    held_out = fx.load(config)[1].splits
    assert len(held_out["train"]) == 9 and held_out["validation"][0].pair is not None


def test_positive_pairs_and_their_negatives(workdir: Path, tmp_path: Path) -> None:
    """Entailment is positive and contradiction negative, or columns name them."""
    task, data = loaded(workdir, "ranking", "nli.jsonl")
    expected = [
        (text, f"{short} entailment", f"{short} contradiction")
        for text, short in zip(TEXTS, SHORT, strict=True)
    ]
    assert texts_of(data.splits["train"]) == expected
    assert texts_of(data.splits["validation"]) == [(a, b, None) for a, b, _ in expected]
    assert (task.state.metric, len(task.state.labels)) == ("ranking_accuracy", 0)
    for names, columns in (
        (("query", "positive", "negative"), ()),
        (("text", "text_pair", "hard"), ("negative=hard",)),
    ):
        rows = [dict(zip(names, (a, b, "x"), strict=True)) for a, b, _ in expected]
        write_jsonl(tmp_path / "search.jsonl", rows)
        _, data = loaded(tmp_path, "ranking", "search.jsonl", columns=columns)
        assert texts_of(data.splits["train"])[0] == (*expected[0][:2], "x")


def test_adjacent_texts(workdir: Path, tmp_path: Path) -> None:
    rows = [{"text": "a b\nc\n\nd\ne"}, {"text": "f"}, {"text": "g"}, {"text": "h\ni"}]
    write_jsonl(tmp_path / "texts.jsonl", rows)
    data = loaded(tmp_path, "cmlm", "texts.jsonl")[1].splits
    expected = [("a b", "c"), ("d", "e"), ("f", "g"), ("h", "i")]
    assert [(row.text, row.pair) for row in data["train"]] == expected
    _, data = loaded(workdir, "cmlm", "pairs.jsonl", "numbers.jsonl")
    assert [row.pair for row in data.splits["train"]] == SHORT
    assert data.splits["validation"][1].label == 1.0


def test_numbers_are_scaled_for_training_only_and_splits_may_differ(workdir: Path) -> None:
    _, data = loaded(workdir, "cosine", "numbers.jsonl")
    assert [row.label for row in data.splits["train"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [row.label for row in data.splits["validation"]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    ratings = [{"text": "a b", "text_pair": f"c {n}", "label": n} for n in range(5)]
    write_jsonl(workdir / "ratings.jsonl", ratings)
    _, data = loaded(workdir, "cosine", "ratings.jsonl")
    assert [row.label for row in data.splits["train"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    task, data = loaded(workdir, "softmax", "nli.jsonl", "numbers.jsonl")
    assert list(task.state.labels) == ["entailment", "neutral", "contradiction"]
    assert task.state.metric == "spearman_all"
    assert isinstance(data.splits["validation"][0].label, float)
    assert unmeasured_labels(data) == [], "its cosines are scored"
    write_jsonl(workdir / "equal.jsonl", [{**row, "label": 1} for row in ratings])
    _, data = loaded(workdir, "cosine", "equal.jsonl")
    assert "warning: all pairs of train have the same label" in " ".join(data.notes)


def test_splits_without_gold(workdir: Path, tmp_path: Path) -> None:
    """The test split of STS-B has no numbers: it is predicted, and has no score."""
    config = config_of(workdir, "mirror", "numbers.jsonl", steps=1, out=tmp_path / "run")
    config = replace(config, data=f"{config.data},test={workdir / 'pairs.jsonl'}")
    result = fx.fit(config)
    assert list(result.metrics) == ["validation"]
    note = f"test: {len(TEXTS)} pairs without numbers, predicted but not scored"
    assert note in fx.load(config)[1].notes
    assert len(read_jsonl(tmp_path / "run" / "predictions.test.jsonl")) == len(TEXTS)
    with pytest.raises(UserError, match="needs pairs of texts with a number; validation has pairs"):
        loaded(workdir, "cosine", "numbers.jsonl", "pairs.jsonl")


@pytest.mark.parametrize("objective", ["mirror", "prompt", "cmlm"])
def test_a_tokenizer_without_mask(objective: str, workdir: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(fx.checkpoint())
    tokenizer.mask_token = None
    AutoModel.from_pretrained(fx.checkpoint()).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    with pytest.raises(UserError, match="bert has no mask token: choose simcse"):
        loaded(workdir, objective, "texts.txt", model=str(tmp_path / "bert"))


def test_conditions_leave_room_for_texts(workdir: Path) -> None:
    task, data = loaded(workdir, "cmlm", "texts.txt", max_length=17)
    with pytest.raises(UserError, match="--max-length 17 leaves no room for text: write 18 or mor"):
        task.encode(data.splits["train"])
    task, data = loaded(workdir, "cmlm", "texts.txt", max_length=22)
    rows, tokenizer = data.splits["train"], task.tokenizer.tokenizer
    num_long = sum(len(tokenizer(row.pair)["input_ids"]) > 7 for row in rows)
    assert 0 < num_long < len(rows)
    assert task.encode(rows, for_training=True).num_cut == num_long
    assert task.encode(rows).num_cut == 0  # held-out texts are read whole


# --- Views ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_masked_views(workdir: Path, family: str) -> None:
    task, data = loaded(workdir, "mirror", "texts.txt", model=fx.checkpoint(family))
    mask = task.tokenizer.tokenizer.mask_token_id
    sequences = task.encode(data.splits["train"]).sequences
    seen: set[tuple[int, ...]] = set()
    for seed in range(20):
        views = task.sequences_of_epoch(sequences, 1, seed)
        assert [view.window for view in views] == [0, 1] * len(sequences)
        for one, other in zip(views[::2], views[1::2], strict=True):
            ids, at = one.input_ids, other.input_ids.index(mask)
            width = min(2, len(ids) - 3)
            assert other.input_ids == [*ids[:at], mask, *ids[at + width :]]
            assert 1 <= at < len(other.input_ids) - 1 and other.target == one.target
            seen.add((one.example, at))
    assert len(seen) > 2 * len(sequences)  # the place of the span varies
    alone = task.sequences_of_epoch(sequences.take(np.array([1])), 1, 19)
    assert alone[1].input_ids == views[3].input_ids  # whatever else is in the batch
    one = task.encode([TextExample(0, "a")]).sequences
    assert mask not in task.sequences_of_epoch(one, 1, 1)[1].input_ids  # nothing would be left


def test_templates(workdir: Path) -> None:
    templates = ("the text {text} is {mask} .", "{mask} : {text}")
    task, data = loaded(workdir, "prompt", "texts.txt", templates=templates)
    views = task.sequences_of_epoch(task.encode(data.splits["train"][:2]).sequences, 1, 0)
    decode = task.tokenizer.tokenizer.decode
    expected = [f"[CLS] the text {TEXTS[0]} is [MASK]. [SEP]", f"[CLS] [MASK] : {TEXTS[0]} [SEP]"]
    assert [decode(view.input_ids) for view in views[:2]] == expected
    assert [view.example for view in views[-2:]] == [TEMPLATE_ALONE] * 2
    assert decode(views[-1].input_ids) == "[CLS] [MASK] : [SEP]"
    mask = task.tokenizer.tokenizer.mask_token_id
    for view in views:
        assert [view.input_ids[at] for at in view.word_starts[:1]] == [mask]
    added, read = set(task.added_ids()), set(views.ids.values.tolist())
    assert added <= read
    long = task.encode([TextExample(0, "guitar " * 99), TextExample(1, "a [MASK] b")])
    assert long.num_cut == 1 and len(long[0][0].input_ids) == 40
    literal = long[1][0]
    assert literal.input_ids.count(mask) == 2
    assert literal.input_ids[literal.word_starts[0] :].count(mask) == 1  # that of the template


def test_the_vector_of_a_template_is_subtracted(workdir: Path) -> None:
    task, data = loaded(workdir, "prompt", "texts.txt")
    views = task.sequences_of_epoch(task.encode(data.splits["train"][:4]).sequences, 1, 0)
    vectors = torch.randn(len(views), 8, dtype=torch.float64)

    def loss(bias: torch.Tensor) -> float:
        moved = vectors + bias[[view.window for view in views]]
        keys = [(view.example, view.window) for view in views]
        return float(task.batch_loss(None, moved, keys, task.collate(views))[0])

    shifted = loss(torch.randn(2, 8, dtype=torch.float64))
    assert shifted == pytest.approx(loss(torch.zeros(2, 8, dtype=torch.float64)))


# --- Scores ---------------------------------------------------------------------------------------


def test_ranking_scores_by_hand() -> None:
    queries = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    answers = np.array([[2.0, 0.1], [1.0, 0.2], [1.0, 1.1], [1.0, 0.05]])
    texts = ["a", "b", "c", "a"]
    scores = ranking_scores(queries, answers, texts, ["p", "q", "r", "s"])
    # a: p before q, r; s is another answer to a. b: r, q first, so rank 2. c: 1. a: s first
    assert scores == {"ranking_accuracy": 0.75, "ranking_mrr": (1 + 1 / 2 + 1 + 1) / 4}
    same = ranking_scores(np.ones((3, 2)), np.ones((3, 2)), ["a", "b", "c"], ["p", "q", "r"])
    assert same == {"ranking_accuracy": 0.0, "ranking_mrr": 1 / 3}  # collapsed vectors
    many = np.random.default_rng(1).normal(size=(2100, 4))
    names = [str(number) for number in range(2100)]
    assert ranking_scores(many, 3 * many, names, names)["ranking_accuracy"] == 1.0


# --- Losses ---------------------------------------------------------------------------------------


N, H = 6, 8


@pytest.fixture
def vectors() -> Any:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(N, H, generator=generator, dtype=torch.float64) for _ in range(3)]


def mean(loss: losses.Loss) -> float:
    return float((loss[0] / loss[1]).detach())


def distinct(size: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + size)


def test_equal_sentence_transformers(vectors: Any) -> None:
    library = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

    class Model(torch.nn.Module):
        """Returns the vectors that it gets, where the library expects a model."""

        device = "cpu"

        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            return features

        def get_embedding_dimension(self) -> int:
            return H

    model = Model()
    u, v, n = vectors
    three = [{"sentence_embedding": side} for side in (u, v, n)]
    ids = distinct(N), distinct(N, N), distinct(N, 2 * N)
    ranking = library.MultipleNegativesRankingLoss(model, scale=20.0)
    label = torch.tensor([0.0, 0.2, 0.2, 0.5, 0.9, 1.0], dtype=torch.float64)
    softmax = library.SoftmaxLoss(model, H, 3).double()
    classes = torch.tensor([0, 1, 2, 0, 1, 2])
    weights = torch.cat([softmax.classifier.weight, softmax.classifier.bias[:, None]], dim=1)
    without = losses.ranking_loss(u, v, n[:0], (*ids[:2], ids[2][:0]), 0.05)
    for loss, expected in (
        (losses.ranking_loss(u, v, n, ids, 0.05), ranking(three, label)),
        (without, ranking(three[:2], label)),
        (cosine_loss(u, v, label), library.CosineSimilarityLoss(model)(three[:2], label)),
        (losses.softmax_loss(u, v, weights, classes), softmax(three[:2], classes)),
    ):
        assert mean(loss) == pytest.approx(float(expected.detach()))


def test_two_views_by_hand(vectors: Any) -> None:
    u, v, _ = vectors
    both = torch.nn.functional.normalize(torch.cat([u, v]), dim=-1).tolist()
    total = 0.0
    for i, x in enumerate(both):
        scores = {
            j: math.exp(sum(a * b for a, b in zip(x, y, strict=True)) / 0.04)
            for j, y in enumerate(both)
            if j != i
        }
        total -= math.log(scores[(i + N) % (2 * N)] / sum(scores.values()))
    assert mean(losses.two_view_loss((u, v), distinct(N), 0.04)) == pytest.approx(total / (2 * N))


def test_equal_texts_are_no_negatives(vectors: Any) -> None:
    u, v, n = vectors
    same = torch.zeros(2, dtype=torch.long)
    assert mean(losses.two_view_loss((u[:2], v[:2]), same, 0.5)) == pytest.approx(0.0)
    assert mean(losses.two_view_loss((u[:2], v[:2]), distinct(2), 0.5)) > 0.01
    # an equal anchor, a positive that equals the anchor, and a negative that equals the positive
    ids = (torch.tensor([0, 0, 2]), torch.tensor([3, 4, 0]), torch.tensor([3, 9, 9]))
    loss, count = losses.ranking_loss(u[:3], v[:3], n[:3], ids, 1.0)
    cosine = torch.nn.functional.cosine_similarity
    candidates = {0: v[0], 1: v[1], 2: v[2], 3: n[0], 4: n[1], 5: n[2]}
    kept = {0: [0, 4, 5], 1: [1, 3, 4, 5], 2: [0, 1, 2, 3, 4, 5]}
    expected = 0.0
    for row, columns in kept.items():
        scores = torch.stack([cosine(u[row], candidates[c], dim=0) for c in columns])
        expected -= float(scores.log_softmax(0)[columns.index(row)])
    assert (float(loss), float(count)) == (pytest.approx(expected), 3.0)


@pytest.mark.parametrize("size", [1, 2])
def test_tiny_batches_are_finite(vectors: Any, size: int) -> None:
    u, v, n = (side[:size].requires_grad_() for side in vectors)
    label = torch.ones(size)
    for loss, _ in (
        losses.two_view_loss((u, v), distinct(size), 0.04),
        losses.ranking_loss(u, v, n[:0], (distinct(size), distinct(size), distinct(0)), 0.05),
        cosine_loss(u, v, label),
    ):
        (gradient,) = torch.autograd.grad(loss, u, retain_graph=True)
        assert loss.isfinite() and gradient.isfinite().all()


# --- Saved models ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(workdir: Path) -> dict[str, Path]:
    """Runs: of the mean, of normalized first tokens, of templates, of a classifier, and of a masked
    language model."""
    runs = {}
    for name, (objective, train, changes) in {
        "mean": ("mirror", "texts.txt", {}),
        "cls": ("cosine", "numbers.jsonl", {"pooling": "cls", "normalize": True, "batch_size": 2}),
        "prompt": ("prompt", "texts.txt", {"model": fx.checkpoint("roberta")}),
        "softmax": ("softmax", "nli.jsonl", {"pooling": "max"}),
        "cmlm": ("cmlm", "texts.txt", {}),
    }.items():
        config = config_of(workdir, objective, train, out=workdir / name, **changes)
        runs[name] = fx.fit(config).folder
    return runs


@pytest.mark.parametrize("name", ["mean", "cls", "softmax", "cmlm"])
def test_sentence_transformers_has_the_same_vectors(trained: dict[str, Path], name: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    texts = [*TEXTS, "guitar " * 99]  # cut
    model = library.SentenceTransformer(str(trained[name] / "best"), device="cpu")
    assert model.max_seq_length == 40
    expected = model.encode(texts)
    embedder = Embedder(trained[name])
    vectors = np.concatenate([embedding.vectors for embedding in embedder.encode(texts)])
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert embedder.num_cut == 1


def test_embedder_with_another_pooling_layer_or_unit(trained: dict[str, Path]) -> None:
    folder = trained["cls"]
    settings: Any = ({}, {"pooling": "mean"}, {"layers": [0]})
    pooled, mean, layer = (next(Embedder(folder, **s).encode(TEXTS[:1])).vectors for s in settings)
    assert np.linalg.norm(pooled) == pytest.approx(1.0, abs=1e-5)
    assert not np.allclose(pooled, mean) and not np.allclose(mean, layer)
    (words,) = Embedder(folder, unit="word").encode(TEXTS[:1])
    assert len(words.vectors) == len(TEXTS[0].split())
    words = next(Embedder(trained["prompt"]).encode([TEXTS[0].split()]))  # words of a text
    text = next(Embedder(trained["prompt"]).encode([TEXTS[0]]))
    np.testing.assert_allclose(words.vectors, text.vectors, atol=1e-5)


def test_predictions(trained: dict[str, Path]) -> None:
    outcome = run("predict", trained["mean"], "--text", TEXTS[0]).ok()
    assert len(json.loads(outcome.out)["vector"]) == 32
    outcome = run("predict", trained["cls"], "--text", TEXTS[0], "--pair", TEXTS[0])
    label = pytest.approx(1.0, abs=1e-5)
    assert json.loads(outcome.out) == {"id": 0, "label": label, "similarity": "cosine"}
    (answer,) = finetune.load(trained["softmax"]).predict([(TEXTS[0], TEXTS[1])])
    values = answer.to_dict()
    assert values["label"] == max(values["scores"], key=values["scores"].get)
    assert sum(values["scores"].values()) == pytest.approx(1, abs=1e-5)
    head = SentenceEncoder.from_pretrained(str(trained["softmax"] / "best"), trained=True)
    u, v = torch.from_numpy(answer.vectors)
    assert head.classifier is not None and head.pooling == "max"
    with torch.no_grad():
        probabilities = head.classifier(torch.cat([u, v, (u - v).abs()])).softmax(0)
    assert list(values["scores"].values()) == pytest.approx(probabilities.tolist(), abs=1e-5)


def test_ranks_are_not_compared(tmp_path: Path) -> None:
    """They are of all vectors; on pairs with gold, cosines are compared."""
    folder = fx.trained("ranking")
    for command in (("compare", folder, folder), ("report", folder, "--format", "table")):
        outcome = run(*command, "--split", "validation")
        outcome.refused("scores of this run (ranking_accuracy, ranking_mrr) are of vectors")
    rows = [{"text": "a", "text_pair": text, "label": n / 2} for n, text in enumerate("abc")]
    file = write_jsonl(tmp_path / "pairs.jsonl", rows)
    assert "pearson on 3 pairs" in run("compare", folder, folder, "--data", file).ok().out


def test_cosines_have_no_mean_error_on_the_scale_of_gold(
    trained: dict[str, Path], workdir: Path, tmp_path: Path
) -> None:
    first, *rows = read_jsonl(workdir / "numbers.jsonl")
    file = tmp_path / "long.jsonl"
    write_jsonl(file, [{**first, "text": "guitar " * 99}, *rows])
    scored = run("score", trained["cls"], "--data", file, "--json").ok()
    assert [*json.loads(scored.out)] == ["pearson_all", "spearman_all"], "as the run names them"
    assert "1 pair cut to 40 tokens" in scored.err
    options = ("--split", "validation", "--format", "json")
    analysis = json.loads(run("report", trained["cls"], *options).ok().out)
    assert "mse" not in analysis["scores"] and analysis["errors"] == {
        "difference of ranks": len(rows) + 1
    }
    metrics = json.loads((trained["cls"] / "metrics.json").read_text())["validation"]
    assert analysis["scores"] == pytest.approx(metrics, abs=1e-12), "the file has the same cosines"


def test_pairs_with_numbers_are_scored_by_cosines_of_a_classifier_too(
    trained: dict[str, Path], workdir: Path, tmp_path: Path
) -> None:
    first, *rows = read_jsonl(workdir / "numbers.jsonl")
    write_jsonl(tmp_path / "some.jsonl", [{**first, "label": None}, *rows])
    scores = []
    for file in (tmp_path / "some.jsonl", workdir / "nli.jsonl"):
        outcome = run("score", trained["softmax"], "--data", file, "--format", "json").ok()
        scores.append(json.loads(outcome.out))
    assert [*scores[0]] == ["pearson_all", "spearman_all"] and "accuracy" in scores[1]
    pairs = [
        TextExample(n, *(row[key] for key in ("text", "text_pair", "label")))
        for n, row in enumerate(rows)
    ]
    cosines = [float(p.label) for p in finetune.load(trained["softmax"]).predict(pairs)]
    expected = np.corrcoef(cosines, [row["label"] for row in rows])[0, 1]
    assert scores[0]["pearson_all"] == pytest.approx(expected, abs=1e-4)


def test_run_folders(trained: dict[str, Path]) -> None:
    for name, run_folder in trained.items():
        metrics = json.loads((run_folder / "metrics.json").read_text())["validation"]
        expected = {"mean": "ranking_mrr", "cls": "pearson_all", "softmax": "macro_f1"}
        assert expected.get(name, "ranking_accuracy") in metrics
        assert (run_folder / "best" / "modules.json").is_file() == (name != "prompt")
    run("report", trained["cls"]).ok()
    card = (trained["cls"] / "best" / "README.md").read_text()
    assert "SentenceTransformer(" in card and "library_name: sentence-transformers" in card
    exported = run("export", trained["cls"], "--out", trained["cls"].parent / "onnx")
    exported.refused("`finetune sentence` are not exported")


def test_a_run_starts_from_another_with_its_pooling(
    trained: dict[str, Path], workdir: Path
) -> None:
    named, _ = loaded(workdir, "cosine", "numbers.jsonl", model=str(trained["cls"]))
    assert (named.state.pooling, named.state.normalize) == ("cls", True)
    labeled, _ = loaded(workdir, "softmax", "nli.jsonl", model=str(trained["cls"]))
    assert (labeled.state.pooling, labeled.state.normalize) == ("cls", False)
    start = {"model": None, "init_from": str(trained["cls"])}
    task, data = loaded(workdir, "cosine", "numbers.jsonl", **start)
    assert f"encoder from {trained['cls']}" in task.notes(data), "there is no head"
    assert (task.state.pooling, task.state.normalize) == ("cls", True)
    assert task.model().pooling == "cls"  # also for objectives without labels
    other, _ = loaded(workdir, "cosine", "numbers.jsonl", pooling="mean", **start)
    assert other.state.pooling == "mean"
    start["init_from"] = str(trained["cmlm"])  # its masked language model
    task, _ = loaded(workdir, "cmlm", "texts.txt", **start)
    saved = AutoModelForMaskedLM.from_pretrained(trained["cmlm"] / "best").state_dict()
    for name, weight in task.model().model.state_dict().items():
        torch.testing.assert_close(weight, saved[name], rtol=0, atol=0, msg=name)


def test_a_classifier_of_pairs_keeps_the_rows_of_labels_that_stay(
    trained: dict[str, Path], workdir: Path, tmp_path: Path
) -> None:
    rows = read_jsonl(workdir / "nli.jsonl")
    new = [{**row, "label": row["label"].replace("neutral", "other")} for row in rows]
    write_jsonl(tmp_path / "new.jsonl", new)
    start = {"model": None, "init_from": str(trained["softmax"])}
    task, data = loaded(tmp_path, "softmax", "new.jsonl", **start)
    assert any("by name: contradiction, entailment; new: other" in n for n in task.notes(data))
    old = SentenceEncoder.from_pretrained(str(trained["softmax"] / "best"), trained=True)
    labels = list(old.model.config.id2label.values())
    before, after = old.classifier_weights(), task.model().classifier_weights()
    for row, label in zip(after, task.state.labels, strict=True):
        kept = label in labels and torch.equal(row, before[labels.index(label)])
        assert kept == (label != "other")
    start["init_from"] = str(trained["mean"])  # without a classifier
    task, data = loaded(workdir, "softmax", "nli.jsonl", **start)
    assert task.notes(data)[-1].endswith("; new head") and task.model().classifier is not None


def test_a_bilstm_is_in_no_file_of_sentence_transformers(workdir: Path, tmp_path: Path) -> None:
    """It would load the encoder without this layer, and give other vectors."""
    config = config_of(workdir, "cosine", "numbers.jsonl", out=tmp_path / "run", bilstm=True)
    assert not (fx.fit(config).folder / "best" / "modules.json").exists()
