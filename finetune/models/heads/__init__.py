"""Heads on encoders. Importing this package registers saved models with transformers."""

import finetune.models.heads.crf
import finetune.models.heads.pair_classifier
import finetune.models.heads.relation_classifier
import finetune.models.heads.span_classifier  # noqa: F401
