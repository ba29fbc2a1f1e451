"""Recorded passes: a recorder that calls functions again stands for CUDA graphs.

Attention reads the boundaries of sequences as a tensor, as FlashAttention does.
"""

from __future__ import annotations

import copy
import gc
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from finetune.api import train_multitask
from finetune.config.recipes import load_multitask
from finetune.inference.loop import values_of_examples
from finetune.models import attention, graphs
from finetune.models.dropout import dropout
from finetune.models.encoder import Encoder
from finetune.models.families import FAMILIES
from finetune.models.graphs import EncoderGraphs
from finetune.models.heads.pretrained import SequenceClassifier
from finetune.models.master_weights import MasterWeights
from finetune.models.packing import PackedCall
from finetune.models.recording import PassKey, Recording
from finetune.models.shapes import MULTIPLE, RowShape, RowShapes, best_sizes, with_fillers
from finetune.preprocessing.batching import pack
from finetune.preprocessing.encodings import EncodedExamples
from finetune.runtime.progress import Reporter
from finetune.training import distillation
from finetune.training.run_folder import open_run
from finetune.types import Batch, TokenSequence
from tests import fixtures as fx
from tests import tiny
from tests.covering import few
from tests.forks import in_two_forks
from tests.models.call_again import CallAgain
from tests.models.parity import CLOSE, assert_equal, encodings
from tests.operators import DEVICE, finding_waits
from tests.small_data import read_jsonl
from tests.training.same_weights import same_files
from tests.training.test_multitask import write_recipe

PACKED = [name for name in tiny.PACKED if FAMILIES[name].packing == "interface"]


