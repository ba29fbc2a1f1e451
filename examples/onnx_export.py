"""Export a trained classifier as an ONNX graph, and ask it with onnxruntime and a tokenizer alone.

pip install -c constraints.txt -e ".[offline,onnx]"
python examples/onnx_export.py         # exports OUT; trains it first where there is none
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from transformers import AutoConfig, AutoTokenizer

from finetune import ClassifyConfig, fit, load, load_task
from finetune.inference.onnx import export_onnx

run = Path(os.environ.get("OUT", "runs/example-onnx"))
if not (run / "best").exists():
    config = ClassifyConfig(
        model=os.environ.get("MODEL", "minilm"),
        data="examples/data/sentiment",
        steps=int(os.environ.get("STEPS", "0")) or None,
        out=str(run),
    )
    task, data = load_task(config, "classify")
    fit(task, data, config)

texts = ["What a lovely evening that was.", "Dull.", "The soup was cold, and nobody said sorry."]
with tempfile.TemporaryDirectory() as place:
    # The same as: finetune export runs/example-onnx --output FOLDER
    folder = Path(place) / "graph"
    print("\n".join(export_onnx(run, folder).lines()))

    # From here on nothing of finetune is needed, and no torch.
    tokenizer, labels = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [entry.name for entry in session.get_inputs()]
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
    (logits,) = session.run(["logits"], {name: inputs[name] for name in names})

exponents = np.exp(logits - logits.max(-1, keepdims=True))
chances = exponents / exponents.sum(-1, keepdims=True)
for text, row, answer in zip(texts, chances, load(run).predict(texts), strict=True):
    label = labels.id2label[int(row.argmax())]
    predict = f"finetune predict: {answer.label} {answer.score:.3f}"
    print(f"{text!r}: {label} {row.max():.3f} ({predict})")
