"""The ONNX side of an export: tracing a model into a graph file, and running that file.

Errors of exporter and runtime are of many classes; here they become one line.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from finetune.types import UserError

OPSET = 17
"""The operators of ONNX 1.12: any onnxruntime since 1.12 runs them."""


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