def attend(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
    """Attention of a packed row [T, A, D] that reads no length on the host."""
    positions = torch.arange(len(query), device=query.device)
    sequence = torch.searchsorted(call.layout.cu_seqlens[1:], positions.int(), right=True)
    allowed = sequence[:, None] == sequence
    if (window := call.sliding_window) is not None:
        allowed &= (positions[:, None] - positions).abs() < window
    scale = query.shape[-1] ** -0.5 if call.scaling is None else call.scaling
    scores = torch.einsum("iad,jad->aij", query, key) * scale
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return torch.einsum("aij,jad->iad", dropout(weights, call.dropout), value)


@pytest.fixture(autouse=True)
def device_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_flash_supports", lambda query: True)
    monkeypatch.setattr(attention, "_flash", attend)
    monkeypatch.setattr(graphs, "SIGHTINGS", 1)
    monkeypatch.setattr(graphs, "PREDICTED_SIGHTINGS", 1)


class Pool(CallAgain):
    """Spoils the results of earlier passes in a replay, as passes that share memory do."""

    def __init__(self) -> None:
        self.results: list[list[Tensor]] = []

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        replay, results = super().record(run)
        self.results.append(results)

        def spoiling() -> None:
            for tensors in self.results if results else ():
                for tensor in tensors:
                    tensor.fill_(torch.nan)
            replay()

        return spoiling, results


SHAPES = RowShapes((96, 160, 224), 16, 24)


def batch_of(seed: int, model: Any, sequences: int = 8) -> Batch:
    lengths = np.random.default_rng(seed).integers(3, 24, sequences).tolist()
    return pack(encodings(model, lengths, seed))


def encoder_of(family: str = "bert", p: float = 0.1, **changes: Any) -> Encoder:
    return Encoder(tiny.model(family, dropout=p, **changes).double().train())


def replaying(
    encoder: Encoder, recorder: CallAgain | None, report: Callable[[str], object] = pytest.fail
) -> MasterWeights:
    """Let an encoder replay its passes in training; its weights and gradients are flat."""
    trained = {n: weight for n, weight in encoder.named_parameters() if weight.requires_grad}
    group = {"names": list(trained), "params": list(trained.values())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "DEVICE", encoder.model.device.type)
        masters = MasterWeights(encoder, [group], "fp32")
    encoder.graphs = EncoderGraphs(encoder, SHAPES, recorder, masters, report)
    return masters


def backward(masters: MasterWeights, loss: Tensor) -> None:
    loss.backward()
    masters.add_gradients()


def gradients_of(masters: MasterWeights) -> list[Tensor]:
    return [gradient.clone() for gradient in masters.gradients_of_step()]


def steps(
    encoder: Encoder, batches: Sequence[Batch], recorder: CallAgain | None, **options: Any
) -> tuple[list[Tensor], EncoderGraphs]:
    """States and gradients of two steps, and the state of the generator after them."""
    masters, results = replaying(encoder, recorder, **options), []
    for step in range(2):
        torch.manual_seed(step)
        for batch in batches:
            hidden = encoder(batch)
            backward(masters, (hidden**3).sum())
            results.append(hidden.detach())
        results += gradients_of(masters)
        masters.end_step()
        with torch.no_grad():
            for weight in encoder.parameters():
                weight.mul_(1.01)
    assert encoder.graphs is not None
    return [*results, torch.get_rng_state()], encoder.graphs


@pytest.mark.parametrize("family", few(PACKED, "bert", "modernbert", "albert"))
def test_replayed_passes_equal_plain_ones_to_the_bit(family: str) -> None:
    """With dropout, several shapes, several micro-batches in a step, and new weights."""
    encoder = encoder_of(family)
    batches = [batch_of(seed, encoder.model, 4 + 4 * seed) for seed in range(3)]
    plain, _ = steps(copy.deepcopy(encoder), batches, None)
    replayed, run = steps(encoder, batches, Pool())
    assert len(run.recordings) == len({key.shape for key in run.recordings}) > 1
    assert all(map(torch.equal, plain, replayed))


def seeds(*numbers: int) -> list[Batch]:
    return [batch_of(number, tiny.model(), 8) for number in numbers]


def test_models_that_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    for family, reason in (("deberta-v2", "reads lengths"), ("squeezebert", "are padded")):
        assert reason in graphs.reason_to_run_plainly(encoder_of(family))


@pytest.mark.parametrize("with_head", [False, True])
def test_hidden_states_of_layers_are_replayed(with_head: bool) -> None:
    """As distillation compares them."""
    results = []
    for recorder in (None, Pool()):
        torch.manual_seed(0)
        encoder, read = encoder_of(), None
        if with_head:
            name = fx.checkpoint("bert", dropout=0.1)
            head = SequenceClassifier.from_pretrained(name, labels=["a", "b"]).double().train()
            encoder, read = head.encoder, head.with_states
        masters = replaying(encoder, recorder)
        for seed in (1, 2):
            torch.manual_seed(seed)
            output, states = (read or encoder)(batch_of(seed, encoder.model), [0, 1])
            backward(masters, (output**3).sum() + sum((state**2).sum() for state in states))
        assert encoder.graphs and bool(encoder.graphs.recordings) == (recorder is not None)
        results.append([output, *states, *gradients_of(masters)])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("family", PACKED)
def test_fillers_change_nothing(family: str) -> None:
    """Without dropout: states and gradients are those of a batch without fillers."""
    model = tiny.model(family).double()
    reference, encoder = Encoder(copy.deepcopy(model)), Encoder(model)
    batch = pack(encodings(model, (5, 22, 17, 3, 1, 9)))
    encoder.graphs = EncoderGraphs(encoder, RowShapes((96,), 12, 22))
    assert_equal(encoder(batch), reference(batch), model, reference.model, CLOSE.get(family, 1e-12))


def test_another_pass_between_forward_and_backward_runs_plainly() -> None:
    """Such as the second pass of R-Drop, or an evaluation: it would overwrite what waits."""
    encoder = encoder_of()
    results = []
    for each, recorder in ((copy.deepcopy(encoder), None), (encoder, Pool())):
        masters = replaying(each, recorder)
        torch.manual_seed(3)
        batch = batch_of(1, each.model)
        each(batch).sum()  # dropped: it waits for nothing
        first, second = each(batch), each(batch)
        with torch.no_grad():
            third = each(batch)
        assert not torch.equal(first, second), "passes draw different masks"
        backward(masters, ((first - second) ** 2 * first).sum())
        results.append([first, second, third, *gradients_of(masters)])
    assert all(map(torch.equal, *results))


class OtherNumbers(CallAgain):
    """Draws other random numbers in a replay."""

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        replay, results = super().record(run)
        return (lambda: (torch.rand(1), replay()) and None), results


class Rounds(CallAgain):
    """Rounds otherwise in a replay, as kernels that add in any order."""

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        replay, results = super().record(run)

        def rounding() -> None:
            replay()
            for result in results:
                result.mul_(1 + 1e-6)

        return rounding, results


class Fails(CallAgain):
    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        run()
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


class NoMemory(CallAgain):
    def warm_up(self, run: Callable[[], Any]) -> Any:
        run()
        raise torch.OutOfMemoryError("out of memory")


class RecordsNothing(CallAgain):
    """As a recording does whose kernels start on another device."""

    def record(self, run: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        return (lambda: None), run()


class SaysNothing(CallAgain):
    def warm_up(self, run: Callable[[], Any]) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("recorder", "reason"),
    [
        (SaysNothing(), "AssertionError"),
        (OtherNumbers(), "a replayed pass differs from the plain pass"),
        (RecordsNothing(), "a replayed pass differs from the plain pass"),
        (Fails(), "operation not permitted when stream is capturing"),
        (NoMemory(), "out of memory"),
    ],
)
def test_one_sentence_and_the_same_numbers_without_recordings(
    recorder: CallAgain, reason: str
) -> None:
    p = 0.0 if isinstance(recorder, RecordsNothing) else 0.1
    encoder, said = encoder_of(p=p), list[str]()
    plain, _ = steps(copy.deepcopy(encoder), seeds(1, 2), None)
    found, run = steps(encoder, seeds(1, 2), recorder, report=said.append)
    assert said == [f"CUDA graphs are not used: {reason}"] and recorder.failure == reason
    assert not run.recordings and all(map(torch.equal, plain, found))


def test_threads_do_not_mix_their_rows() -> None:
    class Slow(CallAgain):
        def record(self, run: Any) -> Any:
            replay, results = super().record(run)
            return (lambda: (time.sleep(0.01), replay()) and None), results

    encoder = encoder_of(p=0.0).eval()
    (batch,) = seeds(1)
    batches = [batch, replace(batch, input_ids=batch.input_ids.flip(0))]
    with torch.no_grad():
        expected = [encoder(batch) for batch in batches]
    replaying(encoder, Slow())

    def states_of(number: int) -> list[Tensor]:
        with torch.no_grad():
            return [encoder(batches[number]) for _ in range(5)]

    states_of(0)  # records the pass
    with ThreadPoolExecutor(2) as threads:
        for found, states in zip(threads.map(states_of, range(2)), expected, strict=True):
            torch.testing.assert_close(torch.stack(found), states.expand(5, -1, -1))


def test_passes_that_are_recorded_in_inference_mode_are_replayed_outside() -> None:
    encoder, (batch,) = encoder_of(p=0.0).eval(), seeds(1)
    expected = encoder(batch).detach()
    replaying(encoder, Pool())
    with torch.inference_mode():
        torch.testing.assert_close(encoder(batch), expected)
    with torch.no_grad():
        torch.testing.assert_close(encoder(batch), expected)
    assert encoder.graphs is not None and encoder.graphs.recordings


def test_an_encoder_is_freed_with_its_recordings() -> None:
    """Else each model of a search would keep the memory of its device."""
    encoder = encoder_of()
    encoder.prediction_graphs = EncoderGraphs(encoder, SHAPES, None)
    weight = weakref.ref(next(encoder.parameters()))
    gc.disable()
    try:
        del encoder
        assert weight() is None
    finally:
        gc.enable()


def test_a_replay_may_round_otherwise_than_equal_plain_passes() -> None:
    encoder = encoder_of()
    plain, _ = steps(copy.deepcopy(encoder), seeds(1, 2), None)
    found, run = steps(encoder, seeds(1, 2), Rounds())
    assert run.recordings
    for one, other in zip(plain, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3)


def test_a_failure_in_the_middle_of_a_step_keeps_its_gradients() -> None:
    class Later(Pool):
        def record(self, run: Any) -> Any:
            if len(self.results) >= 2:
                raise RuntimeError("out of memory")
            return super().record(run)

    encoder, said = encoder_of(), list[str]()
    batches = [batch_of(seed, encoder.model, number) for seed, number in ((1, 8), (2, 3), (3, 8))]
    plain, _ = steps(copy.deepcopy(encoder), batches, None)
    found, _ = steps(encoder, batches, Later(), report=said.append)
    assert len(said) == 1 and all(map(torch.equal, plain, found))


def test_wrong_fillers_are_seen_before_any_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_sequence(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
        if call.layout.shape is None:
            return attend(query, key, value, call)
        weights = torch.einsum("iad,jad->aij", query, key).softmax(-1)
        return torch.einsum("aij,jad->iad", weights, value)

    monkeypatch.setattr(attention, "_flash", one_sequence)
    encoder, said, batch = encoder_of(p=0.0), list[str](), seeds(1)[0]
    expected = copy.deepcopy(encoder)(batch)
    replaying(encoder, Pool(), said.append)
    assert torch.equal(encoder(batch), expected) and torch.equal(encoder(batch), expected)
    assert said == ["CUDA graphs are not used: filling sequences change the states of others"]


def test_no_graph_of_the_check_of_fillers_is_alive_in_a_recording() -> None:
    """A CUDA graph cannot record nodes that were made on another stream."""
    encoder = encoder_of()
    batch = batch_of(1, encoder.model)
    key = PassKey(SHAPES.shape_of(RowShape.of(batch)), (), True, True, (False, torch.float32))
    masters = replaying(encoder, None)
    recording = Recording(encoder, key, with_fillers(batch, key.shape), masters)
    recording.require_equal_without_fillers(batch)
    assert recording.gradients and not recording.live


def test_exchanged_weights_are_recorded_again() -> None:
    encoder = encoder_of()
    plain = copy.deepcopy(encoder)
    masters = replaying(encoder, Pool())
    for change in (False, True):
        for each in (plain, encoder):
            weight = each.model.encoder.layer[0].output.dense.weight
            if change:
                weight.data = weight.data * 2
        torch.manual_seed(0)
        expected = plain(seeds(1)[0])
        torch.manual_seed(0)
        found = encoder(seeds(1)[0])
        backward(masters, found.sum())
        plain.graphs = EncoderGraphs(plain, SHAPES, None)
    assert torch.equal(found, expected)
    assert encoder.graphs is not None and len(encoder.graphs.recordings) == 1  # of the new ones


def test_passes_are_recorded_again_after_a_failure_of_another_encoder() -> None:
    """As of a teacher, or another task: CUDA may leave them a generator that is no longer used."""
    encoder, said = encoder_of(), list[str]()
    run = steps(encoder, seeds(1), Pool())[1]
    before = dict(run.recordings)
    steps(encoder_of(), seeds(1), Fails(), report=said.append)
    encoder(seeds(1)[0])
    assert said and before and before.keys() == run.recordings.keys()
    assert all(run.recordings[key] is not recording for key, recording in before.items())


def test_passes_in_single_precision_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their attention pads all sequences to the longest of the shape."""

    def padded(query: Tensor, key: Tensor, value: Tensor, call: PackedCall) -> Tensor:
        call.layout.groups = (call.layout.all_padded(),)
        rows = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
        return attention._padded(*rows, call)[0]

    monkeypatch.setattr(attention, "_flash", padded)
    encoder = encoder_of()
    plain, _ = steps(copy.deepcopy(encoder), seeds(1, 2), None)
    replayed, run = steps(encoder, seeds(1, 2), Pool())
    assert run.recordings and all(map(torch.equal, plain, replayed))


def test_passes_under_autocast_are_replayed() -> None:
    """As training in fp16 runs them: the weights are float32."""
    encoder, results = Encoder(tiny.model("bert", dropout=0.1).train()), []
    for each, recorder in ((copy.deepcopy(encoder), None), (encoder, Pool())):
        masters = replaying(each, recorder)
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            with torch.autocast("cpu", torch.bfloat16):
                hidden = each(batch_of(seed, each.model))
            backward(masters, (hidden.float() ** 3).sum())
        assert each.graphs and bool(each.graphs.recordings) == (recorder is not None)
        results.append([hidden, *gradients_of(masters)])
    assert all(map(torch.equal, *results))


def test_attention_by_groups_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads lengths on the host, and a recording keeps them."""
    monkeypatch.setattr(attention, "_flash_supports", lambda query: False)
    encoder = encoder_of()
    plain, _ = steps(copy.deepcopy(encoder), seeds(1, 2), None)
    found, run = steps(encoder, seeds(1, 2), Pool(), report=pytest.fail)
    assert not run.recordings and run.recorder and not run.recorder.failure
    assert graphs.use_of_graphs(encoder).endswith("attention would mostly compute padding")
    assert all(map(torch.equal, plain, found))


@pytest.mark.parametrize("training", [True, False])
def test_a_pass_is_recorded_when_its_shape_occurs_often(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sooner in training, whose shapes are known to occur again."""
    monkeypatch.setattr(graphs, "SIGHTINGS", 3)
    monkeypatch.setattr(graphs, "PREDICTED_SIGHTINGS", 5)
    encoder = encoder_of().train(training)
    replaying(encoder, Pool())
    for number in range(3 if training else 5):
        assert encoder.graphs and not encoder.graphs.recordings, number
        with torch.set_grad_enabled(training):
            encoder(seeds(1)[0])
    assert len(encoder.graphs.recordings) == 1


def test_sizes_have_the_fewest_fillers() -> None:
    chance = np.random.default_rng(0)
    for _ in range(100):
        tokens, most = chance.integers(1, 300, chance.integers(1, 30)), int(chance.integers(1, 4))
        multiples = sorted({-(-number // MULTIPLE) * MULTIPLE for number in tokens})

        def total(sizes: Sequence[int], tokens: Any = tokens) -> int:
            return sum(min(size for size in sizes if size >= number) for number in tokens)

        fewer = min(most, len(multiples)) - 1
        least = min(total((*some, multiples[-1])) for some in combinations(multiples[:-1], fewer))
        sizes = best_sizes(tokens, most)
        assert total(sizes) == least and len(sizes) <= most


def test_eight_shapes_hold_the_batches_of_a_run() -> None:
    """With at most 4.2 % of fillers, for lengths such as those of MNLI."""
    chance = np.random.default_rng(0)
    lengths = chance.normal(3.55, 0.45, 20_000)
    lengths = np.clip(np.exp(lengths), 4, 128).astype(int).reshape(-1, 32)
    rows = [RowShape(int(row.sum()), len(row), int(row.max())) for row in lengths]
    shapes = RowShapes.of(rows[:300])
    batches = [pack([TokenSequence(0, [5] * length) for length in row]) for row in lengths[300:400]]
    found = [(shapes.shape_of(RowShape.of(batch)), batch) for batch in batches]
    held = [(shape.num_tokens, len(batch.input_ids)) for shape, batch in found if shape is not None]
    assert len(shapes.sizes) == 8 and len(held) >= 95
    assert sum(size for size, _ in held) < 1.042 * sum(size for _, size in held)


@pytest.mark.parametrize(
    ("lengths", "held"),
    [
        ([24] * 8, True),
        ([24] * 9, True),
        ([24] * 10, False),
        ([25], False),
        ([1] * 16, False),
        ([1], True),
    ],
)
def test_a_row_is_filled_up_to_its_shape_by_sequences(lengths: list[int], held: bool) -> None:
    batch = pack([TokenSequence(0, [7] * length) for length in lengths])
    shape = SHAPES.shape_of(RowShape.of(batch))
    assert (shape is not None) == held
    if shape is not None:
        row = with_fillers(batch, shape)
        ends = row.cu_seqlens.tolist()
        assert len(row.input_ids) == len(row.position_ids) == ends[-1] == shape.num_tokens
        assert len(ends) - 1 == len(row.lengths) == shape.num_sequences
        assert np.diff(ends).tolist() == list(row.lengths) and max(row.lengths) <= shape.longest
        starts = [start for start, length in zip(ends, row.lengths, strict=False) if length]
        assert row.position_ids[starts].tolist() == [0] * len(starts)
        assert int(row.position_ids.max()) < shape.longest


@pytest.mark.parametrize("family", few(PACKED, "bert", "modernbert", "albert"))
def test_recorded_passes_read_and_copy_nothing_on_the_host(family: str) -> None:
    encoder = Encoder(tiny.model(family, dropout=0.1).to(DEVICE).train())
    batch = batch_of(1, encoder.model)
    key = PassKey(RowShape(160, 16, 24), (1,), True, True, (False, torch.float32))
    row = with_fillers(batch, key.shape).to(DEVICE)
    recording = Recording(encoder, key, row, replaying(encoder, None))
    with finding_waits() as waits:
        recording.forward()
        recording.write_gradients()
    assert len(recording.gradients) > 10
    assert not waits, "\n".join(waits)


@pytest.fixture
def graphs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU pass for a GPU that can record."""
    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    monkeypatch.setattr(graphs, "HALF", (torch.float64,))
    monkeypatch.setattr(graphs, "new_recorder", Pool)


@pytest.mark.usefixtures("graphs_on_cpu")
def test_predictions_are_replayed_and_evaluations_find_their_recordings_again() -> None:
    encoder = encoder_of(p=0.0).eval()
    lengths = np.random.default_rng(0).integers(3, 24, 100)
    made = encodings(encoder.model, lengths.tolist())

    def passes() -> list[Any]:
        found = values_of_examples(
            encoder,
            EncodedExamples.of([[sequence] for sequence in made]),
            lambda states, batch: np.split(states.numpy(), np.cumsum(batch.lengths)[:-1]),
            device=torch.device("cpu"),
            max_tokens=300,
        )
        return [states for _, (states,) in sorted(found)]

    first, run = passes(), encoder.prediction_graphs
    assert encoder.graphs is None and run is not None, "off outside of predictions"
    recordings = dict(run.recordings)
    second = passes()
    assert encoder.prediction_graphs is run and run.recordings == recordings != {}, "kept"
    plain = encoder(pack(made)).detach().numpy()
    for found in (first, second):
        np.testing.assert_allclose(np.concatenate(found), plain, rtol=0, atol=1e-12)
    assert copy.deepcopy(encoder).graphs is None


@pytest.mark.usefixtures("graphs_on_cpu")
def test_calls_of_other_sizes_each_time_record_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explanations of texts differ in their sizes."""
    monkeypatch.setattr(graphs, "PREDICTED_SIGHTINGS", 3)
    encoder = encoder_of(p=0.0).eval()
    batches = [batch_of(1, encoder.model), batch_of(2, encoder.model, sequences=2)]
    for batch in batches * 4:
        rows = [RowShape.of(batch)]
        with graphs.replayed_passes(encoder, rows.copy), torch.no_grad():
            encoder(batch)
        run = encoder.prediction_graphs
        assert run is not None and run.seen.total() == 1 and not run.recordings


@pytest.mark.usefixtures("graphs_on_cpu")
def test_predictions_in_single_precision_have_no_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their batches are of equal lengths: no shape suits all of them."""
    monkeypatch.setattr(graphs, "HALF", (torch.bfloat16,))
    encoder = encoder_of(p=0.0).eval()
    trained = encoder.graphs = EncoderGraphs(encoder, SHAPES, Pool(), report=pytest.fail)
    batch = batch_of(1, encoder.model)
    with graphs.replayed_passes(encoder, lambda: [RowShape.of(batch)]), torch.no_grad():
        encoder(batch)
    assert encoder.graphs is trained and not trained.recordings


SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "layer decay, frozen, bilstm": (
        "classify",
        {"layer_decay": 0.8, "freeze": "1", "bilstm": True},
    ),
    "pairs, bitfit": ("bi", {"tuning": "bitfit"}),
    "frozen": ("classify", {"tuning": "head"}),
    "pretrain": ("pretrain", {}),
    "gradcache": ("sentence", {"objective": "simcse", "max_tokens": 60}),
    "bf16, crf, modernbert": ("tag", {"crf": True, "precision": "bf16", "model": "modernbert"}),
    "bf16, lora": ("classify", {"precision": "bf16", "tuning": "lora"}),
    "fp32, micro-batches": ("classify", {"precision": "fp32", "max_tokens": 60}),
    "bf16, mask, micro-batches": (
        "classify",
        {"precision": "bf16", "tuning": "mask", "max_tokens": 60},
    ),
    "checkpointed": ("classify", {"gradient_checkpointing": True, "steps": 2}),
}
PLAIN = {"checkpointed"}
"""What is not replayed."""


@pytest.mark.parametrize(
    "name",
    few(
        SETUPS,
        "gradcache",
        "fp32, micro-batches",
        "bf16, crf, modernbert",
        "bf16, lora",
        "checkpointed",
    ),
)
def test_runs_are_equal_with_and_without_recordings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, settings = SETUPS[name]
    settings = {"steps": 4, "eval_every": 2, "batch_size": 4, "lr": 1e-3, **settings}
    settings["model"] = fx.checkpoint(settings.get("model", "bert"), dropout=0.1)
    runs, used = [], []
    monkeypatch.setattr("finetune.models.sparse_embedding.MOST_OCCURRING", 0.0)
    monkeypatch.setattr(graphs, "FEWEST_STEPS", 0)
    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    for recorder in (Pool, lambda: None):
        monkeypatch.setattr(graphs, "new_recorder", recorder)
        out = tmp_path / str(len(runs))
        result = fx.fit(fx.config(setup, **settings, out=str(out)))
        weights = (out / "last" / "model.safetensors").read_bytes()
        rows = [row for row in read_jsonl(out / "log.jsonl") if "loss" in row]
        runs.append((weights, [(row["loss"], row["gradient_norm"]) for row in rows]))
        used.append(result.cuda_graphs)
    assert runs[0] == runs[1]
    assert used[0].startswith("not used: " if name in PLAIN else "used for ")
    assert used[1].startswith("not used: ")


IN_TWO_PROCESSES = """
import os, runpy, sys
from finetune.models import attention, graphs
from tests.models.test_graphs import Pool, attend

attention._flash_supports, attention._flash = lambda query: True, attend
graphs.FEWEST_STEPS, graphs.SIGHTINGS, graphs.PREDICTED_SIGHTINGS = 0, 1, 1
graphs.DEVICE = "cpu"
graphs.new_recorder = Pool if sys.argv.pop(1) == "replayed" else lambda: None
record = graphs.Recording.record


def noted(*arguments):
    os.write(2, b"recorded\\n")  # all processes but the first print nothing
    record(*arguments)


graphs.Recording.record = noted
runpy.run_module("finetune", run_name="__main__")
"""


@pytest.mark.slow
def test_two_processes_are_equal_with_and_without_recordings(tmp_path: Path) -> None:
    """The exchange of gradients is outside of the recordings."""
    settings = {"steps": 4, "lr": 1e-3, "max_tokens": 60, "model": fx.checkpoint(dropout=0.1)}
    for way in ("replayed", "plain"):
        words = fx.words("classify", tmp_path / way, **settings)
        processes = in_two_forks([sys.executable, "-c", IN_TWO_PROCESSES, way, *words])
        outputs = [process.communicate() for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        assert all(("recorded" in said) == (way == "replayed") for _, said in outputs)
    same_files(tmp_path / "replayed", tmp_path / "plain")


@pytest.mark.parametrize(
    ("variable", "steps", "use"),
    [
        ("1", graphs.FEWEST_STEPS, "used for 1 shapes"),
        ("0", graphs.FEWEST_STEPS, "not used: turned off, or too few steps"),
        ("1", graphs.FEWEST_STEPS - 1, "not used: turned off, or too few steps"),
    ],
)
def test_passes_that_are_turned_off_or_few_run_plainly(
    variable: str, steps: int, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    monkeypatch.setattr(graphs, "CudaRecorder", Pool)
    monkeypatch.setenv("FINETUNE_CUDA_GRAPHS", variable)
    encoder = encoder_of()
    masters = replaying(encoder, None)
    with graphs.replayed_passes(encoder, lambda: [RowShape(96, 8, 24)], steps, masters):
        encoder(batch_of(1, encoder.model, 4))
        assert graphs.use_of_graphs(encoder) == use
        encoder.prediction_graphs = encoder.graphs
    assert encoder.prediction_graphs is None, "its memory is free"


@pytest.mark.slow
def test_the_passes_of_a_teacher_are_replayed_as_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = fx.trained("classify")
    monkeypatch.setattr(graphs, "FEWEST_STEPS", 0)
    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    monkeypatch.setattr(graphs, "HALF", (torch.float32,))
    runs = []
    for recorder in (Pool, lambda: None):
        monkeypatch.setattr(graphs, "new_recorder", recorder)
        teacher = distillation.load_teacher(start)
        settings = {"steps": 3, "lr": 1e-3, "out": str(tmp_path / str(len(runs)))}
        config = distillation.student_config(
            teacher.task.state.config, None, str(start), **settings
        )
        task, data = distillation.load_student(teacher, config)
        weights = distillation.Distillation()
        with open_run(config) as folder:
            distillation.fit_student(
                task, data, config, folder, Reporter(quiet=True), teacher, weights, layers=1
            )
        recordings = teacher.model.encoder.prediction_graphs.recordings
        assert bool(recordings) == (recorder is Pool)
        assert not any(key.training or key.has_gradients for key in recordings)
        runs.append((folder.last / "model.safetensors").read_bytes())
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_several_tasks_are_equal_with_and_without_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "FEWEST_STEPS", 0)
    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    record, trained, runs = Recording.record, list[Encoder](), []

    def watched(self: Recording, *arguments: Any) -> None:
        trained.extend([self.encoder] if self.key.has_gradients else [])
        record(self, *arguments)

    monkeypatch.setattr(Recording, "record", watched)
    recipe = load_multitask(write_recipe(tmp_path, tagged="tag"), epochs=1)
    for recorder in (Pool, lambda: None):
        monkeypatch.setattr(graphs, "new_recorder", recorder)
        out, quiet = tmp_path / str(len(runs)), Reporter(quiet=True)
        train_multitask(recipe, out, command="", reporter=quiet)
        runs.append([path.read_bytes() for path in sorted(out.glob("last/*/model.safetensors"))])
    assert len(runs[0]) == 2 and runs[0] == runs[1]
    assert len({id(encoder) for encoder in trained}) == 2
