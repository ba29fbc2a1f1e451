"""`finetune serve --workers`, with processes that are killed."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.command import run
from tests.deployment.test_serve import post, serving

WAIT = 30
"""Seconds until a test gives up."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def children(server: subprocess.Popen[str]) -> set[int]:
    path = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    return set(map(int, path.read_text().split()))


def all_end(workers: set[int]) -> None:
    limit = time.monotonic() + WAIT
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "workers outlive the parent"


@pytest.mark.slow
@pytest.mark.parametrize("export", [False, True])
def test_workers_share_counts_and_end_together(runs: dict[str, Path], tmp_path: Path, export: bool):
    folder = runs["texts"]
    if export:
        pytest.importorskip("onnx")
        run("export", folder, "--out", tmp_path / "graph").ok()
        folder = tmp_path / "graph"
    for killed in (False, True):
        with serving(folder, "--workers", "2") as (server, port):
            answers = [post(port, b'{"text": "a lovely room"}') for _ in range(40)]
            assert {status for status, _ in answers} == {200}
            assert len({str(answer["predictions"]) for _, answer in answers}) == 1
            workers = children(server)
            assert len(workers) == 2
            for _ in range(10):  # whichever worker answers
                assert 'finetune_examples_total{model="mine"} 40.0\n' in get(port, "/metrics")[1]
            if killed:
                os.kill(min(workers), signal.SIGKILL)
            else:
                server.send_signal(signal.SIGTERM)
            out, err = server.communicate(timeout=WAIT)
            assert (server.returncode, out) == (int(killed), ""), err
            assert ("a process of the server ended: stopping" in err) == killed
        all_end(workers)


@pytest.mark.slow
def test_workers_do_not_outlive_the_parent(runs: dict[str, Path]):
    with serving(runs["texts"], "--workers", "2") as (server, _):
        workers = children(server)
    all_end(workers)
