"""Export a trained classifier as an ONNX graph and run it with onnxruntime and a tokenizer.

pip install -c constraints.txt -e ".[offline,onnx]"
python examples/onnx_export.py         # exports the run OUT; trains it first if it does not exist
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from transformers import AutoConfig, AutoTokenizer

from finetune import ClassifyConfig, fit, load, load_task
from finetune.deployment.onnx import export_onnx

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
with tempfile.TemporaryDirectory() as temporary:
    # Equivalent to: finetune export runs/example-onnx --out FOLDER
    folder = Path(temporary) / "graph"
    print("\n".join(export_onnx(run, folder)))

    # From here on neither finetune nor torch is needed.
    tokenizer, labels = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [entry.name for entry in session.get_inputs()]
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="np")
    (logits,) = session.run(["logits"], {name: inputs[name] for name in names})

exponents = np.exp(logits - logits.max(-1, keepdims=True))
probabilities = exponents / exponents.sum(-1, keepdims=True)
for text, row, prediction in zip(texts, probabilities, load(run).predict(texts), strict=True):
    label = labels.id2label[int(row.argmax())]
    predict = f"finetune predict: {prediction.label} {prediction.score:.3f}"
    print(f"{text!r}: {label} {row.max():.3f} ({predict})")
