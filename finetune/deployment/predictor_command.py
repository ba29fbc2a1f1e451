"""The command of an export: ``python -m predictor``.

An export holds a copy of this file, which imports no more than ``onnx_model``.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from finetune.deployment.input_files import SUFFIXES
from finetune.deployment.onnx_model import OnnxModel
from finetune.types import UserError

DESCRIPTION = """\
Predict with the exported model of this folder: one line of JSON for each input, in input order.

Without --text and --file, the lines of standard input are read. A line is a text; JSON of a text, a
pair of texts, or words; or an object with "text" (and "text_pair" for pairs) or with "tokens", and
perhaps an "id"."""


def main(folder: str | Path, arguments: Sequence[str] | None = None) -> None:
    """Predict with the export in a folder; end the program with a message if that is impossible."""
    parser = argparse.ArgumentParser(
        prog="python -m predictor",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--text", action="append", help="a text; may be repeated")
    parser.add_argument("--pair", help="the second text, for a model of pairs")
    parser.add_argument("--file", help=f"a file: {', '.join(SUFFIXES)}; - is standard input")
    parser.add_argument("--out", help="the file to write JSON Lines to, in place of printing")
    parser.add_argument("--output", dest="out", help=argparse.SUPPRESS)  # its name until now
    parser.add_argument("--threads", type=int, help="threads of one operation")
    given = parser.parse_args(arguments)
    if given.text and given.file:
        parser.error("give --text or --file, not both")
    if given.pair is not None and len(given.text or ()) != 1:
        parser.error("--pair is the second text of one --text")
    try:
        model = OnnxModel(folder, threads=given.threads)
        if given.text:
            second = {} if given.pair is None else {"text_pair": given.pair}
            found = model.rows({"text": text, **second} for text in given.text)
        elif given.file not in (None, "-"):
            found = model.file(given.file)
        else:
            found = model.lines(sys.stdin)
        source = given.file if given.file and Path(given.file).is_file() else None
        with _opened(given.out, source) as output:
            for line in found:
                print(line, file=output)
    except UserError as error:
        sys.exit(f"error: {error}")


@contextlib.contextmanager
def _opened(path: str | None, source: str | None) -> Iterator[TextIO]:
    """Open a file that appears when it is complete; None is standard output.

    Raises UserError if it is the input ``source``, or cannot be a file.
    """
    if path is None:
        yield sys.stdout
        return
    target = Path(path)
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise UserError(f"--out {path}: name a file in a folder that exists.")
    if source is not None and target.is_file() and target.samefile(source):
        raise UserError(f"--out {path} would overwrite the input: name another file.")
    unfinished = target.with_name(f".{target.name}.new")
    try:
        with unfinished.open("w", encoding="utf-8") as output:
            yield output
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
