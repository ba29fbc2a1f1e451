"""Find the senses of words by the nearest sense vector, with an inventory in WordNet's format.

python examples/word_senses.py
"""

import os
from pathlib import Path

from finetune.embeddings.sense_data import read_senses
from finetune.embeddings.senses import SenseSettings, WordSenses, sense_scores

data = read_senses("examples/data/senses")
settings = SenseSettings(
    model=os.environ.get("MODEL", "minilm"), inventory="examples/data/senses/wordnet"
)
senses = WordSenses.fit(settings, data.splits["train"], data.splits["validation"])
predictions = senses.predict(data.splits["test"])
for target, sense, _ in predictions:
    print(f"{target.lemma:10} {sense:20} gold {', '.join(target.senses)}")
baseline = senses.first_senses(each.target for each in predictions)
print(f"F1 {sense_scores(predictions)['f1']:.3f}, first sense {sense_scores(baseline)['f1']:.3f}")

out = Path(os.environ.get("OUT", "runs/word-senses"))
out.mkdir(parents=True, exist_ok=True)
senses.save(out)
