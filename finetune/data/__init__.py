"""Reading data: files of any format, folders and hub data sets become examples.

Importing this package imports the standard library only.
"""

from finetune.data.checks import Finding, check_data, document_notes, render
from finetune.data.dataset import WITHOUT_LEAKS, DataError, Dataset, fingerprint
from finetune.data.hub import DATASET_ALIASES, hub_dataset
from finetune.data.splitting import (
    assign_folds,
    halves,
    hold_out,
    leaked,
    unmeasured_labels,
    with_held_out_splits,
    with_test_sets,
)
from finetune.data.texts import read_text, read_text_file
from finetune.data.tokens import (
    input_type_of,
    read_gold,
    read_token_file,
    read_tokens,
    split_at_gold,
)

__all__ = [
    "DATASET_ALIASES",
    "WITHOUT_LEAKS",
    "DataError",
    "Dataset",
    "Finding",
    "assign_folds",
    "check_data",
    "document_notes",
    "fingerprint",
    "halves",
    "hold_out",
    "hub_dataset",
    "input_type_of",
    "leaked",
    "read_gold",
    "read_text",
    "read_text_file",
    "read_token_file",
    "read_tokens",
    "render",
    "split_at_gold",
    "unmeasured_labels",
    "with_held_out_splits",
    "with_test_sets",
]
