"""Export of a trained model as an ONNX graph, checked against torch before it is written.

The plain Hugging Face class is exported, so the graph takes the inputs of Optimum: padded
``input_ids``, ``attention_mask`` and, if model and tokenizer use segments, ``token_type_ids``, all
int64 [N, L] with any N and L. It returns ``logits``, float32 [N, C], for tags [N, L, C]. Its logits
must equal those of the head on texts of different lengths, alone and in batches.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finetune.config.tasks import NerConfig, TagConfig, TextConfig
from finetune.inference.loop import forward
from finetune.inference.predictor import Input, to_example
from finetune.models.heads.pretrained import PretrainedHead
from finetune.models.heads.token_classification import TokenTagger, subword_rows
from finetune.models.padding import unpad
from finetune.preprocessing.batching import pack
from finetune.tasks import model_folder, save_task, saved_task
from finetune.tasks.base import Task
from finetune.types import Batch, Encoding, UserError

OPSET = 17
"""The operators of ONNX 1.12: any onnxruntime since 1.12 runs them."""
GRAPH = "model.onnx"
"""The name that onnxruntime's users expect, as Optimum writes it."""
TOLERANCE = 1e-4
"""Largest difference to torch that is accepted, times the largest logit (or 1, if that is more):
float32 in another order of summation is off by about 1e-6."""
LONGEST_CHECK = 1024
"""Longest sequence in tokens to compare on: attention over all of 8,192 takes gigabytes."""
TRACED = 3
"""Which of the batches to compare on is traced: two sequences, of which one is padded."""
REPEATS = 20
"""Runs whose median is the latency."""

TEXTS = (
    "The train from Lisbon to Oslo was late again, and nobody on the platform knew why.",
    "Nobody came.",
    "Maria Keller signed for the United Nations in Geneva on 14 March 2019; IBM did not sign.",
    "What a lovely, bright and altogether unexpected film!",
    "café № 7 – 東京, Αθήνα: 3,14 % (naïve)",
)
"""What is compared: short and long, with names, numbers and rare characters."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export.

    ``size`` in bytes; ``difference`` is the largest between logits of onnxruntime and torch,
    ``scale`` the largest logit; ``batches`` and ``lengths`` (in tokens) say what was compared.
    Latencies are those of one text of ``tokens``.
    """

    folder: Path
    inputs: tuple[str, ...]
    size: int
    difference: float
    scale: float
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    tokens: int
    onnx_milliseconds: float
    torch_milliseconds: float

    def lines(self) -> list[str]:
        """The result in lines for the user."""
        batches = ", ".join(map(str, self.batches))
        return [
            f"largest difference to torch: {self.difference:.1e} (logits up to {self.scale:.3g}; "
            f"batches of {batches} sequences, {min(self.lengths)} to {max(self.lengths)} tokens)",
            f"{self.folder / GRAPH}: {self.size / 1e6:,.1f} MB, inputs {', '.join(self.inputs)}",
            f"one text of {self.tokens} tokens: onnxruntime {self.onnx_milliseconds:.1f} ms, torch "
            f"{self.torch_milliseconds:.1f} ms (float32, CPU threads: {torch.get_num_threads()})",
        ]


def export_onnx(run: str | Path, output: str | Path) -> Exported:
    """Write the model of a run (or model) folder as an ONNX graph into a new folder.

    The folder gets ``model.onnx``, the tokenizer, ``config.json`` with the labels, and
    ``finetune.json``; all of it or, after an error, nothing. Raises ValueError where packages are
    missing, where the folder holds something, for models that no such graph can stand for, and
    where onnxruntime does not answer as torch does.
    """
    _require_packages()
    place, output = model_folder(run), Path(output)
    task = saved_task(place)
    if reason := _why_not(task):
        raise UserError(f"{place}: {reason}")
    _require_new(output)
    head = task.head(place).eval()
    assert isinstance(head, PretrainedHead), "all others were refused above"
    with _complete(output) as fresh:
        save_task(task, fresh)
        head.model.config.save_pretrained(fresh)
        return _export(task, head, fresh, output)


