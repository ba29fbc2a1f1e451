"""The document-context setting of the tasks that read sentences as words."""

from __future__ import annotations

from dataclasses import dataclass

from finetune.types import UserError


@dataclass(frozen=True, kw_only=True)
class ContextSetting:
    """The setting of tasks that read sentences as words."""

    context: str = "none"
    """Words of neighbouring sentences of the same document that are read with each sentence, on
    both sides and without separators, and get no answer and no loss: `none`; N, whole words of
    together at most N pieces (subword tokens) on each side; or `doc`, both sides filled as evenly
    as possible up to --max-length. Sentences over --max-length are read in windows without it."""

    def __post_init__(self) -> None:
        """Check that the setting is a legal one; then whatever else is to be checked."""
        if type(self.context) is int:  # as one writes it in Python
            object.__setattr__(self, "context", str(self.context))
        if self.context not in ("none", "doc") and not _is_count(self.context):
            raise UserError(
                "--context must be none, doc, or a number of pieces from 1 for each side, not "
                f"{self.context!r}."
            )
        super().__post_init__()  # type: ignore[misc]


def _is_count(context: str) -> bool:
    return context.isascii() and context.isdecimal() and int(context) > 0


def most_pieces(context: str, max_length: int) -> int:
    """How many pieces a side may have, at most; 0 for ``none``."""
    return {"none": 0, "doc": max_length}[context] if context.isalpha() else int(context)
