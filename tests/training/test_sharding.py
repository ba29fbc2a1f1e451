"""FSDP in two processes: the weights of one process, whole models, and checkpoints of shards."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForTokenClassification, ConvBertConfig, ConvBertModel

from finetune.inference.loop import idle_batch, predict
from finetune.models.encoder import Encoder
from finetune.models.heads.masked_lm import MaskedLanguageModel
from finetune.models.heads.pair_classifier import PairClassifier
from finetune.models.sharding import is_sharded, shards, whole_state
from finetune.models.sharding import place as place_model
from finetune.tasks import load_task
from finetune.training.checkpoint import TrainerState, finish_checkpoint, load_shards, save_shards
from finetune.training.data import StepBatch, TrainingData
from finetune.training.optimizer import make_optimizer
from finetune.training.step import Step
from finetune.training.trainer import fit
from finetune.types import UserError
from tests import small_data as data
from tests.command import in_two_processes, run
from tests.tiny import model, save_tiny_checkpoint
from tests.training import test_step as one_step
from tests.training.test_trajectory import command, config_of

SMALL_PASSES = "--max-tokens", "60"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharding")
    for family in ("bert", "modernbert", "albert", "deberta-v2"):
        save_tiny_checkpoint(folder / family, family, dropout=0.0 if "-" in family else 0.1)
    data.sentiment(folder / "sentiment")
    data.entities(folder / "entities", words=3)
    return folder


def start(words: list[str], patch: pytest.MonkeyPatch, **settings: str) -> list[subprocess.Popen]:
    """Start a command under FSDP in two processes."""
    with patch.context() as launch:
        settings = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} | settings
        for name, value in settings.items():
            launch.setenv(name, value)
        return in_two_processes(words)


def finish(processes: list[subprocess.Popen], code: int = 0) -> list[str]:
    """Return the messages of both processes, which end with an exit code."""
    outputs = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [code, code], outputs
    return outputs


def require_close(folder: Path, other: Path) -> None:
    first, second = (load_file(each / "best" / "model.safetensors") for each in (folder, other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        if not name.endswith("key.bias"):  # no gradient but rounding, which AdamW blows up
            torch.testing.assert_close(second[name], value, rtol=0, atol=2e-4, msg=name)


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, and with more micro-batches in one process than in the other."""
    one = config_of("tag", place, tmp_path / "one", max_tokens=60, epochs=1.0)
    fit(*load_task(one, "tag"), one)
    two = replace(one, out=str(tmp_path / "two"))
    efficient = {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}  # the default of accelerate launch
    outputs = finish(start(command(two, "tag", *SMALL_PASSES), monkeypatch, **efficient))
    require_close(tmp_path / "one", tmp_path / "two")
    assert "subwords of the vocabulary" not in outputs[0], "all embeddings are trained"
    lines = [
        (tmp_path / n / "predictions.test.jsonl").read_text().splitlines() for n in ("one", "two")
    ]
    assert [json.loads(x)["tags"] for x in lines[0]] == [json.loads(x)["tags"] for x in lines[1]]
    assert AutoModelForTokenClassification.from_pretrained(tmp_path / "two" / "best")
    last = tmp_path / "two" / "last"
    whole = (tmp_path / "one" / "last" / "model.safetensors").stat().st_size
    files = sorted(last.glob("shard-*.safetensors"))
    assert len(files) == 2 and not (last / "model.safetensors").exists()
    assert all(file.stat().st_size < 1.9 * whole for file in files), "of 3: weights and moments"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "family", "settings"),
    [
        ("ner", "bert", {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}),
        ("crf", "modernbert", {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}),
        ("classify", "albert", {}),
        ("classify", "deberta-v2", {}),
        ("tag", "modernbert", {"FSDP_RESHARD_AFTER_FORWARD": "false"}),
    ],
)
def test_every_task_trains_the_weights_of_one_process(
    kind: str,
    family: str,
    settings: dict[str, str],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = "tag" if kind == "crf" else kind
    one = config_of(kind, place, tmp_path / "one", model=family, max_tokens=60)
    fit(*load_task(one, task), one)
    two = replace(one, out=str(tmp_path / "two"))
    more = {"crf": ["--crf"], "ner": ["--overlap", "8"]}.get(kind, [])
    finish(start(command(two, kind, *SMALL_PASSES, *more), monkeypatch, **settings))
    require_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_an_interrupted_and_a_killed_run_continue_bit_equal(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"epochs": 20.0, "model": "bert"}
    often = ("--eval-every", "25", "--save-every", "2", *SMALL_PASSES)
    runs = {
        name: config_of("classify", place, tmp_path / name, **settings)
        for name in ("whole", "stopped", "killed")
    }
    finish(start(command(runs["whole"], "classify", *often), monkeypatch))
    for name, number in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
        words = command(runs[name], "classify", *often)
        processes = start(words, monkeypatch)
        state = tmp_path / name / "last" / "trainer_state.json"
        deadline = time.monotonic() + 120
        while not state.exists() and time.monotonic() < deadline:
            assert [process.poll() for process in processes] == [None, None], "ended too early"
            time.sleep(0.01)
        processes[1].send_signal(number)  # not the one that writes
        outputs = [process.communicate(timeout=60) for process in processes]
        assert all(process.returncode for process in processes), outputs
        assert not (tmp_path / name / "metrics.json").exists(), "too late to show anything"
        if name == "stopped":
            (refused, _) = finish(in_two_processes([*words, "--resume"]), code=2)
            assert "was started with FSDP: continue so" in refused
        messages = finish(start([*words, "--resume"], monkeypatch))
        assert "continuing from step" in messages[0]
        files = [
            path.relative_to(tmp_path / "whole")
            for path in (tmp_path / "whole" / "last").glob("shard-*")
        ]
        assert len(files) == 2
        for file in (Path("best/model.safetensors"), Path("metrics.json")):
            whole, continued = ((tmp_path / run / file).read_bytes() for run in ("whole", name))
            assert whole == continued, (name, file)
        for file in files:  # whose headers have no fixed order
            first, second = (load_file(tmp_path / run / file) for run in ("whole", name))
            assert first.keys() == second.keys()
            assert all(torch.equal(first[each], second[each]) for each in first), (name, file)


@pytest.mark.slow
def test_predict_divides_a_sharded_model_and_the_texts(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("classify", place, tmp_path / "run", steps=2)
    fit(*load_task(config, "classify"), config)
    texts = ["What a film.", "Dull and slow.", "word " * 60]
    for number in (1, 3):  # a process without a text, and one with more than the other
        table = tmp_path / "texts.jsonl"
        table.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:number]))
        alone = run("predict", str(config.out), "--file", table).out
        expected = [json.loads(line) for line in alone.splitlines()]
        words = [*command(config, "")[:3], "predict", str(config.out), "--file", str(table)]
        finish(start([*words, "--out", str(tmp_path / "out")], monkeypatch))
        found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        assert [row["label"] for row in found] == [row["label"] for row in expected]
        for row, other in zip(found, expected, strict=True):
            assert row["scores"] == pytest.approx(other["scores"], abs=1e-5)


