"""Quantization of exported graphs to 8 bits.

Activations get one scale for a whole batch, so that one large component costs all others precision.
Encoders have such components: few, and in the same place for all texts (Bondarenko et al., 2021).
They are divided by a constant before the product, and their rows of the weights multiplied by it
(SmoothQuant: Xiao et al., 2023), which changes nothing but the error of rounding.

Weights of products use 7 of the 8 bits. x86 processors without VNNI add two products of 8 bits in
16 bits, which overflow otherwise, so that a graph would predict differently there.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finetune.deployment.onnx_model import GRAPH, OnnxModel

QUANTIZED = ("MatMul", "Gemm", "Gather")
"""Operators whose weights become int8: products, and embeddings, which are most of the size."""
CALIBRATION_SEQUENCES = 64
"""Number of sequences to run to find large components."""
OUTLIERS = 0.05
"""Fraction of the components of an input that may be divided."""
GAIN = 1.3
"""Inputs are divided if their range becomes smaller by this factor; a division takes time, too."""


def quantize(folder: Path, examples: Sequence[Any]) -> None:
    """Replace the graph in a folder by one with weights of 8 bits.

    Args:
        folder: The folder of an export.
        examples: Examples of its task, without need of labels, to find large components.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph, full = folder / GRAPH, folder / "full.onnx"
    tensors = onnx.load(graph, load_external_data=False).graph.initializer
    entries = [entry for tensor in tensors for entry in tensor.external_data]
    outside = {entry.value for entry in entries if entry.key == "location"}  # files of weights
    model = onnx.load(graph)
    _copy_shared_weights(model)
    _divide_outliers(model, _ranges(model, folder, examples[:CALIBRATION_SEQUENCES]))
    _save(model, full)
    options = {"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT}
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it recommends steps that change nothing here
    try:
        quantize_dynamic(
            full,
            graph,
            op_types_to_quantize=list(QUANTIZED),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options=options,
        )
    finally:
        logger.setLevel(level)
    for name in {*outside, full.name, f"{full.name}.data"}:
        (folder / name).unlink(missing_ok=True)


def _save(model: Any, path: Path) -> None:
    import onnx

    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def _copy_shared_weights(model: Any) -> None:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    seen = set()
    for node in model.graph.node:
        if node.op_type == "Gemm" and (name := node.input[1]) in weights:
            if name in seen:
                copy = model.graph.initializer.add()
                copy.CopyFrom(weights[name])
                copy.name = node.input[1] = f"{node.output[0]}/weights"
            seen.add(name)


def _products(model: Any) -> dict[str, list[Any]]:
    weights = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    nodes = [node for node in model.graph.node if node.op_type == "MatMul"]
    uses = Counter(name for node in model.graph.node for name in node.input)
    products = defaultdict(list)
    for node in nodes:
        if node.input[1] in weights and uses[node.input[1]] == 1:
            products[node.input[0]].append(node)
    return products


def _ranges(
    model: Any, folder: Path, examples: Sequence[Any]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    import onnx

    names = list(_products(model))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name in names:
        dtype = onnx.TensorProto.FLOAT
        probe.graph.output.append(onnx.helper.make_tensor_value_info(name, dtype, None))
    path = folder / "probe.onnx"
    _save(probe, path)
    runner = OnnxModel(folder, graph=path.name)
    ranges: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for windows in runner.output.encode(examples):
        inputs = runner.session.run(names, runner.feed(windows))
        for name, values in zip(names, inputs, strict=True):
            rows = values.reshape(-1, values.shape[-1])
            low, high = rows.min(0), rows.max(0)
            if name in ranges:
                low, high = np.minimum(low, ranges[name][0]), np.maximum(high, ranges[name][1])
            ranges[name] = low, high
    for name in (path.name, f"{path.name}.data"):
        (folder / name).unlink(missing_ok=True)
    return ranges


def _divide_outliers(model: Any, ranges: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    from onnx import helper, numpy_helper

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    new: dict[str, Any] = {}  # by the output of the node that follows
    for name, products in _products(model).items():
        if name not in ranges:
            continue
        low, high = ranges[name]
        size = np.maximum(np.abs(low), np.abs(high))
        limit = np.quantile(size, 1 - OUTLIERS)
        if not limit > 0:
            continue
        factors = np.maximum(size / limit, 1).astype(np.float32)
        after = max(0.0, (high / factors).max()) - min(0.0, (low / factors).min())
        if max(0.0, high.max()) - min(0.0, low.min()) < GAIN * after:
            continue
        constant, divided = f"{name}/factors", f"{name}/divided"
        model.graph.initializer.append(numpy_helper.from_array(1 / factors, constant))
        new[products[0].output[0]] = helper.make_node(
            "Mul", [name, constant], [divided], name=divided
        )
        for node in products:
            node.input[0], tensor = divided, weights[node.input[1]]
            scaled = numpy_helper.to_array(tensor) * factors[:, None]
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))
    nodes = []
    for node in model.graph.node:
        nodes += [new[node.output[0]], node] if node.output[0] in new else [node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
