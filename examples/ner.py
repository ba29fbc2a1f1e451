"""Nested named entities: spans, a calibrated threshold, and decoding rules.

python examples/ner.py
"""

import os

import finetune

config = finetune.NerConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/nested",  # spans in words; "text" with spans in characters works too
    representation="attention",
    # The score threshold is chosen on validation and saved with the model.
    calibrate="one",
    epochs=5,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-ner"),
)
task, data = finetune.load_task(config, "ner")
result = finetune.fit(task, data, config)
for name, value in result.metrics["test"].items():
    print(f"test {name}: {value:.4f}")

# One trained model, several decoding rules.
text = "The University of Lisbon opened an office in New York in May 2019."
for decoding in ("flat", "nested"):
    (prediction,) = finetune.load(config.out, decoding=decoding).predict([text])
    print(decoding, [(span["text"], span["label"]) for span in prediction.to_dict()["spans"]])