@pytest.mark.slow
def test_shards_that_cannot_be_saved_end_both_processes(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("classify", place, tmp_path / "run")
    limited = ["bash", "-c", 'ulimit -f 200; exec "$@"', "bash"]  # KiB of a file
    words = [*limited, *command(config, "classify", "--save-every", "2", "--eval-every", "6")]
    outputs = finish(start(words, monkeypatch), code=2)
    assert all("last: could not be written (" in said for said in outputs), outputs
    assert not list((tmp_path / "run").glob(".last*")), "no temporary folder is left"


@pytest.fixture
def one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one, over which models are sharded."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group(init_method=store, rank=0, world_size=1)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("device", "family", "precision"),
    [
        ("cpu", "bert", "fp32"),
        pytest.param("cpu", "modernbert", "bf16", marks=pytest.mark.slow),
        *(
            pytest.param("cuda", family, precision, marks=pytest.mark.gpu)
            for family in ("bert", "modernbert")
            for precision in ("fp32", "bf16")
        ),
    ],
)
@pytest.mark.usefixtures("one_process")
def test_a_sharded_model_trains_and_predicts_as_a_whole_one(
    device: str, family: str, precision: str, tmp_path: Path
) -> None:
    place_on = torch.device(device)
    save_tiny_checkpoint(tmp_path / family, family, **one_step.TINY)
    data.sentiment(tmp_path / "single", (60, 12, 12))
    config = one_step.config_of("single", tmp_path, family, precision=precision, lr=1e-3)
    task, dataset = one_step.task_of(config)
    examples, processes = dataset.splits["test"], Accelerator(cpu=device == "cpu")
    losses, probabilities = [], []
    for sharded in (False, True):
        torch.manual_seed(3)
        head = task.head()
        head = place_model(head, place_on, precision) if sharded else head.to(place_on)
        optimizer = make_optimizer(head, config)
        step = Step(task, head, optimizer, config, processes, precision)
        losses.append(
            [
                float(step([batch], weight=1.0, lr_factor=1.0)[0])
                for batch in one_step.batches_of(task, dataset)
            ]
        )
        found = predict(task, head, examples, processes, precision=precision)
        probabilities.append([each.scores for each in found])
    tolerance = 1e-4 if precision == "fp32" else 3e-2
    assert losses[1] == pytest.approx(losses[0], rel=tolerance, abs=tolerance)
    for one, other in zip(*probabilities, strict=True):
        assert other == pytest.approx(one, abs=tolerance)
    assert is_sharded(head) and all(value.dtype == torch.float32 for value in shards(head).values())
    assert whole_state(head).keys() == head.state_dict().keys()

    last = tmp_path / "last"
    last.mkdir()
    save_shards(last, head, optimizer)
    finish_checkpoint(last, TrainerState(step=5), {})
    other = place_model(task.head(), place_on, precision)
    fresh = make_optimizer(other, config)
    assert load_shards(last, fresh, other).step == 5
    for name, value in shards(other).items():
        assert torch.equal(value.to_local(), shards(head)[name].to_local())
    for before, after in zip(head.parameters(), other.parameters(), strict=True):
        for name, value in optimizer.state.get(before, {}).items():
            restored = fresh.state[after][name]
            assert restored.device == value.device and restored.dtype == value.dtype
            assert bool((restored == value).all()), name


