"""Heads on encoders. Importing this package registers saved models with ``AutoConfig``."""

import finetune.models.heads.configurations  # noqa: F401
