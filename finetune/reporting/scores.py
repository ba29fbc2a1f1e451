"""Metrics as plain lines and as a table."""

from __future__ import annotations

from collections.abc import Mapping


def metrics_table(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Metrics by split as a Markdown table."""
    if not metrics:
        return "No split with gold labels to score."
    names = list(dict.fromkeys(name for values in metrics.values() for name in values))
    rows = [["metric", *metrics], ["---", *["---:"] * len(metrics)]]
    for name in names:
        cells = [
            number(values[name], name) if name in values else "" for values in metrics.values()
        ]
        rows.append([f"`{name}`", *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def results(
    metrics: Mapping[str, Mapping[str, float]], baselines: Mapping[str, str] | None = None
) -> str:
    """Metrics by split as plain lines, with a line of comparison under a split that has one."""
    lines = []
    for split, values in metrics.items():
        # scores of single types (span_f1_strict:PER) are in metrics.json and README.md
        overall = {name: value for name, value in values.items() if ":" not in name}
        shown = "  ".join(f"{name} {number(value, name)}" for name, value in overall.items())
        lines.append(f"{split:>12}: {shown}")
        if baselines and split in baselines:
            lines.append(f"{'':>12}  ({baselines[split]})")
    return "\n".join(lines) or "no split with gold labels to score"


def number(value: float, name: str) -> str:
    """A metric to read: counts (``inner_…``) as whole numbers, all else with four decimals."""
    whole = name.startswith("inner_") or (value == int(value) and abs(value) > 1)
    return f"{value:,.0f}" if whole else f"{value:.4f}"