def test_all_processes_run_the_same_number_of_passes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("tag", place, place / "none", max_tokens=40)
    task, dataset = load_task(config, "tag")

    def batches(world: int, rank: int) -> list[StepBatch]:
        processes: Any = SimpleNamespace(
            device=torch.device("cpu"), num_processes=world, process_index=rank
        )
        made = TrainingData(task, dataset, config, processes, lambda note: None)
        return [made.batch(step) for step in range(made.schedule.num_steps)]

    assert {step.idle_passes for step in batches(3, 0)} == {0}, "only FSDP needs them"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    idle = 0
    for steps in zip(*(batches(12, rank) for rank in range(12)), strict=True):
        counts = {len(step.micro_batches) + step.idle_passes for step in steps}
        assert len(counts) == 1 and min(step.idle_passes for step in steps) == 0
        assert 0.0 in {step.weight for step in steps}, "8 examples of 12 processes"
        idle += sum(step.idle_passes for step in steps)
    assert idle > 0


def test_idle_passes_change_nothing(place: Path) -> None:
    config = config_of("tag", place, place / "none", model="modernbert", max_tokens=40)
    task, dataset = load_task(config, "tag")
    processes = Accelerator(cpu=True)
    step_batch = TrainingData(task, dataset, config, processes, lambda note: None).batch(0)
    weights = []
    for idle_passes in (0, 2):
        torch.manual_seed(3)
        head = task.head()
        step = Step(task, head, make_optimizer(head, config), config, processes, "fp32")
        loss, norm = step(
            step_batch.micro_batches, weight=1.0, lr_factor=1.0, idle_passes=idle_passes
        )
        weights.append([loss, norm, *head.parameters()])
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("classify", {}),
        ("tag", {}),
        ("crf", {}),
        ("ner", {}),
        ("ner", {"representation": "biaffine"}),
    ],
)
def test_every_head_takes_idle_batches(
    kind: str, changes: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    config = config_of(kind, place, tmp_path, **changes)
    head = load_task(config, "tag" if kind == "crf" else kind)[0].head().eval()
    with torch.no_grad():
        leaves = tree_leaves(head(idle_batch(head.encoder.pad_id)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert tensors and not any(tensor.isnan().any() for tensor in tensors)


@pytest.mark.parametrize("pair_encoder", ["bi", "poly"])
def test_heads_of_pairs_take_idle_batches(pair_encoder: str, place: Path) -> None:
    labels, load = ["no", "yes"], PairClassifier.from_pretrained
    head = load(str(place / "bert"), labels=labels, kind=pair_encoder).eval()
    assert head(idle_batch(head.encoder.pad_id)).shape == (1, 2)


def test_shared_weights_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    head = MaskedLanguageModel.from_pretrained(str(place / "bert"))
    with pytest.raises(UserError, match="head shares the weights of the embeddings"):
        place_model(head, torch.device("cpu"), "fp32")


def test_layers_to_shard() -> None:
    for family in ("bert", "modernbert", "deberta-v2", "distilbert"):
        layers = Encoder(model(family)).layers_to_shard()
        assert len({type(layer) for layer in layers}) == 1 < len(layers)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "embedding_size": 32}
    small = ConvBertConfig(vocab_size=50, num_hidden_layers=1, num_attention_heads=4, **sizes)
    with pytest.raises(UserError, match="FSDP does not support convbert models"):
        Encoder(ConvBertModel(small)).layers_to_shard()
