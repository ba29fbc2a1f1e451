"""Export of a trained model as an ONNX graph, checked against torch before it is written.

The plain Hugging Face class is exported, so the graph takes the inputs of Optimum: padded
``input_ids``, ``attention_mask`` and, if model and tokenizer use segments, ``token_type_ids``, all
int64 [N, L] with any N and L. It returns ``logits``, float32 [N, C], for tags [N, L, C]. Its logits
must equal those of the head on texts of different lengths, alone and in batches.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from finetune.config.tasks import TagConfig, TextConfig, WordConfig
from finetune.inference.loop import forward
from finetune.inference.predictor import to_example
from finetune.models.heads.pretrained import PretrainedHead
from finetune.models.heads.token_classification import TokenTagger, subword_rows
from finetune.models.padding import unpad
from finetune.preprocessing.batching import pack
from finetune.preprocessing.inputs import Input
from finetune.runtime.files import replace_folder
from finetune.tasks import model_folder, save_task, saved_task
from finetune.tasks.base import Task
from finetune.types import Batch, Encoding, UserError

OPSET = 17
"""The operators of ONNX 1.12, which every onnxruntime since 1.12 runs."""
GRAPH = "model.onnx"
"""The file name that Optimum uses."""
TOLERANCE = 1e-4
"""Largest accepted difference to torch, relative to the largest logit (or 1, if that is larger)."""
LONGEST_CHECK = 1024
"""Longest sequence in tokens to compare on: attention over all of 8,192 takes gigabytes."""

TEXTS = (
    "The train from Lisbon to Oslo was late again, and nobody on the platform knew why.",
    "Nobody came.",
    "Maria Keller signed for the United Nations in Geneva on 14 March 2019; IBM did not sign.",
    "What a lovely, bright and altogether unexpected film!",
    "café № 7 – 東京, Αθήνα: 3,14 % (naïve)",
)
"""Texts to compare on: short and long, with names, numbers and rare characters."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export."""

    folder: Path
    inputs: tuple[str, ...]
    size: int  # in bytes
    difference: float  # the largest between logits of onnxruntime and torch
    scale: float  # the largest logit
    batches: tuple[int, ...]  # sizes of the compared batches
    lengths: tuple[int, ...]  # tokens of the compared sequences

    def lines(self) -> list[str]:
        """Return the result in lines for the user."""
        batches = ", ".join(map(str, self.batches))
        return [
            f"largest difference to torch: {self.difference:.1e} (logits up to {self.scale:.3g}; "
            f"batches of {batches} sequences, {min(self.lengths)} to {max(self.lengths)} tokens)",
            f"{self.folder / GRAPH}: {self.size / 1e6:,.1f} MB, inputs {', '.join(self.inputs)}",
        ]


def export_onnx(run: str | Path, output: str | Path) -> Exported:
    """Write the model of a run (or model) folder as an ONNX graph into a new folder.

    The folder gets ``model.onnx``, the tokenizer, ``config.json`` with the labels, and
    ``finetune.json``; after an error it is not made.

    Raises:
        UserError: Packages are missing, the output is not empty, the model cannot be exported, or
            the logits of onnxruntime differ from those of torch.
    """
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {' and '.join(missing)}: pip install 'finetune[onnx]'.")
    source, output = model_folder(run), Path(output)
    task = saved_task(source)
    if reason := _unsupported(task):
        raise UserError(f"{source}: {reason}.")
    if output.is_file() or (output.exists() and any(output.iterdir())):
        problem = "is a file" if output.is_file() else "is not empty"
        raise UserError(f"--output {output}: {problem}: name a new folder.")
    head = task.head(source).eval()
    assert isinstance(head, PretrainedHead), "all others were refused above"
    if part := head.encoder.family.reads_padding:
        kind = head.model.config.model_type
        raise UserError(
            f"{source}: {kind} models read padding ({part}), so a graph of padded rows would give "
            "other results: use `finetune predict`, or train and export another model."
        )
    with replace_folder(output.resolve()) as fresh:
        save_task(task, fresh)
        head.model.config.save_pretrained(fresh)
        return _export(task, head, fresh, output)


def _unsupported(task: Task) -> str:
    """Return why a graph from padded tokens to logits cannot replace a model; empty if it can."""
    config = task.record.config
    if task.name == "ner":
        return (
            "ner models score spans of words, for which there is no ONNX graph: use `finetune "
            "predict`, or train `finetune tag` (flat entities) and export that"
        )
    if task.name == "sentence":
        return (
            "sentence encoders give vectors, and graphs are written for logits only: use `finetune "
            "embed`, or export best/ with sentence-transformers (backend onnx)"
        )
    if task.name == "pretrain":
        return (
            "masked language models compute logits at masks alone, which a graph does not: "
            "fine-tune the encoder with --init-from"
        )
    if config.layer_mix or config.bilstm:
        return (
            f"--{'layer-mix' if config.layer_mix else 'bilstm'} is not part of the graph: use "
            "`finetune predict`, or train without it and export that"
        )
    if isinstance(config, TagConfig) and config.crf:
        return (
            "taggers with a CRF decode whole sentences, which logits of tokens do not allow: use "
            "`finetune predict`, or train without --crf and export that"
        )
    if isinstance(config, WordConfig) and config.context != "none":
        return (
            "the model reads sentences in their document (--context), which a graph does not: use "
            "`finetune predict`, or train without --context and export that"
        )
    if isinstance(config, TextConfig) and config.few_shot:
        return (
            "the classifier of --few-shot is not part of the model of transformers: use `finetune "
            "predict`, or train without it and export that"
        )
    if isinstance(config, TextConfig) and config.own_head:
        return (
            "the model reads the texts of a pair apart, or compares marked words, which a graph of "
            "one sequence does not: use `finetune predict`, or train without --pair-encoder and "
            "--marked-words"
        )
    if isinstance(config, TextConfig) and config.long_text == "window":
        return (
            f"its prediction for a text of more than {task.record.max_length} tokens is the mean "
            "over several windows, and a graph reads one: use `finetune predict`, or train with "
            "--long-text truncate and export that"
        )
    return ""


