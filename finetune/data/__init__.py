"""Reading data: hub sets, JSON Lines, CSV, TSV, Parquet, CoNLL, CoNLL-U, standoff -> examples.

Importing this package imports the standard library only.
"""

from finetune.data.checks import check_data
from finetune.data.dataset import DataError, Dataset, fingerprint, hold_out
from finetune.data.documents import document_notes
from finetune.data.findings import Finding, render
from finetune.data.folds import assign_folds
from finetune.data.hub import ALIASES, hub_set
from finetune.data.texts import read_numbered_split, read_numbered_texts, read_text, read_text_file
from finetune.data.tokens import kind_of, read_gold, read_token_file, read_tokens

__all__ = [
    "ALIASES",
    "DataError",
    "Dataset",
    "Finding",
    "assign_folds",
    "check_data",
    "document_notes",
    "fingerprint",
    "hold_out",
    "hub_set",
    "kind_of",
    "read_gold",
    "read_numbered_split",
    "read_numbered_texts",
    "read_text",
    "read_text_file",
    "read_token_file",
    "read_tokens",
    "render",
]
