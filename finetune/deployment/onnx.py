"""Export of a trained model as an ONNX graph with a program that predicts from it without torch.

The graph of a model of transformers takes the inputs of Optimum: padded ``input_ids``,
``attention_mask`` and, if model and tokenizer use segments, ``token_type_ids``, all int64 [N, L]
with any N and L. It returns ``logits``, float32 [N, C], for tags and answers [N, L, C]. The graph
of a span scorer also takes the index of the first subword of each of the ``words`` [N, W], and
returns logits [N, W, K, C] of candidates of K widths, or [N, W, W, C] of first and last words. The
logits must equal the logits of the head on
texts of different lengths, alone and in batches.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import finetune
from finetune.cli.output import require_free
from finetune.config.recipes import packaged_path
from finetune.config.tasks import flag, settings
from finetune.deployment import onnx_model
from finetune.deployment.onnx_int8 import quantize
from finetune.deployment.onnx_model import GRAPH, OUTPUTS, SETTINGS, OnnxModel
from finetune.evaluation.prediction_types import DEFAULT_METRICS
from finetune.inference.loop import full_precision
from finetune.models.attention import packed_attention
from finetune.models.heads.crf import CrfTagger
from finetune.models.heads.pretrained import QuestionAnswerer
from finetune.models.heads.span_classifier import SpanClassifier
from finetune.preprocessing.batching import pack
from finetune.preprocessing.texts import Input
from finetune.registry import install_command
from finetune.runtime.files import replace_folder
from finetune.tasks import model_folder, save_task, saved_task
from finetune.tasks.base import Task
from finetune.tasks.definition import run_data
from finetune.types import TokenSequence, UserError, quantity

OPSET = 17
"""The operators of ONNX 1.12, which every onnxruntime since 1.12 runs."""
PREDICTOR = "predictor"
"""Folder with the program that predicts."""
LOGIT_TOLERANCE = 1e-4
"""Largest accepted difference to torch, relative to the largest logit (or 1, if that is larger)."""
LONGEST_CHECK = 1024
"""Longest sequence in tokens to compare on: attention over all of 8,192 takes gigabytes."""
MAX_LOSS = 0.5
"""Points of the score on validation that int8 may cost."""

TEXTS = (
    "The train from Lisbon to Oslo was late again, and nobody on the platform knew why.",
    "Nobody came.",
    "Maria Keller signed for the United Nations in Geneva on 14 March 2019; IBM did not sign.",
    "What a lovely, bright and altogether unexpected film!",
    "café № 7 – 東京, Αθήνα: 3,14 % (naïve)",
)
"""Texts to compare on: short and long, with names, numbers and rare characters."""


def export_onnx(
    run: str | Path,
    output: str | Path,
    *,
    int8: bool = False,
    max_loss: float = MAX_LOSS,
    data: Any = None,
) -> list[str]:
    """Write the model of a run (or model) folder as an ONNX graph into a new folder.

    The folder gets ``model.onnx``, the tokenizer, ``config.json`` with the labels,
    ``finetune.json``, ``predictor.json`` and the package ``predictor``, which predicts without
    torch, transformers and this package. After an error there is no folder.

    Args:
        run: The run.
        output: The new folder.
        int8: Quantize weights to 8 bits, and measure the score before and after on validation.
        max_loss: Points of the score that quantization may cost.
        data: The data with the validation split; None takes the data of the run.

    Returns:
        Lines for the user: the difference to torch, the loss by int8, the graph and its size.

    Raises:
        UserError: Packages are missing, the output is not empty, the model cannot be exported, the
            logits of onnxruntime and torch differ, or int8 costs too much.
    """
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {' and '.join(missing)}: {install_command(*missing)}.")
    source, output = model_folder(run), require_free(str(output))
    task = saved_task(source)
    _require_export(task, source)
    validation = validation_examples(task, source, data) if int8 else []
    model = task.model(source).eval()
    model_type = model.encoder.model.config.model_type
    if part := model.encoder.family.reads_padding:
        raise UserError(
            f"{source}: {model_type} models read padding ({part}), so a graph of padded rows would "
            "give other results: use `finetune predict`, or train and export another model."
        )
    with replace_folder(output.resolve()) as fresh:
        save_task(task, fresh)
        model.config.save_pretrained(fresh)
        files = {f"{PREDICTOR}/{name}": text for name, text in package_files().items()}
        files[f"{PREDICTOR}/LICENSE"] = packaged_path("LICENSE").read_text(encoding="utf-8")
        needed = ("numpy", "onnxruntime", "tokenizers")
        versions = (f"{name}=={importlib.metadata.version(name)}\n" for name in needed)
        files |= {SETTINGS: _settings(task, model), "requirements.txt": "".join(versions)}
        (fresh / PREDICTOR).mkdir()
        for name, text in files.items():
            (fresh / name).write_text(text, encoding="utf-8")
        before_graph = {*fresh.iterdir()}
        try:
            inputs, line = _export(task, model, fresh)
        except (UserError, OSError, MemoryError):
            raise
        except Exception as error:
            raise UserError(
                f"{model_type} models cannot be exported with torch {torch.__version__} "
                f"({type(error).__name__}: {' '.join(str(error).split()):.200}): use `finetune "
                "predict`."
            ) from error
        size = sum(path.stat().st_size for path in {*fresh.iterdir()} - before_graph)
        lines = [line]
        if int8:
            score = _quantize(task, fresh, validation, max_loss)
            before, size = size, (fresh / GRAPH).stat().st_size
            lines.append(f"{score}; {before / 1e6:,.1f} MB to {size / 1e6:,.1f} MB")
        return [*lines, f"{output / GRAPH}: {size / 1e6:,.1f} MB, inputs {', '.join(inputs)}"]


_NOT_IN_GRAPHS = {
    "bilstm": "--bilstm is",
    "context": "the document that the model reads with --context is",
    "few_shot": "the classifier of --few-shot is",
    "pair_encoder": "reading the texts of a pair apart (--pair-encoder) is",
}
"""Settings that are not part of a graph unless they have their default, in words."""


def _require_export(task: Task, source: Path) -> None:
    decoders = tuple(output.decoder_class for output in OUTPUTS)
    if not isinstance(task.state, decoders):
        raise UserError(
            f"{source}: models of `finetune {task.name}` are not exported, as a graph has labels, "
            "tags, spans or answers of single sequences: use `finetune predict`."
        )
    values, defaults = settings(task.state.config), settings(type(task.state.config)())
    for name, part in _NOT_IN_GRAPHS.items():
        if name in values and values[name] != defaults[name]:
            raise UserError(
                f"{source}: {part} not part of the graph: use `finetune predict`, or train without "
                f"{flag(name)} and export that."
            )
    if "distance" in task.state.decisions:
        raise UserError(
            f"{source}: it abstains for out-of-distribution texts, whose distance a graph does not "
            f"measure: remove that with `finetune thresholds {source} --reset`."
        )


def _settings(task: Any, model: Any) -> str:
    state, transitions = task.state, None
    decoders = (output.decoder_class for output in OUTPUTS)
    cls = next(cls for cls in decoders if isinstance(state, cls))
    decoder = {name: getattr(state, name) for name in cls.attributes()}
    if isinstance(model, CrfTagger):
        scores = model.crf(torch.zeros(0, len(state.labels)))
        parts = [part.detach().numpy() for part in scores[1:]]
        none = np.array(None)  # for -inf, which JSON lacks
        transitions = [np.where(np.isneginf(part), none, part).tolist() for part in parts]
    content = {
        "format": 1,
        "task": task.name,
        "pairs": state.pairs,
        "max_length": state.max_length,
        "overlap": state.overlap,
        "long_text": state.long_text,
        "pad_id": model.encoder.pad_id,
        "tokenizer": task.tokenizer.fields(),
        "decoder": decoder | {"labels": list(state.labels)},
        "transitions": transitions,
        "decisions": state.decisions,
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def package_files() -> dict[str, str]:
    """Read the modules of the package ``predictor``, by file name.

    They are copies of the toolkit's modules with relative imports.
    """
    files = {"__init__.py": _INIT}
    todo = [onnx_model.__name__]
    while todo:
        name = todo.pop()
        if (file := _file_name(name)) in files:
            continue
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        text = Path(spec.origin).read_text(encoding="utf-8")
        todo += re.findall(_IMPORT, text)
        text = re.sub(_IMPORT, lambda found: f"from .{_file_name(found[1])[:-3]} import", text)
        files[file] = f"# {name} of finetune {finetune.__version__}\n{text}"
    return files


_IMPORT = re.compile(r"^from (finetune\.[\w.]+) import", re.MULTILINE)
_INIT = '''"""Prediction with the model of this folder: numpy, onnxruntime and tokenizers.

