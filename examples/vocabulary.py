"""A new vocabulary for a trained encoder, fitted to one's own text.

python examples/vocabulary.py
"""

import os
from pathlib import Path

from finetune.data.running_text import text_sources
from finetune.preprocessing.tokenizer import SubwordTokenizer
from finetune.pretraining.vocabulary import kind_of, train_tokenizer
from finetune.pretraining.vocabulary_transfer import embedding_map, with_vocabulary

model = os.environ.get("MODEL", "minilm")
folder = Path(os.environ.get("OUT", "runs/example-vocabulary"))
(source,) = text_sources("examples/data/ner/train.conll")

# The new tokenizer has the special tokens, and their places, of the old one.
old = SubwordTokenizer.from_pretrained(model)
tokenizer = train_tokenizer(source.lines, kind_of(old), 1000, like=old, lowercase=True)
new = SubwordTokenizer(tokenizer)

# Shared subwords keep their embeddings; the others get means of similar ones.
embeddings = embedding_map(old, new, "similarity", source.lines())
counts = embeddings.num_weights
print(f"{(counts == 1).sum()} embeddings copied, {(counts > 1).sum()} averaged")
with_vocabulary(model, old, new, embeddings).save_pretrained(folder)
tokenizer.save_pretrained(folder)
print("any command takes it: --model", folder)
