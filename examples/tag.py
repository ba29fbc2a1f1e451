"""Named entities as tags of words, decoded to legal tag sequences.

python examples/tag.py
"""

import os

from finetune import TagConfig, fit, load_task

config = TagConfig(
    model=os.environ.get("MODEL", "minilm"),
    data="examples/data/ner",  # columns as in CoNLL-2003; the tag scheme is detected
    scheme="BIO",
    # Word by word, the most probable tag may be an I-PER after an O. Viterbi decoding over the
    # legal transitions avoids that. It needs no training.
    decoding="constrained",
    epochs=5,
    steps=int(os.environ.get("STEPS", "0")) or None,
    out=os.environ.get("OUT", "runs/example-tag"),
)
task, data = load_task(config, "tag")
result = fit(task, data, config)

# span_f1_conll counts as the conlleval script does; span_f1_strict counts only well-formed spans.
# With constrained decoding all predicted spans are well-formed.
for name in ("span_f1_conll", "span_f1_strict", "tag_accuracy"):
    print(f"test {name}: {result.metrics['test'][name]:.4f}")
