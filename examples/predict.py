"""Predict with a trained model from Python: texts in, entities with character offsets out.

python examples/predict.py             # uses the run OUT; trains it first if it does not exist
"""

import os
from pathlib import Path

from finetune import TagConfig, fit, load, load_task

run = Path(os.environ.get("OUT", "runs/example-predict"))
if not (run / "best").exists():
    config = TagConfig(
        model=os.environ.get("MODEL", "minilm"),
        data="examples/data/ner",
        epochs=5,
        steps=int(os.environ.get("STEPS", "0")) or None,
        out=str(run),
    )
    task, data = load_task(config, "tag")
    fit(task, data, config)

model = load(run)
texts = ["Maria Keller flew from Lisbon to Oslo in March 2019.", "", "Nobody was there."]
for text, prediction in zip(texts, model.predict(texts), strict=True):
    # One prediction per text, in order, also for the empty one; one tag per word.
    print(repr(text), f"{len(prediction.tags)} words")
    for span in prediction.to_dict()["spans"]:
        assert text[span["start_char"] : span["end_char"]] == span["text"]
        print(f"  {span['start_char']:3} {span['end_char']:3} {span['label']:5} {span['text']}")
