"""Reading data: hub sets, JSON Lines, CSV, TSV, Parquet, CoNLL, CoNLL-U, standoff -> examples.

Importing this package imports the standard library only.
"""

from finetune.data.dataset import DataError, Dataset, fingerprint, hold_out
from finetune.data.doctor import check_data
from finetune.data.findings import Finding, render
from finetune.data.hub import ALIASES, hub_set
from finetune.data.labels import as_numbers
from finetune.data.texts import read_text, read_text_file
from finetune.data.tokens import kind_of, read_gold, read_token_file, read_tokens

__all__ = [
    "ALIASES",
    "DataError",
    "Dataset",
    "Finding",
    "as_numbers",
    "check_data",
    "fingerprint",
    "hold_out",
    "hub_set",
    "kind_of",
    "read_gold",
    "read_text",
    "read_text_file",
    "read_token_file",
    "read_tokens",
    "render",
]
