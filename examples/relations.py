"""Relations between entities: train on sentences with entities, and predict those of a new one.

python examples/relations.py
"""

import os

import finetune
from finetune import Span, TokenExample

config = finetune.RelationsConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/relations",
    epochs=5,
    steps=int(os.environ.get("STEPS", "0")) or None,
    batch_size=16,
    out=os.environ.get("OUT", "runs/example-relations"),
)
task, data = finetune.load_task(config, "relations")
result = finetune.fit(task, data, config)
print(f"test F1: {result.metrics['test']['relation_f1_strict']:.4f}")

# The entities are given here. A `ner` model finds them in a text:
# relations.predict(finetune.load("runs/people").predict(["Ana Costa works for …"]))
words = tuple("Ana Costa , a lawyer for Arlen Foods , lives in Porto .".split())
entities = (Span(0, 2, "PER"), Span(6, 8, "ORG"), Span(11, 12, "LOC"))
relations = finetune.load(config.out)
(prediction,) = relations.predict([TokenExample(0, words, entities)])
for (subject, object, label), score in zip(prediction.relations, prediction.scores, strict=True):
    first, second = (" ".join(words[span.start : span.end]) for span in (subject, object))
    print(f"{first} {label} {second} ({score:.2f})")
