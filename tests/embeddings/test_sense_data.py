"""Sentences with targets, and WordNet's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.embeddings.sense_data import read_inventory, read_senses, sense_key
from finetune.types import UserError
from tests.small_data import write_jsonl

EXAMPLES = Path(__file__).parents[2] / "examples" / "data" / "senses"


TARGET = {"start": 0, "end": 1, "lemma": "b", "pos": "NOUN"}


WRONG: list[tuple[dict, str]] = [
    ({"tokens": "a b"}, "a row needs `tokens`, a list of words"),
    ({"targets": None}, "a row needs .* and `targets`"),
    ({"targets": []}, "no row of train has targets"),
    *(
        ({"targets": [TARGET | change]}, "target of the 2 words.* pos NOUN, VERB, ADJ or ADV")
        for change in ({"start": 1}, {"end": 3}, {"pos": "X"}, {"senses": [3]})
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_rows(change: dict, message: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [{"tokens": ["a", "b"], "targets": []} | change])
    with pytest.raises(UserError, match=message):
        read_senses(str(tmp_path / "x.jsonl"))
    (tmp_path / "x.txt").write_text("some words")
    with pytest.raises(UserError, match="has no targets"):
        read_senses(str(tmp_path / "x.txt"))


def test_targets(tmp_path: Path) -> None:
    senses = ["a%5:00:00:dead(p):00", "b%3:00:00::"]
    row: dict = {"id": "s0", "document": "d", "tokens": ["a", "b"], "targets": [TARGET]}
    row["targets"].append(TARGET | {"senses": senses, "id": "t7"})
    data = read_senses(str(write_jsonl(tmp_path / "x.jsonl", [row])))
    first, second = next(iter(data.splits["train"])).targets
    assert (first.key, first.senses, first.document) == ("s0.0", (), "d")
    assert (second.key, second.senses) == ("t7", ("a%5:00:00:dead:00", "b%3:00:00::"))


def test_example_inventory() -> None:
    assert sense_key("asleep%5:00:00:dead(p):00") == "asleep%5:00:00:dead:00"
    assert sense_key("U") is None and sense_key("bank%9:14:00::") is None
    inventory = read_inventory(EXAMPLES / "wordnet")
    assert inventory.senses["bank", "NOUN"] == ("bank%1:14:00::", "bank%1:17:00::")
    assert inventory.senses["light", "ADJ"][0] == "light%3:00:01::"
    assert "warm%5:00:00:kind:00" in inventory.offsets
    glosses = inventory.glosses(list(inventory.offsets))
    assert len(glosses) == len(inventory.offsets)
    assert (
        glosses["give_up%2:41:00::"]
        == "give up - give up, quit, stop - stop trying or doing something"
    )
    assert "lightweight" in glosses["light%3:00:01::"] and "(a)" not in glosses["light%3:00:01::"]
    data = read_senses(str(EXAMPLES))
    senses = [s for rows in data.splits.values() for e in rows for t in e.targets for s in t.senses]
    assert senses and {*senses} <= inventory.offsets.keys()


def test_wrong_inventories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no index\.sense in it"):
        read_inventory(tmp_path)
    (tmp_path / "index.sense").write_text("")
    with pytest.raises(UserError, match=r"index\.sense: it lists no sense"):
        read_inventory(tmp_path)
    (tmp_path / "index.sense").write_text("bank%1:14:00:: 00000000 1\n")
    with pytest.raises(UserError, match=r"index\.sense:1: .* is not a line of a sense index"):
        read_inventory(tmp_path)
    (tmp_path / "index.sense").write_text("bank%1:14:00:: 00000003 1 0\n")
    inventory = read_inventory(tmp_path)
    for message in (r"data\.noun: no such file", "no synset of bank%1:14:00:: begins at byte 3"):
        with pytest.raises(UserError, match=message):
            inventory.glosses(["bank%1:14:00::"])
        (tmp_path / "data.noun").write_text("00000000 03 n 01 entity 0 000 | x\n")
