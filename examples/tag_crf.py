"""Named entities as tags of words with a CRF, which scores whole tag sequences.

python examples/tag_crf.py
"""

import os

from finetune import TagConfig, fit, load, load_task

config = TagConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/ner",
    scheme="BIOES",  # S- marks spans of one word, which gives the CRF more informative transitions
    # The CRF learns a score for each transition; transitions that the scheme forbids stay
    # impossible. Training maximizes the probability of the whole sequence.
    crf=True,
    epochs=5,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-tag-crf"),
)
task, data = load_task(config, "tag")
result = fit(task, data, config)
for name in ("span_f1_conll", "span_f1_strict", "tag_accuracy"):
    print(f"test {name}: {result.metrics['test'][name]:.4f}")

# The scores are marginal probabilities of each word's tag over all tag sequences.
model = load(result.folder)
(prediction,) = model.predict(["Ana Silva moved from Lagos to Oslo."])
for word, tag, score in zip(prediction.words, prediction.tags, prediction.scores, strict=True):
    print(f"{word:10} {tag:8} {score:.3f}")

# The legal transitions with the highest scores.
transitions = model.model.crf.transitions.detach()
legal = model.model.crf.may_follow.nonzero().tolist()
likely = sorted(legal, key=lambda pair: -float(transitions[tuple(pair)]))[:5]
print(
    "best transitions:", *(f"{model.labels[i]} -> {model.labels[j]}" for i, j in likely), sep="  "
)