def _export(task: Task, head: PretrainedHead, fresh: Path, output: Path) -> Exported:
    """Write the graph and compare it with the head."""
    groups = _batches(task)
    segments = head.encoder.num_segments > 1 and task.tokenizer.uses_segments
    names = ("input_ids", "attention_mask", *(("token_type_ids",) if segments else ()))
    kind = head.model.config.model_type
    traced = _inputs(head, names, pack(groups[3]))  # two sequences, of which one is padded
    before = set(fresh.iterdir())
    trace(head.model, traced, fresh / GRAPH, words=task.reads_words)
    written = set(fresh.iterdir()) - before  # weights over 2 GB are in separate files
    size = sum(path.stat().st_size for path in written)
    with export_errors(head.model):
        graph = Graph(fresh / GRAPH)
        difference, scale = _compare(graph, head, names, groups)
    if not difference <= TOLERANCE * max(1.0, scale):  # not a number is refused, too
        raise UserError(
            f"{kind} models cannot be exported: onnxruntime's logits are off by {difference:.1e} "
            f"from torch's (up to {scale:.3g}): use `finetune predict`."
        )
    lengths = tuple(len(sequence.input_ids) for sequence in groups[-1])
    return Exported(output, names, size, difference, scale, tuple(map(len, groups)), lengths)


def _batches(task: Task) -> list[list[Encoding]]:
    """Make batches to compare on: one sequence, another, the longest, two, and all together."""
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


def _inputs(head: PretrainedHead, names: Sequence[str], batch: Batch) -> dict[str, Tensor]:
    """Return the graph's inputs for a batch, [N, L] each."""
    padded = head.encoder.padded_inputs(batch)
    return {name: padded[name] for name in names}


def _compare(
    graph: Graph, head: PretrainedHead, names: Sequence[str], groups: Sequence[list[Encoding]]
) -> tuple[float, float]:
    """Return the largest difference between logits of graph and head, and the largest logit."""
    differences, sizes = [], []
    with torch.no_grad():
        for batch, expected in forward(head, map(pack, groups), torch.device("cpu")):
            logits = graph(_inputs(head, names, batch))
            if isinstance(head, TokenTagger):  # it returns logits of subwords without padding
                rows = batch.words if head.subwords == "first" else subword_rows(batch)
                logits = unpad(logits, batch).index_select(0, rows)
            differences.append((logits - expected).abs().max())
            sizes.append(expected.abs().max())
    return float(torch.stack(differences).max()), float(torch.stack(sizes).max())


class Logits(nn.Module):
    """Adapts a Hugging Face model to the tracer: positional tensors in, one tensor out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return logits [N, C] or [N, L, C]."""
        logits: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).logits
        return logits


def trace(model: PreTrainedModel, inputs: Mapping[str, Tensor], path: Path, *, words: bool) -> None:
    """Write the graph of a model whose inputs are [N, L], logits [N, L, C] for words, else [N, C].

    The other exporter (``dynamo=True``) is slower, needs more packages, and makes graphs that are
    not faster. Tracing can fix decisions by the size of the traced batch: compare on other sizes.
    """
    axes, names = {0: "batch", 1: "sequence"}, tuple(inputs)
    dynamic = {**dict.fromkeys(names, axes), "logits": axes if words else {0: "batch"}}
    with export_errors(model), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracer is old; shapes may be constants
        torch.onnx.export(
            Logits(model, names).eval(), tuple(inputs.values()), str(path),
            input_names=list(names), output_names=["logits"], dynamic_axes=dynamic,
            opset_version=OPSET, dynamo=False,
        )  # fmt: skip


class Graph:
    """A graph in onnxruntime, on the CPU, with as many threads as torch."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # errors are raised
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return logits [N, C] or [N, L, C]."""
        arrays = {name: value.numpy() for name, value in inputs.items()}
        return torch.from_numpy(self.session.run(["logits"], arrays)[0])


@contextlib.contextmanager
def export_errors(model: PreTrainedModel) -> Iterator[None]:
    """Convert errors of the exporter or onnxruntime to a UserError that names the model family."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{model.config.model_type} models cannot be exported with torch {torch.__version__} "
            f"({type(error).__name__}: {' '.join(str(error).split()):.200}): use "
            "`finetune predict`."
        ) from error
