"""Names of NLI labels in one spelling and one order."""

from __future__ import annotations

from collections.abc import Iterable

NLI_LABELS = ("entailment", "neutral", "contradiction")
"""The three classes in the order of our models."""

ALIASES = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), "entailment"),
    **dict.fromkeys(("neutral", "n"), "neutral"),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), "contradiction"),
    **dict.fromkeys(("not_entailment", "not-entailment", "not entailment"), "not_entailment"),
}
"""Other spellings of the NLI labels, in lower case."""


def canonical_name(name: str) -> str:
    """Return an NLI label in its usual spelling, any other name unchanged."""
    return ALIASES.get(name.strip().lower(), name)


def canonical_names(names: Iterable[str]) -> list[str]:
    """Return the names in their usual spelling if all are NLI labels, else unchanged."""
    names = list(names)
    if all(name.strip().lower() in ALIASES for name in names):
        return [canonical_name(name) for name in names]
    return names
