"""The bench prints what it promises and leaves everything as it was; its times are not judged."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from finetune import bench
from finetune.heads import span_scoring

ARMS = {
    "boundary": ["naive", "finetune", "finetune-recomputed"],
    "attention": ["naive", "finetune", "finetune-recomputed"],
    "biaffine": ["naive", "finetune"],
}
SPANS = 3 + 2 + 1 + 7 + 6 + 5 + 4  # 3 and 7 words, up to 4 in a span


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads, budget = torch.get_num_threads(), span_scoring.ACTIVATION_BUDGET
    yield
    torch.set_num_threads(threads)
    assert budget == span_scoring.ACTIVATION_BUDGET


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--cases", "small", "--rounds", "1"])
    header, rule, *lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {line.count("|") for line in (header, rule, *lines)} == {11}
    assert [row[1] for row in cells] == [*ARMS]
    assert {(row[0], row[2]) for row in cells} == {("2 tiny w4 d16", str(SPANS))}
    assert [bool(row[5]) for row in cells] == [True, True, False]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--cases", "small", "--rounds", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    arms: dict[str, list[str]] = {}
    for row in found["rows"]:
        arms.setdefault(row["representation"], []).append(row["arm"])
        assert (row["phase"], row["case"], row["spans"]) == ("span", "2 tiny w4 d16", SPANS)
        assert row["milliseconds"] > 0
        assert row["peak_memory_bytes"] is None or row["peak_memory_bytes"] >= 0
    assert arms == ARMS
    assert found["environment"]["torch"] == torch.__version__
    assert found["environment"]["threads"] == 1
    assert found["environment"]["processor"]


def test_memory_is_empty_where_it_cannot_be_taken(monkeypatch, capsys) -> None:
    monkeypatch.setattr(bench, "_shows_memory", lambda: False)
    bench.main(["--cases", "small", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert all(line.endswith("x |  |  |  |") for line in lines)


@pytest.mark.skipif(not bench._shows_memory(), reason="needs Linux with glibc")
def test_peak_is_what_a_pass_needs_each_time_anew() -> None:
    size = 32 * 2**20

    def scores() -> torch.Tensor:
        kept = torch.ones(size // 4)  # freed before the end: only the peak has it
        return torch.ones(1, requires_grad=True) * kept.sum()

    with bench.freed_memory_returned():
        peaks = [bench._peak(bench.Arm("naive", scores, 0)) for _ in range(4)]
    assert all(0.9 * size < peak < 1.5 * size for peak in peaks[1:]), peaks


@pytest.mark.parametrize("representation", bench.REPRESENTATIONS)
def test_arms_agree_closely_and_in_gradients(representation: str) -> None:
    (case,) = bench.cases("small")
    layout = bench.SpanLayout(bench._batch(case.lengths), case.max_width)
    words = torch.randn(sum(case.lengths), case.width, requires_grad=True)
    found = []
    for arm in bench.arms_of(case, representation, words, layout):
        with bench.activation_budget(arm.budget):
            scores = arm.scores()
            (gradient,) = torch.autograd.grad(scores.square().sum(), words)
        found.append((scores.detach(), gradient))
    for scores, gradient in found[1:]:
        torch.testing.assert_close(scores, found[0][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-4)


def test_a_difference_is_an_error_and_the_budget_comes_back() -> None:
    budgets = []

    def scores(shift: float) -> torch.Tensor:
        budgets.append(span_scoring.ACTIVATION_BUDGET)
        return torch.zeros(4, 2, requires_grad=True) + shift

    arms = [
        bench.Arm("naive", lambda: scores(0), 7),
        bench.Arm("finetune", lambda: scores(0.01), 9),
    ]
    with pytest.raises(AssertionError, match="finetune differs from naive"):
        bench.compare(arms)
    assert budgets == [7, 9]
    with pytest.raises(KeyError), bench.activation_budget(3):
        raise KeyError


def test_no_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--rounds", "0"])
    assert "0 is less than 1" in capsys.readouterr().err
