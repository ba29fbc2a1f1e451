"""Steps on batches of fixed shapes are the steps on the batches themselves, and what cannot be
recorded runs as ever. Recording itself needs a GPU (tests/gpu): here a replay computes anew."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from finetune.config.tasks import ClassifyConfig, NerConfig, TagConfig, TrainConfig
from finetune.preprocessing.batching import pack
from finetune.runtime.signals import Stopped
from finetune.tasks import load_task
from finetune.training import graphs
from finetune.training import trainer as train
from finetune.training.graphs import GraphStep, choose_step, why_no_graph
from finetune.training.optimizer import make_optimizer
from finetune.training.static_batch import LONGEST, MOST, Buffers, Shape, padded
from finetune.training.step import Step
from finetune.training.trainer import fit
from finetune.types import Batch, Encoding
from tests import small_data as data
from tests.tiny import save_tiny_checkpoint

FAMILIES = (
    "bert", "roberta", "modernbert", "electra", "albert", "distilbert", "eurobert", "nomic_bert",
)  # fmt: skip
TINY: dict[str, Any] = {"dropout": 0.0, "max_position_embeddings": 512}
KINDS = ("single", "multi", "regression", "weighted", "windows", "tag")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    for family in (*FAMILIES, "deberta-v2", "mpnet"):
        save_tiny_checkpoint(folder / family, family, **TINY)
    save_tiny_checkpoint(folder / "means", "modernbert", classifier_pooling="mean", **TINY)
    data.sentiment(folder / "single", (60, 12, 12))
    data.topics(folder / "multi")
    data.numbers(folder / "regression")
    data.entities(folder / "tag")
    return folder


def config_of(kind: str, place: Path, family: str = "bert", **changes: Any) -> TrainConfig:
    common = {"model": str(place / family), "precision": "fp32", "batch_size": 7, "lr": 1e-2}
    more: dict[str, Any] = {
        "weighted": {"class_weights": "neg=1,pos=2.5"},
        "windows": {"long_text": "window", "max_length": 16, "overlap": 4},
    }.get(kind, {})
    folder = place / (kind if (place / kind).is_dir() else "single")
    kind_of_config = TagConfig if kind == "tag" else ClassifyConfig
    return kind_of_config(data=str(folder), **{**common, **more, **changes})


def task_of(config: TrainConfig) -> Any:
    return load_task(config, "tag" if isinstance(config, TagConfig) else "classify")


def batches_of(task: Any, sizes: tuple[int, ...] = (7, 7, 3, 7, 1)) -> list[Batch]:
    """Batches of the first training examples, as they are."""
    encoded, made, start = task.encode(task.read("train")), [], 0
    for size in sizes:
        members = [e for windows in encoded[start : start + size] for e in windows]
        made.append(pack(members, task.collate(members)))
        start += size
    return made


def fixed(task: Any, head: Any, batch: Batch, shape: Shape | None = None) -> Batch:
    shape = shape or Shape.of(batch, task.config.batch_size, head.encoder.max_length)
    return padded(
        batch, shape, pad_id=head.encoder.pad_id, padding=task.padding, of_words=task.words
    )


def computed(task: Any, head: Any, batch: Batch) -> list[torch.Tensor]:
    """Loss, count and all gradients."""
    head.zero_grad()
    loss, count = task.loss(head(batch), batch)
    loss.backward()
    gradients = [weight.grad for weight in head.parameters() if weight.grad is not None]
    return [loss.detach(), count, *(gradient.clone() for gradient in gradients)]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor], most: float) -> None:
    assert len(found) == len(expected) > 10
    for mine, other in zip(found, expected, strict=True):
        size = max(1, float(other.abs().max()))
        torch.testing.assert_close(mine, other, rtol=0, atol=most * size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_fixed_shape_changes_nothing(family: str, kind: str, place: Path) -> None:
    """Loss, count and gradients of batches one after the other in the same buffers."""
    task = task_of(config_of(kind, place, family))
    head = task.head().double()
    batches = batches_of(task)
    shapes = [Shape.of(batch, 7, head.encoder.max_length) for batch in batches]
    sizes = zip(*map(dataclasses.astuple, shapes), strict=True)
    shape = Shape(*map(max, sizes))  # one that has room for all of them
    buffers = Buffers(fixed(task, head, batches[0], shape), torch.device("cpu"))
    addresses = [value.data_ptr() for value in (buffers.batch.input_ids, buffers.batch.cu_seqlens)]
    for batch, own in zip(batches, shapes, strict=True):
        expected = computed(task, head, batch)
        assert float(expected[1]) > 0
        assert_same(computed(task, head, fixed(task, head, batch, own)), expected, 1e-12)
        wide = fixed(task, head, batch, shape)
        buffers.load(wide)
        for name in ("input_ids", "position_ids", "cu_seqlens", "words", "words_cu"):
            assert torch.equal(getattr(buffers.batch, name), getattr(wide, name)), "stale content"
        assert_same(computed(task, head, buffers.batch), expected, 1e-12)
    assert addresses == [v.data_ptr() for v in (buffers.batch.input_ids, buffers.batch.cu_seqlens)]


@pytest.mark.parametrize("kind", ["single", "tag"])
def test_means_and_empty_sequences(kind: str, place: Path) -> None:
    task = task_of(config_of(kind, place, "means"))
    head = task.head().double()
    for batch in batches_of(task):
        expected = computed(task, head, batch)
        assert_same(computed(task, head, fixed(task, head, batch)), expected, 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tail_has_no_say(kind: str, place: Path) -> None:
    task = task_of(config_of(kind, place))
    head = task.head().double()
    batch = batches_of(task, (5,))[0]
    plain = fixed(task, head, batch)
    num_tokens = len(batch.input_ids)
    other = plain.input_ids.clone()
    other[num_tokens:] = torch.arange(10, 10 + len(other) - num_tokens)
    found = computed(task, head, replace(plain, input_ids=other))
    for mine, expected in zip(found, computed(task, head, plain), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-14)


lengths = st.lists(st.integers(1, 200), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(lengths, st.integers(1, 32), st.sampled_from([None, 62, 64, 512, 8192]))
def test_shapes_have_room_and_are_few(sizes: list[int], batch_size: int, limit: int | None) -> None:
    sizes = [min(size, limit or size) for size in sizes]
    batch = pack([Encoding(n, [7] * size) for n, size in enumerate(sizes)])
    shape = Shape.of(batch, batch_size, limit)
    tail = shape.tokens - sum(sizes)
    assert 1 <= tail <= min(MOST, limit or MOST, shape.longest)
    assert tail <= max(64, sum(sizes) / 8), "at most an eighth more, or 64 tokens"
    assert shape.longest >= max(*sizes, LONGEST) and shape.longest.bit_count() == 1
    assert len(sizes) < shape.sequences <= len(sizes) + batch_size
    made = padded(batch, shape, pad_id=0, padding={}, of_words=False)
    assert made.cu_seqlens.diff().tolist() == list(made.lengths)
    assert made.cu_seqlens.dtype == torch.int32 and int(made.cu_seqlens[-1]) == shape.tokens
    for name in ("input_ids", "position_ids"):
        mine = getattr(made, name)
        assert len(mine) == shape.tokens
        assert torch.equal(mine[: sum(sizes)], getattr(batch, name))
    assert int(made.position_ids.max()) == max(*sizes, tail) - 1
    assert Shape.of(batch, batch_size, limit) == shape
    assert made.longest == shape.longest and made.max_seqlen == max(*sizes, tail)


def test_number_of_shapes() -> None:
    """Batches of 32 sequences like those of NLI data come in few shapes."""
    torch.manual_seed(0)
    seen = set()
    for _ in range(1000):
        drawn = torch.randn(32).mul(0.45).add(3.55).exp().int().clamp(4, 128)  # about 39 tokens
        seen.add(Shape.of(pack([Encoding(0, [7] * n) for n in drawn.tolist()]), 32, 512))
    assert len(seen) <= 14


class Plain:
    """Records nothing: a replay computes again what would have been recorded."""

    def __init__(self, device: Any = None) -> None:
        self.replays = self.runs = 0
        made.append(self)

    def run(self, action: Callable[[], None], *, strict: bool = False) -> None:
        self.runs += 1
        action()

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.replays += 1
            action()

        return replay

    def random_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_random_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


made: list[Plain] = []


class Refusing(Plain):
    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")


class Waiting(Plain):
    """Its device is waited for in the middle of the backward pass."""

    def run(self, action: Callable[[], None], *, strict: bool = False) -> None:
        if strict:
            graph = torch.autograd.graph
            with graph.saved_tensors_hooks(lambda t: t, _refused):
                action()
        action()


def _refused(value: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("called a synchronizing CUDA operation")


class Idle(Plain):
    """Its replays do nothing."""

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class Wrong(Plain):
    """Its replays take the step twice: the loss is right, the update is not."""

    def record(self, action: Callable[[], None]) -> Callable[[], None]:
        return lambda: (action(), action())  # type: ignore[return-value]


def trained(
    config: TrainConfig, patch: pytest.MonkeyPatch, recorder: Any = None
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Train in double precision, with or without a recorder; weights, and lines for the user."""
    made.clear()
    lines: list[str] = []
    with patch.context() as patch:
        if recorder is not None:
            patch.setattr(graphs, "why_no_graph", lambda step: step.task.why_no_graph)
            patch.setattr(graphs, "CudaRecorder", recorder)
            setting = config.cuda_graphs if config.cuda_graphs != "off" else "auto"
            config = replace(config, cuda_graphs=setting)
        patch.setattr(train.Reporter, "say", lambda self, line: lines.append(line))
        task = task_of(config)
        torch.manual_seed(7)
        head = task.head().double()
        fit(task, config, head=head)
    return {name: value.detach().clone() for name, value in head.named_parameters()}, lines


