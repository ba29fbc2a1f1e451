"""WordNet's database files as an inventory of senses: ``index.sense`` and ``data.*``.

The manual pages senseidx(5WN) and wndb(5WN) describe the formats (Fellbaum 1998). A sense key is
``lemma%type:lexfile:lexid:head:headid``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from finetune.config.recipes import local_path
from finetune.data.dataset import DataError
from finetune.data.files import read_lines

POS_OF_TYPE = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}
"""The part of speech of each type in sense keys; 5 is a satellite adjective."""
DATA_FILES = {"NOUN": "data.noun", "VERB": "data.verb", "ADJ": "data.adj", "ADV": "data.adv"}
_INDEX = "index.sense"
_KEY = re.compile(r"[^\s%]+%[1-5]:\d\d:\d\d:[^\s:]*:(\d\d)?")
_MARKER = re.compile(r"\((?:a|p|ip)\)")


def sense_key(text: str) -> str | None:
    """Remove the syntactic markers of adjectives from a sense key; None for any other text.

    Corpora have markers such as ``asleep(p)`` in heads; WordNet's index has no markers.
    """
    key = _MARKER.sub("", text)
    return key if _KEY.fullmatch(key) else None


def pos_of(key: str) -> str:
    """The part of speech of a sense key."""
    return POS_OF_TYPE[key.partition("%")[2][0]]


@dataclass(frozen=True)
class Inventory:
    """The senses of every lemma and part of speech, from a folder of WordNet's files."""

    folder: Path
    senses: Mapping[tuple[str, str], tuple[str, ...]]
    """Sense keys by (lemma, part of speech), the first sense first."""
    offsets: Mapping[str, int]
    """The byte at which the synset of each sense begins in its data file."""

    def glosses(self, keys: Collection[str]) -> dict[str, str]:
        """Make the text of each listed sense: its lemma, all lemmas of its synset, its definition.

        LMMS (Loureiro & Jorge 2019) embeds this text, with usage examples.

        Raises:
            DataError: A data file is missing, or is of another version than the index.
        """
        glosses = {}
        for key in sorted(self.offsets.keys() & keys):
            path, offset = self.folder / DATA_FILES[pos_of(key)], self.offsets[key]
            if not path.is_file():
                raise DataError(
                    f"{path}: no such file, and glosses are read from it: copy WordNet's data "
                    "files there, or leave --glosses out."
                )
            with path.open("rb") as file:
                file.seek(offset)
                line = file.readline().decode("utf-8", errors="replace")
            synset, _, gloss = line.partition("|")
            columns = synset.split()  # offset, file, type, number of words (hexadecimal), words
            legal = len(columns) > 4 and columns[0] == f"{offset:08}"
            words = columns[4 : 4 + 2 * int(columns[3], 16) : 2] if legal else []
            names = [_MARKER.sub("", word) for word in words]
            lemma = key.partition("%")[0]
            if lemma not in [name.lower() for name in names]:
                raise DataError(
                    f"{path}: no synset of {key} begins at byte {offset}: take all files from the "
                    "same version of WordNet."
                )
            definition = gloss.partition('; "')[0].strip()
            glosses[key] = f"{lemma} - {', '.join(names)} - {definition}".replace("_", " ")
        return glosses


def read_inventory(folder: str | Path | None) -> Inventory:
    """Read ``index.sense`` in a folder of WordNet's database files; None gives no senses.

    Raises:
        DataError: The file is missing, or one of its lines is malformed.
    """
    if folder is None:
        return Inventory(Path(), {}, {})
    folder = local_path(folder)
    path = folder / _INDEX
    if not path.is_file():
        problem = "no such folder" if not folder.is_dir() else f"no {_INDEX} in it"
        raise DataError(
            f"--inventory {folder}: {problem}: name a folder with WordNet's database files "
            f"({_INDEX}; data.noun, data.verb, data.adj and data.adv for glosses)."
        )
    numbered: defaultdict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    offsets = {}
    for line in read_lines(str(path), path):
        fields = line.text.split()
        key = sense_key(fields[0]) if len(fields) == 4 else None
        if key is None or not all(number.isdecimal() for number in fields[1:]):
            raise DataError(
                f"{path}:{line.number}: {line.text!r:.80} is not a line of a sense index: write "
                "KEY OFFSET NUMBER COUNT, such as bank%1:14:00:: 08420278 2 20."
            )
        numbered[key.partition("%")[0], pos_of(key)].append((int(fields[2]), key))
        offsets[key] = int(fields[1])
    if not offsets:
        raise DataError(f"{path}: it lists no sense: copy WordNet's file there.")
    senses = {lemma: tuple(key for _, key in sorted(pairs)) for lemma, pairs in numbered.items()}
    return Inventory(folder, senses, offsets)
