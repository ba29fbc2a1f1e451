"""Reading data: hub sets, JSON Lines, CSV, TSV, Parquet, CoNLL, CoNLL-U -> examples.

Importing this package imports the standard library only.
"""

from finetune.data.dataset import DataError, Dataset, fingerprint, hold_out
from finetune.data.hub import ALIASES
from finetune.data.labels import as_numbers
from finetune.data.texts import read_text, read_text_file

__all__ = [
    "ALIASES",
    "DataError",
    "Dataset",
    "as_numbers",
    "fingerprint",
    "hold_out",
    "read_text",
    "read_text_file",
]
