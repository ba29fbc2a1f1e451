"""How far annotators agree: Cohen's kappa of pairs, and Krippendorff's alpha of all.

pip install krippendorff  # for alpha; kappa needs scikit-learn alone
python examples/agreement.py
python examples/agreement.py export.jsonl
"""

import importlib.util
import json
import sys
from itertools import combinations

import numpy as np
from sklearn.metrics import cohen_kappa_score

path = sys.argv[1] if len(sys.argv) > 1 else "examples/data/annotators/sentiment.jsonl"
labels: dict[str, dict[str, str]] = {}
with open(path, encoding="utf-8") as lines:
    for row in map(json.loads, lines):
        labels.setdefault(row["annotator"], {})[row["text"]] = row["label"]
for first, second in combinations(labels, 2):
    both = sorted(labels[first].keys() & labels[second].keys())
    pair = [[labels[name][text] for text in both] for name in (first, second)]
    print(f"{first} and {second}: {len(both)} texts, kappa {cohen_kappa_score(*pair):.4f}")
if importlib.util.find_spec("krippendorff") is None:
    print("alpha: pip install krippendorff")
else:
    import krippendorff

    texts = sorted({text for one in labels.values() for text in one})
    names = sorted({label for one in labels.values() for label in one.values()})
    table = [
        [names.index(one[text]) if text in one else np.nan for text in texts]
        for one in labels.values()
    ]
    alpha = krippendorff.alpha(np.array(table, float), level_of_measurement="nominal")
    print(f"alpha of {len(labels)} annotators: {alpha:.4f}")
