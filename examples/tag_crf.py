"""Named entities as tags of words under a CRF, which scores whole sequences of tags.

python examples/tag_crf.py
"""

import os

from finetune import TagConfig, fit, load, load_task

config = TagConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/ner",
    scheme="BIOES",  # a span of one word is S-, so that transitions say how spans are built
    # Learns a score for each tag after each other one; what the scheme forbids stays impossible.
    # Training maximises the probability of the whole sequence, and the best one is the answer.
    crf=True,
    epochs=5,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-tag-crf"),
)
task, data = load_task(config, "tag")
result = fit(task, data, config)
for name in ("span_f1_conll", "span_f1_strict", "tag_accuracy"):
    print(f"test {name}: {result.metrics['test'][name]:.4f}")

# The scores of the answer are marginals: the probability of a word's tag over all sequences.
model = load(result.folder)
(answer,) = model.predict(["Ana Silva moved from Lagos to Oslo."])
for word, tag, score in zip(answer.words, answer.tags, answer.scores, strict=True):
    print(f"{word:10} {tag:8} {score:.3f}")

# Which tag likes to follow which, of those that may.
transitions = model.model.crf.transitions.detach()
legal = model.model.crf.may_follow.nonzero().tolist()
likely = sorted(legal, key=lambda pair: -float(transitions[tuple(pair)]))[:5]
print("gained most:", *(f"{model.labels[i]} -> {model.labels[j]}" for i, j in likely), sep="  ")
