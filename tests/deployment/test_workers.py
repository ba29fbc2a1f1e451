"""`finetune serve --workers`, readiness, and the drain, with processes that are killed."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from tests.command import run
from tests.deployment.test_serve import ROOT, post

WAIT = 30
"""Seconds until a test gives up."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")


def start(folder: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    server = subprocess.Popen(
        [sys.executable, "-m", "finetune", "serve", f"mine={folder}", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    found = re.match(r"serving mine at http://127\.0\.0\.1:(\d+)/", line)
    assert found, line + server.communicate(timeout=10)[1]
    return server, int(found[1])


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


def end(server: subprocess.Popen[str], workers: set[int]) -> None:
    server.kill()
    server.communicate()
    limit = time.monotonic() + WAIT
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "workers outlive the parent"


@pytest.mark.slow
@pytest.mark.parametrize("export", [False, True])
def test_workers_share_counts_and_a_killed_one_is_replaced(
    runs: dict[str, Path], tmp_path: Path, export: bool
):
    folder = runs["texts"]
    if export:
        pytest.importorskip("onnx")
        assert run("export", folder, "--out", tmp_path / "graph").code == 0
        folder = tmp_path / "graph"
    server, port = start(folder, "--workers", "2", "--log-level", "warning")
    workers = children(server)
    try:
        answers = [post(port, b'{"text": "a lovely room"}') for _ in range(40)]
        assert {status for status, _ in answers} == {200}
        assert len({str(answer["predictions"]) for _, answer in answers}) == 1
        workers = children(server)
        assert len(workers) == 2
        for _ in range(10):  # whichever worker answers
            assert 'finetune_examples_total{model="mine"} 40\n' in get(port, "/metrics")[1]
        killed = min(workers)
        os.kill(killed, signal.SIGKILL)
        limit = time.monotonic() + WAIT
        while (now := children(server)) == workers or len(now) < 2:
            assert time.monotonic() < limit
            time.sleep(0.05)
        workers = now
        assert killed not in workers
        assert post(port, b'{"text": "a lovely room"}')[0] == 200
        assert 'finetune_examples_total{model="mine"} 41\n' in get(port, "/metrics")[1]
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=WAIT)
        assert (server.returncode, out) == (0, "")
        assert re.search(rf"worker {killed} was ended by signal 9, .* takes its place", err), err
    finally:
        end(server, workers)


def asked_again(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """Return an answer on a connection that stays open."""
    connection.request("GET", "/live")
    answer = connection.getresponse()
    answer.read()
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_drain(runs: dict[str, Path], options: tuple[str, ...]):
    """A server that drains is alive but not ready, and finishes a request that arrives slowly."""
    server, port = start(runs["texts"], "--drain", "3", *options)
    workers = children(server)
    try:
        assert get(port, "/live")[0] == get(port, "/ready")[0] == 200
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT)
        assert not asked_again(kept).will_close
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as slow:
            slow.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                b"application/json\r\nContent-Length: 16\r\n\r\n{"
            )
            server.send_signal(signal.SIGTERM)
            limit = time.monotonic() + WAIT
            while (found := get(port, "/ready"))[0] == 200:
                assert time.monotonic() < limit
            assert found == (503, '{"status": "draining"}')
            assert get(port, "/live")[0] == 200
            assert asked_again(kept).will_close
            while True:  # until connections are refused
                assert time.monotonic() < limit
                try:
                    get(port, "/live")
                except OSError:
                    break
                time.sleep(0.1)
            slow.sendall(b'"text": "late"}')
            assert slow.recv(100_000).startswith(b"HTTP/1.1 200")
        server.communicate(timeout=WAIT)
        assert server.returncode == 0
    finally:
        end(server, workers)


def test_wrong_options(tmp_path: Path):
    for options, problem in (
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--drain", "-1"], "--drain -1: must be 0 to 3600 seconds"),
        (["--drain", "nan"], "--drain nan: must be 0 to 3600 seconds"),
        (["--workers", "2", "--port", "70000"], "must be 0 to 65535"),
    ):
        done = run("serve", tmp_path / "none", *options)
        assert done.code == 2 and problem in done.err, done.err
