"""Make the rows of `finetune wsd` of a corpus in the XML of Raganato et al. 2017.

NAME.gold.key.txt, with the senses, stands next to NAME.data.xml.

python examples/sense_corpus.py semcor.data.xml semcor.jsonl
"""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

corpus, output = map(Path, sys.argv[1:])
keys = corpus.with_name(corpus.name.replace(".data.xml", ".gold.key.txt")).read_text("utf-8")
gold = {id: senses for id, *senses in map(str.split, keys.splitlines())}
number, document = 0, None
with output.open("w", encoding="utf-8") as file:
    for event, element in ElementTree.iterparse(corpus, ["start", "end"]):
        if event == "start" and element.tag == "text":
            document = element.get("id")
        if event == "start" or element.tag != "sentence":
            continue
        tokens: list[str] = []
        targets = []
        for word in element:
            start = len(tokens)
            tokens += (word.text or "").split()
            if word.tag == "instance":
                target = {name: word.get(name) for name in ("id", "lemma", "pos")}
                span = {"start": start, "end": len(tokens)}
                targets.append({**target, **span, "senses": gold.get(str(word.get("id")), [])})
        row = {"id": element.get("id"), "document": document, "tokens": tokens, "targets": targets}
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        element.clear()
        number += 1
print(f"{number:,} sentences in {output}")