EVERYTHING = {"weight_decay": 0.3, "clip": 0.5, "warmup": 0.2, "layer_decay": 0.8, "epochs": 3.0}


@pytest.mark.parametrize(
    ("kind", "family", "vocabulary"),
    [
        ("single", "bert", "on"),
        ("weighted", "modernbert", "off"),
        ("windows", "distilbert", "on"),
        ("tag", "roberta", "on"),
        ("tag", "albert", "off"),
    ],
)
def test_the_trajectory_is_that_of_plain_steps(
    kind: str, family: str, vocabulary: str, place: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Weights, moments, logged losses, norms and rates, and rows that only decay."""
    base = config_of(kind, place, family, active_vocabulary=vocabulary, **EVERYTHING)
    expected, _ = trained(replace(base, out=str(tmp_path / "off")), monkeypatch)
    found, lines = trained(replace(base, out=str(tmp_path / "on")), monkeypatch, Plain)
    assert made[0].replays > 3 and not [line for line in lines if "CUDA" in line]
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10, msg=name)
    for file in ("best/model.safetensors", "last/model.safetensors", "last/optimizer.safetensors"):
        ours, theirs = (load_file(str(tmp_path / n / file)) for n in ("on", "off"))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-10, msg=name)
    for mine, other in zip(*(logged(tmp_path / n) for n in ("on", "off")), strict=True):
        assert mine.keys() == other.keys()
        for name in mine.keys() - {"examples_per_second"}:
            assert mine[name] == pytest.approx(other[name], abs=2e-4), name


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (Refusing, "stream is capturing"),
        (Waiting, "synchronizing CUDA operation"),
        (Idle, "a replay gave loss, gradient norm and update"),
        (Wrong, "a replay gave loss, gradient norm and update"),
    ],
)
def test_what_fails_leaves_no_trace(
    recorder: Any, reason: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = config_of("single", place, active_vocabulary="on", **EVERYTHING)
    expected, _ = trained(replace(base, out=str(tmp_path / "off")), monkeypatch)
    found, lines = trained(replace(base, out=str(tmp_path / "on")), monkeypatch, recorder)
    told = [line for line in lines if "CUDA graphs" in line]
    assert len(told) == 1 and reason in told[0]
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10, msg=name)
    demanded = replace(base, out=str(tmp_path / "demanded"), cuda_graphs="on")
    with pytest.raises(ValueError, match="--cuda-graphs on: steps cannot be captured"):
        trained(demanded, monkeypatch, recorder)


def test_steps_of_several_passes_and_too_many_shapes_run_as_they_are(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 1)
    base = config_of("tag", place, **EVERYTHING, max_length=40, max_tokens=120)
    expected, _ = trained(replace(base, out=str(tmp_path / "off")), monkeypatch)
    found, lines = trained(replace(base, out=str(tmp_path / "on")), monkeypatch, Plain)
    assert [line for line in lines if "--max-tokens" in line]
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-10, msg=name)


def test_a_run_continues_with_the_other_setting(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped with plain steps and continued with recorded ones, and the other way round."""
    base = config_of("single", place, active_vocabulary="on", **EVERYTHING)
    trained(replace(base, out=str(tmp_path / "whole")), monkeypatch)
    for before, after in ((None, Plain), (Plain, None)):
        out = tmp_path / f"{before}"
        asked = iter([False] * 12 + [True])
        with monkeypatch.context() as patch:
            patch.setattr(train.Interruption, "asked", lambda self, asked=asked: next(asked))
            with pytest.raises(Stopped):
                trained(replace(base, out=str(out)), monkeypatch, before)
        trained(replace(base, out=str(out), resume=True), monkeypatch, after)
        assert (after is None) != bool(made and made[0].replays)
        ours, theirs = (
            load_file(str(folder / "last/model.safetensors"))
            for folder in (out, tmp_path / "whole")
        )
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            # a checkpoint holds float32, and so does what follows; biases of keys have no effect,
            # and a gradient that is rounding alone
            if not name.endswith("key.bias"):
                expected = theirs[name].to(value.dtype)
                torch.testing.assert_close(value, expected, rtol=0, atol=1e-3, msg=name)


def step_of(config: TrainConfig, name: str | None = None) -> Step:
    task = load_task(config, name) if name else task_of(config)
    head = task.head()
    return Step(task, head, make_optimizer(head, config), config, Accelerator(cpu=True), "fp32")


def test_every_module_trains_whatever_came_before(place: Path) -> None:
    step = step_of(config_of("single", place))
    assert all(module.training for module in step.head.modules()), "a loaded model does not"
    step.head.eval()  # as prediction leaves it
    step(batches_of(step.task, (7,)), weight=1.0, rate=1.0)
    assert all(module.training for module in step.head.modules())


def test_between_steps_rates_are_numbers(place: Path) -> None:
    step = step_of(config_of("single", place))
    stepped: list[list[float]] = []
    graph = GraphStep(
        step, Plain(), say=pytest.fail,
        stepped=lambda optimizer: stepped.append([g["lr"] for g in optimizer.param_groups]),
    )  # fmt: skip
    batch = batches_of(step.task)[0]
    results = [graph([batch], weight=1.0, rate=rate) for rate in (0.25, 0.5, 1.0, 0.75)]
    assert [rates[0] for rates in stepped] == [0.0025, 0.005, 0.01, 0.0075]
    assert all(type(rate) is float for rates in stepped for rate in rates)
    for group in step.optimizer.state_dict()["param_groups"]:
        assert type(group["lr"]) is float and group["capturable"] is False
    losses = [float(loss) for loss, _ in results]
    assert len(set(losses)) == 4, "each step's loss is a tensor of its own"


def test_a_loss_that_is_no_number_comes_through(place: Path) -> None:
    step = step_of(config_of("single", place))
    lines: list[str] = []
    graph = GraphStep(step, Plain(), say=lines.append, stepped=lambda optimizer: None)
    batch = batches_of(step.task)[0]
    for _ in range(5):
        graph([batch], weight=1.0, rate=1.0)
    with torch.no_grad():
        next(step.head.parameters()).fill_(float("nan"))
    loss, norm = graph([batch], weight=1.0, rate=1.0)
    assert torch.isnan(loss) and torch.isnan(norm) and not lines and not graph.reason


@pytest.mark.parametrize(
    ("kind", "family", "changes", "reason"),
    [
        ("single", "bert", {}, "the device is cpu, not cuda"),
        ("tag", "bert", {"crf": True}, "the CRF walks"),
        ("tag", "bert", {"label_pieces": "all"}, "how many pieces are scored"),
        ("tag", "bert", {"word_score": "max"}, "how many pieces are scored"),
        ("single", "deberta-v2", {}, "deberta-v2 models attend in groups"),
        ("single", "mpnet", {}, "the model is padded: mpnet models"),
        ("single", "bert", {"batching": "padded"}, "the model is padded: batching is padded"),
    ],
)
def test_reasons(kind: str, family: str, changes: dict, reason: str, place: Path) -> None:
    config = config_of(kind, place, family, **changes)
    step = step_of(config)
    assert reason in why_no_graph(step)
    lines: list[str] = []
    assert choose_step(step, "auto", print, lines.append) is step
    assert len(lines) == 1 and reason in lines[0]
    assert choose_step(step, "off", print, pytest.fail) is step
    with pytest.raises(ValueError, match=r"--cuda-graphs on: .*write auto or off"):
        choose_step(step, "on", print, pytest.fail)


def test_spans_have_no_fixed_shapes(place: Path) -> None:
    config = NerConfig(model=str(place / "bert"), data=str(place / "tag"))
    assert "the loss of ner has shapes of its own" in why_no_graph(step_of(config, "ner"))
