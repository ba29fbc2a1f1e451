"""Files of the word sense disambiguation framework of Raganato et al. 2017: XML and gold keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from finetune.data.dataset import DataError
from finetune.data.files import DataFile, ReadOptions, Record, read_lines
from finetune.data.tables import Table
from finetune.embeddings.data.wordnet import sense_key


def read_sense_xml(file: DataFile, options: ReadOptions) -> Table:
    """Read sentences with targets from ``NAME.data.xml``, gold from ``NAME.gold.key.txt`` beside.

    Rows have the columns id, document, tokens and targets of JSON Lines.
    """
    keys = _gold_file(file.name)
    gold = None if keys is None else dict(read_keys(str(keys), keys))
    return Table(file.name, ["id", "document", "tokens", "targets"], _sentences(file, gold))


def read_keys(name: str, source: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the id and the sense keys of each line of a file ``ID KEY …``."""
    lines = source if isinstance(source, DataFile) else read_lines(name, source)
    for line in lines:
        if parsed := parse_keys(line.text):
            yield parsed
        elif line.text.strip():
            raise DataError(
                f"{name}:{line.number}: {line.text!r:.60} is not an id with sense keys: write for "
                "instance d000.s000.t000 bank%1:14:00::"
            )


def parse_keys(line: str) -> tuple[str, list[str]] | None:
    """Return the id and the sense keys of a line of a key file, None for any other line."""
    id, *senses = line.split() or [""]
    keys = [key for sense in senses if (key := sense_key(sense)) is not None]
    return (id, keys) if id and keys and len(keys) == len(senses) else None


def _gold_file(name: str) -> Path | None:
    """Return the file of gold keys next to a data file; None if it does not exist."""
    base = name.removesuffix(".gz").removesuffix(".xml").removesuffix(".data")
    for suffix in (".gold.key.txt", ".gold.key.txt.gz"):
        if (path := Path(base + suffix)).is_file():
            return path
    return None


def _sentences(file: DataFile, gold: dict[str, list[str]] | None) -> Iterator[Record]:
    parser: Any = XMLPullParser(["start", "end"])
    document: str | None = None

    def parsed(number: int) -> Iterator[Record]:
        nonlocal document
        for event, element in parser.read_events():
            if event == "start":
                if element.tag in ("text", "document"):
                    document = element.get("id")
            elif element.tag == "sentence":
                yield Record(_row(element, document, gold), file.where(number))
                element.clear()

    number = 1
    try:
        for number, text in file:
            parser.feed(text + "\n")
            yield from parsed(number)
        parser.close()
        yield from parsed(number)
    except ParseError as error:
        raise DataError(
            f"{file.where(number)}: not well-formed XML ({error}): restore the file, or "
            "write JSON Lines with tokens and targets."
        ) from error


def _row(
    sentence: Element, document: str | None, gold: dict[str, list[str]] | None
) -> dict[str, Any]:
    tokens: list[str] = []
    targets = []
    for element in sentence:
        words = (element.text or "").split()
        if element.tag == "instance":
            id = element.get("id", "")
            target: dict[str, Any] = {
                "id": id,
                "start": len(tokens),
                "end": len(tokens) + len(words),
            }
            target |= {name: element.get(name) for name in ("lemma", "pos")}
            if gold is not None and id in gold:
                target["senses"] = gold[id]
            targets.append(target)
        tokens += words
    return {"id": sentence.get("id"), "document": document, "tokens": tokens, "targets": targets}