def _require_packages() -> None:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {' and '.join(missing)}: pip install 'finetune[onnx]'.")


def _why_not(task: Task) -> str:
    """Why no graph from padded tokens to logits can stand for a task's model; empty if one can."""
    config = task.record.config
    if task.name == "ner":
        return (
            "ner models score spans of words, and there is no ONNX graph for that: ask it with "
            "`finetune predict`, or train `finetune tag` (flat entities) and export that."
        )
    if isinstance(config, TagConfig) and config.crf:
        return (
            "taggers with a CRF decide over whole sentences, which logits of tokens cannot say: "
            "ask it with `finetune predict`, or train without --crf and export that."
        )
    if isinstance(config, NerConfig | TagConfig) and config.context != "none":
        return (
            "the model reads sentences in their document (--context), which a graph does not: ask "
            "it with `finetune predict`, or train without --context and export that."
        )
    if isinstance(config, TextConfig) and config.long_text == "window":
        return (
            f"its prediction for a text of more than {task.record.max_length} tokens is the mean "
            "over several windows, and a graph reads one: use `finetune predict`, or train with "
            "--long-text truncate and export that."
        )
    return ""


def _require_new(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise UserError(f"--output {folder}: {what}: name a new folder.")


@contextlib.contextmanager
def _complete(folder: Path) -> Iterator[Path]:
    """A folder to write into that gets its name when the block ends well, else is removed."""
    fresh = folder.absolute().with_name(folder.absolute().name + ".new")
    try:
        fresh.mkdir(parents=True)
    except FileExistsError:
        raise UserError(
            f"{fresh}: exists, perhaps from an export that was killed: remove it, or name another "
            "--output."
        ) from None
    except OSError as error:
        raise UserError(f"--output {folder}: cannot be made ({error.strerror}).") from error
    try:
        yield fresh
        fresh.replace(folder.absolute())
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _export(task: Task, head: PretrainedHead, fresh: Path, output: Path) -> Exported:
    """Write the graph, compare it with the head, and measure both."""
    groups = _groups(task)
    names = _input_names(task, head)
    kind = head.model.config.model_type
    before = _size(fresh)
    traced = _feed(head, names, pack(groups[TRACED]))
    trace(head.model, traced, fresh / GRAPH, words=task.reads_words)
    size = _size(fresh) - before  # weights over 2 GB are in files of their own
    with blaming(head.model):
        graph = Graph(fresh / GRAPH)
        difference, scale = _compare(graph, head, names, groups)
    if not difference <= TOLERANCE * max(1.0, scale):  # not a number is refused, too
        raise UserError(
            f"{kind} models cannot be exported: onnxruntime's logits are off by {difference:.1e} "
            f"from torch's (up to {scale:.3g}): ask this model with `finetune predict`."
        )
    one = _feed(head, names, pack(groups[0]))
    with torch.inference_mode():
        onnx, plain = _milliseconds(lambda: graph(one)), _milliseconds(lambda: head.model(**one))
    return Exported(
        output, names, size, difference, scale, tuple(map(len, groups)),
        tuple(len(sequence.input_ids) for sequence in groups[-1]),
        tokens=one["input_ids"].shape[1], onnx_milliseconds=onnx, torch_milliseconds=plain,
    )  # fmt: skip


def _groups(task: Task) -> list[list[Encoding]]:
    """Batches to compare on: one sequence, another, the longest that fits, and all together."""
    record, words = task.record, task.reads_words
    length = min(record.max_length, LONGEST_CHECK)
    settings: dict[str, Any] = {"overlap": None, **({} if words else {"long_text": "truncate"})}
    checked = replace(record, max_length=length, config=replace(record.config, **settings))
    longest = " ".join(TEXTS) + " " + " ".join(TEXTS[:2] * (length // 16))
    inputs: list[Input] = [*zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True), (TEXTS[1], longest)]
    if not record.pairs:
        inputs = [*([] if words or record.pairs is False else inputs), *TEXTS, longest]
    examples = [to_example(task, index, item) for index, item in enumerate(inputs)]
    sequences = [windows[0] for windows in replace(task, record=checked).encode(examples)]
    return [sequences[:1], sequences[1:2], sequences[-1:], sequences[:2], sequences]


def _input_names(task: Any, head: PretrainedHead) -> tuple[str, ...]:
    """What the graph takes: what the tokenizer gives and the model makes use of."""
    segments = head.encoder.num_segments > 1 and task.tokenizer.uses_segments
    return ("input_ids", "attention_mask", *(("token_type_ids",) if segments else ()))


def _feed(head: PretrainedHead, names: Sequence[str], batch: Batch) -> dict[str, Tensor]:
    """The graph's inputs for a batch: [N, L] each; the model counts positions by itself."""
    padded = head.encoder.padded_inputs(batch)
    return {name: padded[name] for name in names}


def _compare(
    graph: Graph, head: PretrainedHead, names: Sequence[str], groups: Sequence[list[Encoding]]
) -> tuple[float, float]:
    """The largest difference between the graph's logits and the head's, and the largest logit."""
    found, expected = [], []
    with torch.no_grad():
        for batch, logits in forward(head, map(pack, groups), torch.device("cpu")):
            expected.append(logits.flatten())
            found.append(_logits_of_head(head, graph(_feed(head, names, batch)), batch).flatten())
    mine, theirs = torch.cat(found), torch.cat(expected)
    return float((mine - theirs).abs().max()), float(theirs.abs().max())


def _logits_of_head(head: PretrainedHead, logits: Tensor, batch: Batch) -> Tensor:
    """The padded logits that the head returns: all, or those of the words' subwords."""
    if not isinstance(head, TokenTagger):
        return logits
    rows = batch.words if head.subwords == "first" else subword_rows(batch)
    return unpad(logits, batch).index_select(0, rows)


def _milliseconds(run: Callable[[], Any]) -> float:
    """Median time of a call, after two to warm up."""
    times = []
    for _ in range(REPEATS + 2):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:]) * 1000


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


