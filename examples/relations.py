"""Relations between entities: train on gold entities, then go from text to relations.

python examples/relations.py
"""

import os

import finetune

model = os.environ.get("MODEL", "minilm")
steps = int(os.environ.get("STEPS", "0")) or None
out = os.environ.get("OUT", "runs/example-relations")
common = {"model": model, "data": "examples/data/relations", "steps": steps, "batch_size": 16}

config = finetune.RelationsConfig(epochs=5, out=out, **common)
result = finetune.fit(*finetune.load_task(config, "relations"), config)
print(f"given entities: F1 {result.metrics['test']['relation_f1_strict']:.4f}")

config = finetune.NerConfig(epochs=10, out=f"{out}-entities", **common)
finetune.fit(*finetune.load_task(config, "ner"), config)

text = "Ana Costa, a lawyer for Arlen Foods, lives in Porto."
entities = finetune.load(f"{out}-entities").predict([text])
(prediction,) = finetune.load(out).predict(entities)
print(f"entities: {[(span['text'], span['label']) for span in entities[0].record()['spans']]}")
for subject, object, label in prediction.relations:
    first, second = (" ".join(prediction.words[s.start : s.end]) for s in (subject, object))
    print(f"{first} {label} {second}")
