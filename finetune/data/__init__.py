"""Reading data: files of any format, folders and hub data sets become examples.

Importing this package imports the standard library only.
"""

from finetune.data.checks import Finding as Finding
from finetune.data.checks import check_data as check_data
from finetune.data.checks import document_notes as document_notes
from finetune.data.checks import render as render
from finetune.data.examples import WITHOUT_LEAKS as WITHOUT_LEAKS
from finetune.data.examples import Dataset as Dataset
from finetune.data.examples import fingerprint as fingerprint
from finetune.data.hub import DATASET_ALIASES as DATASET_ALIASES
from finetune.data.hub import hub_dataset as hub_dataset
from finetune.data.splitting import assign_folds as assign_folds
from finetune.data.splitting import halves as halves
from finetune.data.splitting import hold_out as hold_out
from finetune.data.splitting import leaked as leaked
from finetune.data.splitting import unmeasured_labels as unmeasured_labels
from finetune.data.splitting import with_test_sets as with_test_sets
from finetune.data.texts import read_text as read_text
from finetune.data.texts import read_text_file as read_text_file
from finetune.data.tokens import input_type_of as input_type_of
from finetune.data.tokens import read_gold as read_gold
from finetune.data.tokens import read_token_file as read_token_file
from finetune.data.tokens import read_tokens as read_tokens
from finetune.data.tokens import split_at_gold as split_at_gold
from finetune.types import DataError as DataError