>>> import sys; sys.path.insert(0, "FOLDER")
>>> import predictor
>>> predictor.load("FOLDER").predict(["A text."])
"""

from .onnx_model import OnnxModel, load

__all__ = ["OnnxModel", "load"]
'''


def _file_name(module: str) -> str:
    stem = module.rpartition(".")[2]
    return "values.py" if stem == "types" else f"{stem}.py"  # types is of the standard library


def validation_examples(task: Task, source: Path, data: Any) -> list[Any]:
    """Load the examples with gold of the validation split of a run, or of other data."""
    need = "--int8 measures the loss of score on its validation data"
    otherwise = "name validation data with --data validation=FILE"
    read_data = run_data(task, source, need, data, otherwise)
    examples = list(read_data.splits.get("validation", ()))
    if not examples:
        raise UserError(
            f"{read_data.name}: there is no validation split, on which --int8 measures the loss of "
            "score: name it with --data validation=FILE."
        )
    return examples


def _quantize(task: Task, fresh: Path, validation: list[Any], max_loss: float) -> str:
    scores = _score(task, fresh, validation)
    quantize(fresh, validation)
    metric = task.state.metric
    if metric not in scores:  # a custom one
        metric = DEFAULT_METRICS[task.state.prediction_type]
    before, after = scores[metric], _score(task, fresh, validation)[metric]
    if not before:
        raise UserError(
            f"{metric} of the validation data is 0 before int8, so that no loss can be measured: "
            "train the model longer, or name data of the same task with --data."
        )
    loss = 100 * (before - after)
    if not loss <= max_loss:
        raise UserError(
            f"int8 lowers {metric} on validation by {loss:.2f} points, from {before:.4f} to "
            f"{after:.4f}, more than --max-loss {max_loss:g}: export without --int8, or raise "
            "--max-loss."
        )
    return (
        f"int8: validation {metric} {before:.4f} to {after:.4f} ({-loss:+z.2f} points) on "
        f"{quantity(len(validation), 'example')}"
    )


def _score(task: Task, folder: Path, examples: list[Any]) -> dict[str, float]:
    model = OnnxModel(folder, threads=torch.get_num_threads())
    return task.score(examples, model.predict_examples(examples))


def _export(task: Task, model: Any, fresh: Path) -> tuple[list[str], str]:
    groups = _batches(task)
    has_token_types = model.encoder.num_token_types > 1 and task.tokenizer.uses_token_types
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if has_token_types else [])]
    padded = model.encoder.padded_inputs(pack(groups[3]))  # two sequences, [2, L] each
    inputs = {name: padded[name] for name in names}
    model_type = model.encoder.model.config.model_type
    dynamic = {name: {0: "batch", 1: "sequence"} for name in (*inputs, "logits")}
    if isinstance(model, SpanClassifier):
        starts = [torch.tensor(sequence.word_starts[:-1]) for sequence in groups[3]]
        inputs["words"] = nn.utils.rnn.pad_sequence(starts, batch_first=True)
        dynamic |= {name: {0: "batch", 1: "words"} for name in ("words", "logits")}
    elif not (task.description.words or isinstance(model, QuestionAnswerer)):
        del dynamic["logits"][1]
    module = Logits(model.tagger if isinstance(model, CrfTagger) else model, tuple(inputs))
    with (
        packed_attention(model.encoder.model.config, "eager"),  # others guard against empty rows
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")  # the tracer is old; shapes may be constants
        # The other exporter (``dynamo=True``) is slower, needs more packages, and makes graphs that
        # are not faster. Tracing can fix decisions by the size of the traced batch: compare on
        # others.
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            str(fresh / GRAPH),
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_axes=dynamic,
            opset_version=OPSET,
            dynamo=False,
        )
    differences, sizes = [], []
    with torch.no_grad():
        exported = OnnxModel(fresh, threads=torch.get_num_threads())
        for group in groups:
            expected = full_precision(model(pack(group)))
            if isinstance(model, CrfTagger):
                expected = expected.emissions
            differences.append(np.abs(exported.logits(group) - expected.numpy()).max())
            sizes.append(float(expected.abs().max()))
    difference, scale = float(np.max(differences)), max(sizes)
    if not difference <= LOGIT_TOLERANCE * max(1.0, scale):  # not a number is refused, too
        raise UserError(
            f"{model_type} models cannot be exported: onnxruntime's logits are off by "
            f"{difference:.1e} from torch's (up to {scale:.3g}): use `finetune predict`."
        )
    lengths = [len(sequence.input_ids) for sequence in groups[-1]]
    line = (
        f"largest difference to torch: {difference:.1e} (logits up to {scale:.3g}; batches of "
        f"{', '.join(str(len(group)) for group in groups)} sequences, {min(lengths)} to "
        f"{max(lengths)} tokens)"
    )
    return list(inputs), line


def _batches(task: Task) -> list[list[TokenSequence]]:
    state, words = task.state, task.description.words
    length = min(state.max_length, LONGEST_CHECK)
    changed = {"long_text": "truncate", "overlap": None}
    settings: dict[str, Any] = {n: v for n, v in changed.items() if n in vars(state.config)}
    checked = replace(state, max_length=length, config=replace(state.config, **settings))
    longest = " ".join(TEXTS) + " " + " ".join(TEXTS[:2] * (length // 16))
    inputs: list[Input] = [*zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True), (TEXTS[1], longest)]
    if not state.pairs:
        inputs = [*([] if words or state.pairs is False else inputs), *TEXTS, longest]
    examples = [state.example(index, item) for index, item in enumerate(inputs)]
    sequences = [windows[0] for windows in replace(task, state=checked).encode(examples)]
    return [sequences[:1], sequences[1:2], sequences[-1:], sequences[:2], sequences]


class Logits(nn.Module):
    """Adapts a head to the tracer: positional padded tensors in, one tensor out."""

    def __init__(self, head: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = head.model, names
        self.scorer = head.scorer if isinstance(head, SpanClassifier) else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute logits [N, C] or [N, L, C], or of the candidates of spans [N, W, K, C]."""
        named = dict(zip(self.names, inputs, strict=True))
        words: Any = named.pop("words", None)  # [N, W]
        output: Any = self.model(**named)
        if self.scorer is not None:
            hidden: Tensor = output.last_hidden_state  # [N, L, H]
            rows = torch.arange(words.shape[0])[:, None] * hidden.shape[1] + words
            vectors = hidden.flatten(0, 1).index_select(0, rows.flatten())
            return self.scorer.grid(vectors.reshape(words.shape[0], words.shape[1], -1))
        if "start_logits" in output:
            return torch.stack([output.start_logits, output.end_logits], -1)
        logits: Tensor = output.logits
        return logits
