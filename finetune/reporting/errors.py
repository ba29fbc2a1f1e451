"""The mistakes of a system to read: an example each, gold beside predicted, with filters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.data.tag_schemes import tags_to_spans
from finetune.evaluation.alignment import AlignedPredictions
from finetune.evaluation.errors import AROUND, ErrorCase, most_confident
from finetune.reporting.highlight import clipped, marked
from finetune.reporting.html import EMPTY, Html, element, joined, own_text
from finetune.reporting.runs import Evaluated, Run
from finetune.reporting.tables import shown
from finetune.types import Span, TextExample, TokenExample

MOST_EXAMPLES = 300
"""Examples with mistakes that a page holds, of all its runs together."""
MOST_SURE = 20
"""How many of the surest mistakes are called so."""
MOST_LETTERS = 1200
"""Letters shown of a text."""
MOST_WORDS = 120
"""Words shown of a sentence."""
MOST_LISTED = 20
"""Mistakes that are listed of one example, and labels of one text."""
SUREST, CONTRADICTION = "surest mistakes", "contradict gold: look at these first"


@dataclass(frozen=True)
class Card:
    """One example with its mistakes, ready to show."""

    run: str
    kinds: tuple[str, ...]
    labels: tuple[str, ...]
    views: tuple[str, ...]
    body: Html

    def item(self) -> Html:
        """The list item; filters read its ``data-`` attributes, whose values tabs separate."""
        return element(
            "li", self.body, class_="error", data_run=self.run, data_kind="\t".join(self.kinds),
            data_label="\t".join(self.labels), data_view="\t".join(self.views),
        )  # fmt: skip


def error_browser(runs: Sequence[tuple[str, Run]], most: int = MOST_EXAMPLES) -> Html:
    """The list of all runs' mistakes with its filters; empty where nothing was evaluated."""
    evaluated = [(name, run.evaluated) for name, run in runs if run.evaluated]
    if not evaluated:
        return EMPTY
    share = max(1, most // len(evaluated))
    found = [cards(name, each, share) for name, each in evaluated]
    shown_cards = [card for some, _ in found for card in some]
    total = sum(number for _, number in found)
    if not total:
        return element("p", "No mistakes to show.")
    several = len(evaluated) > 1
    note = (
        f"Showing the first {len(shown_cards):,} of {total:,} examples with a mistake"
        + (f", {share:,} of each run" if several else "")
        + "; the surest answers come first where probabilities are known."
    )
    return joined(
        [
            element("p", note, class_="note"),
            *_not_credible(evaluated),
            _filters(shown_cards, several),
            element("ol", *(card.item() for card in shown_cards), id="errors", class_="errors"),
        ]
    )


def _not_credible(evaluated: Sequence[tuple[str, Evaluated]]) -> Iterator[Html]:
    """Why there are no doubts in gold, of each run where that is so."""
    several = len(evaluated) > 1
    for name, each in evaluated:
        if each.analysis.not_credible:
            said = each.analysis.not_credible
            yield element("p", own_text(f"{name}: {said}" if several else said), class_="note")


def _filters(found: Sequence[Card], several: bool) -> Html:
    choices = {
        "view": ("Show", _counted(card.views for card in found)),
        "kind": ("Kind", _counted(card.kinds for card in found)),
        "label": ("Label", _counted(card.labels for card in found)),
    }
    if several:
        choices = {"run": ("Run", _counted((card.run,) for card in found))} | choices
    selects = [
        element("label", element("span", name), element(
            "select",
            element("option", f"all ({len(found):,})", value=""),
            *(element("option", f"{value} ({number:,})", value=value)
              for value, number in counts.items()),
            data_filter=key,
        ))
        for key, (name, counts) in choices.items() if counts
    ]  # fmt: skip
    search = element(
        "label", element("span", "Search"),
        element("input", type="search", id="search", placeholder="text, word or label"),
    )  # fmt: skip
    return element(
        "form", search, *selects,
        element("p", element("output", id="count", aria_live="polite"),
                element("button", "Clear filters", type="reset")),
        id="filters", class_="filters", aria_label="Filters of the mistakes",
    )  # fmt: skip


def _counted(values: Iterable[Sequence[str]]) -> dict[str, int]:
    """How many examples have each value, the commonest first."""
    counts: dict[str, int] = {}
    for each in values:
        for value in each:
            counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def cards(name: str, evaluated: Evaluated, most: int) -> tuple[list[Card], int]:
    """The first examples with mistakes, the surest first, and how many there are in all."""
    analysis, run = evaluated.analysis, evaluated.answers
    by_id: defaultdict[int, list[ErrorCase]] = defaultdict(list)
    for mistake in analysis.errors:
        by_id[mistake.id].append(mistake)
    doubtful = {mistake.id: mistake for mistake in analysis.contradictions}
    for number, mistake in doubtful.items():
        by_id.setdefault(number, [mistake])
    surest = {m.id for m in most_confident(analysis.errors, MOST_SURE)}
    order = sorted(by_id, key=lambda number: -max(m.confidence or 0.0 for m in by_id[number]))
    places = {example.id: place for place, example in enumerate(run.examples)}
    sides = _sides(run)
    made = []
    for number in order[:most]:
        place, some = places[number], by_id[number]
        groups = ((SUREST, surest), (CONTRADICTION, doubtful))
        views = [view for view, ids in groups if number in ids]
        body = _body(run, place, sides, some, doubtful.get(number))
        kinds = dict.fromkeys(m.category for m in some if analysis.kind != "number")
        labels = dict.fromkeys(
            label for m in some for label in (_label(m.gold), _label(m.predicted)) if label
        )
        made.append(Card(name, tuple(kinds), tuple(labels), tuple(views), body))
    return made, len(by_id)


def _sides(run: AlignedPredictions) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Gold and answered spans of each sentence, read as the analysis does; None for others."""
    if run.kind == "spans":
        return run.gold, run.predicted
    if run.kind == "tags" and run.schemes[0] is not None:
        gold, answered = map(str, run.schemes)
        return ([tags_to_spans(tags, gold) for tags in run.gold],
                [tags_to_spans(tags, answered) for tags in run.predicted])  # fmt: skip
    return None


def _label(side: Any) -> str:
    if isinstance(side, Mapping):
        return str(side["label"])
    return side if isinstance(side, str) else ""


def _body(
    run: AlignedPredictions,
    place: int,
    sides: Any,
    some: Sequence[ErrorCase],
    doubtful: ErrorCase | None,
) -> Html:
    example = run.examples[place]
    where = element("p", example.where or f"example {example.id}", class_="where")
    if isinstance(example, TextExample):
        text = _texts(example)
        return joined([where, text, _text_verdict(run, place, some, doubtful)])
    gold, answered = _spans_of(sides, place, some)
    first, last = _extent(example, some)
    both = {*gold} & {*answered}
    rows = [
        ("gold", {span: "right" if span in both else "missed" for span in gold}),
        ("predicted", {span: "right" if span in both else "wrong" for span in answered}),
    ]
    lines = [
        element("div", element("dt", side),
                element("dd", marked(example, spans, first, last), dir="auto"))
        for side, spans in rows
    ]  # fmt: skip
    return joined([where, element("dl", *lines, class_="sides"), _listed(some)])


def _spans_of(sides: Any, place: int, some: Sequence[ErrorCase]) -> tuple[list[Span], list[Span]]:
    """The spans to mark: all of gold and answer, or of plain tags those of the wrong words."""
    if sides is not None:
        return [list(dict.fromkeys(side[place])) for side in sides]  # type: ignore[return-value]
    return [
        [Span(side["start"], side["end"], side["label"]) for side in which]
        for which in ([m.gold for m in some], [m.predicted for m in some])
    ]  # type: ignore[return-value]


def _extent(example: TokenExample, some: Sequence[ErrorCase]) -> tuple[int, int]:
    """The words to show: all, or those around the mistakes where a sentence is long."""
    number = len(example.words)
    if number <= MOST_WORDS:
        return 0, number
    places = [side for m in some for side in (m.gold, m.predicted) if side]
    first = max(0, min(side["start"] for side in places) - AROUND)
    last = min(number, max(side["end"] for side in places) + AROUND)
    return first, min(last, first + MOST_WORDS)


def _listed(some: Sequence[ErrorCase]) -> Html:
    """What is wrong, span by span."""
    items = []
    for mistake in some[:MOST_LISTED]:
        parts = [element("b", mistake.category), " "]
        for name, side in (("gold", mistake.gold), ("predicted", mistake.predicted)):
            if side:
                parts += [f"{name} {side['label']} ", own_text(clipped(side["text"]), "q"), " "]
        items.append(element("li", *parts, _sure(mistake.confidence)))
    if len(some) > MOST_LISTED:
        items.append(element("li", f"and {len(some) - MOST_LISTED:,} more"))
    return element("ul", *items, class_="what")


def _texts(example: TextExample) -> Html:
    texts = [text for text in (example.text, example.pair) if text is not None]
    return joined(
        element("p", text[:MOST_LETTERS], "…" if len(text) > MOST_LETTERS else "", class_="text",
                dir="auto") for text in texts
    )  # fmt: skip


def _text_verdict(
    run: AlignedPredictions, place: int, some: Sequence[ErrorCase], doubtful: ErrorCase | None
) -> Html:
    """Gold, answer and probabilities of a text."""
    gold, answer = run.gold[place], run.predicted[place]
    kind = "right" if gold == answer else None
    if run.kind == "labels":
        sides = [
            ("gold", [(name, "right" if name in answer else "missed") for name in gold]),
            ("predicted", [(name, "right" if name in gold else "wrong") for name in answer]),
        ]
    else:
        sides = [("gold", [(shown(gold), kind or "missed")]),
                 ("predicted", [(shown(answer), kind or "wrong")])]  # fmt: skip
    sure = _sure(some[0].confidence) if run.kind == "label" and kind is None else EMPTY
    lines = [
        element("div", element("dt", name), element(
            "dd", *(joined([_label_mark(*each), " "]) for each in labels[:MOST_LISTED]),
            _rest(len(labels)), sure if name == "predicted" else "",
        ))
        for name, labels in sides
    ]  # fmt: skip
    parts: list[Any] = [element("dl", *lines, class_="sides"), _chances(run.rows[place])]
    if run.kind == "number":
        parts.append(element("p", f"error {abs(gold - answer):.4f}", class_="note"))
    if doubtful:
        said = f"Contradicts gold with more confidence than usual for {doubtful.predicted}"
        parts.append(element("p", said, _sure(doubtful.confidence), class_="doubt"))
    return joined(parts)


def _rest(number: int) -> str:
    """What is said after the labels of a text."""
    if number > MOST_LISTED:
        return f"and {number - MOST_LISTED:,} more"
    return "" if number else "nothing"


def _label_mark(label: str, kind: str) -> Html:
    """A label in the style of what became of it."""
    return element("mark", own_text(label), class_=kind)


def _chances(row: Mapping[str, Any]) -> Html:
    """The likeliest labels as bars."""
    scores = row.get("scores")
    if not isinstance(scores, Mapping):
        return EMPTY
    known = {name: value for name, value in scores.items() if isinstance(value, int | float)}
    most = sorted(known.items(), key=lambda item: -item[1])[:4]
    items = (
        element("li", own_text(name), element("span", f"{value:.3f}"),
                style=f"--share:{min(max(value, 0), 1):.4f}")
        for name, value in most
    )  # fmt: skip
    return element("ul", *items, class_="chances", aria_label="probabilities")


def _sure(confidence: float | None) -> Html:
    if confidence is None:
        return EMPTY
    return element("span", f" {confidence:.3f}", class_="sure", title="probability of the answer")
