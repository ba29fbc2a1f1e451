"""Named entities as tags of words, with tag sequences that can only be legal.

python examples/tag.py
"""

import os

from finetune import TagConfig, fit, load_task

config = TagConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/ner",  # columns as in CoNLL-2003; its tag scheme is found by itself
    scheme="BIO",
    # Word by word, the best tag may be an I-PER after an O. Viterbi over the legal transitions
    # finds the best sequence that has none; it needs no training and changes no weight.
    decoding="constrained",
    epochs=5,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-tag"),
)
task, data = load_task(config, "tag")
result = fit(task, data, config)

# conll counts as the conlleval script does, strict only spans that are spelled as BIO demands:
# constrained decoding spells all of them so.
for name in ("span_f1_conll", "span_f1_strict", "tag_accuracy"):
    print(f"test {name}: {result.metrics['test'][name]:.4f}")