class Logits(nn.Module):
    """A Hugging Face model as the tracer wants it: tensors in, in order, and one tensor out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits [N, C] or [N, L, C]."""
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


def trace(model: nn.Module, inputs: Mapping[str, Tensor], path: Path, *, words: bool) -> None:
    """Write the graph of a model whose inputs are [N, L], logits [N, L, C] for words, else [N, C].

    The other exporter (``dynamo=True``) takes four to twenty times as long for graphs that are no
    faster, and needs more packages. What tracing can get wrong, decisions by the size of the
    traced batch, only a comparison on other sizes shows. Raises ValueError where it fails.
    """
    axes, names = {0: "batch", 1: "sequence"}, tuple(inputs)
    dynamic = {**dict.fromkeys(names, axes), "logits": axes if words else {0: "batch"}}
    with blaming(model), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that the tracer is old, and that shapes may be constants
        torch.onnx.export(
            Logits(model, names).eval(), tuple(inputs.values()), str(path),
            input_names=list(names), output_names=["logits"], dynamic_axes=dynamic,
            opset_version=OPSET, dynamo=False,
        )  # fmt: skip


class Graph:
    """A graph in onnxruntime, on the CPU, with as many threads as torch has."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # errors are raised, and said in one line
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits [N, C] or [N, L, C]."""
        arrays = {name: value.numpy() for name, value in inputs.items()}
        return torch.from_numpy(self.session.run(["logits"], arrays)[0])


@contextlib.contextmanager
def blaming(model: nn.Module) -> Iterator[None]:
    """Make errors within a ValueError that names the family of the model."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{model.config.model_type} models cannot be exported with torch {torch.__version__} "
            f"({type(error).__name__}: {' '.join(str(error).split()):.200}): ask this model with "
            "`finetune predict`."
        ) from error
