"""Names of NLI labels: brought to one spelling and one order."""

from __future__ import annotations

from collections.abc import Iterable

NLI_LABELS = ("entailment", "neutral", "contradiction")
"""The three classes in the order in which our models have them."""

ALIASES = {
    **dict.fromkeys(("entailment", "entailed", "entails", "entail", "e"), "entailment"),
    **dict.fromkeys(("neutral", "neutrality", "unknown", "n"), "neutral"),
    **dict.fromkeys(
        ("contradiction", "contradictory", "contradicts", "contradict", "contradicted", "c"),
        "contradiction",
    ),
    **dict.fromkeys(
        ("not_entailment", "not entailment", "non-entailment", "non_entailment", "not-entailment"),
        "not_entailment",
    ),
}
"""Other spellings of the NLI labels, in lower case."""


def canonical_name(name: str) -> str:
    """An NLI label in its usual spelling; any other name as it is."""
    return ALIASES.get(name.strip().lower(), name)


def canonical_names(names: Iterable[str]) -> list[str]:
    """All names in the usual spelling if all of them are NLI labels, else as they are."""
    names = list(names)
    if all(name.strip().lower() in ALIASES for name in names):
        return [canonical_name(name) for name in names]
    return names
