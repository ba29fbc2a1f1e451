"""`finetune serve` as a process: the address that it prints, requests, the graceful stop."""

from __future__ import annotations

import ast
import contextlib
import http.client
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from finetune.cli.serve import _listen, named_runs
from finetune.types import UserError
from tests import small_data
from tests.command import run
from tests.tiny import save_tiny_checkpoint

ROOT = Path(__file__).parents[2]


def post(port: int, body: bytes, path: str = "/predict") -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def documented_program(port: int) -> list[dict]:
    """The rows that the Python program of docs/serving.md prints; its curl command works too."""
    page = (ROOT / "docs" / "serving.md").read_text("utf-8").replace(":8000", f":{port}")
    (program,) = re.findall(r"^```\n(import json.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    (curl,) = re.findall(r"^curl .*$", page, flags=re.MULTILINE)
    words = shlex.split(curl)
    assert words[3:5] == ["-H", "Content-Type: application/json"] and words[2].endswith("/predict")
    assert post(port, words[-1].encode())[0] == 200
    return ast.literal_eval(printed.getvalue())


def test_answers_are_sent_at_once():
    with (
        _listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_server(tmp_path: Path):
    save_tiny_checkpoint(tmp_path / "bert", "bert")
    small_data.sentiment(tmp_path / "data")
    trained = run("classify", "--model", tmp_path / "bert", "--data", tmp_path / "data",
                  "--out", tmp_path / "run", "--steps", "2")  # fmt: skip
    assert trained.code == 0, trained.err
    server = subprocess.Popen(
        [sys.executable, "-m", "finetune", "serve", f"mine={tmp_path / 'run'}", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.fullmatch(r"serving mine at http://127\.0\.0\.1:(\d+)/ \(Ctrl-C stops\)\n", line)
        assert found, line + server.communicate(timeout=10)[1]
        port = int(found[1])
        status, answer = post(port, b'{"text": "a lovely room"}')
        assert status == 200 and answer["model"] == "mine"
        assert [row["id"] for row in documented_program(port)] == [0, "b"]
        assert post(port, b"{")[0] == 400
        assert post(port, b"x" * 10_000_000)[0] == 413
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                         b"application/json\r\nContent-Length: 100\r\n\r\n{")  # fmt: skip
        texts = [f"a lovely room {'in Oslo ' * (n % 40)}" for n in range(250)]
        results: list[tuple[int, dict]] = []
        body = json.dumps({"examples": texts}).encode()
        waiting = threading.Thread(target=lambda: results.append(post(port, body)))
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                         b"application/json\r\nContent-Length: 16\r\n\r\n{")  # fmt: skip
            waiting.start()
            while not (f'status="{CLIENT_GONE}"' in metrics(port) and in_progress(port)):
                pass
            server.send_signal(signal.SIGTERM)
            slow.sendall(b'"text": "late"}')
            assert slow.recv(100_000).startswith(b"HTTP/1.1 200")
        waiting.join(60)
        assert results[0][0] == 200 and len(results[0][1]["predictions"]) == len(texts)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err) == (0, "", "stopped\n")
    finally:
        server.kill()
        server.communicate()


CLIENT_GONE = 499


def metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def in_progress(port: int) -> bool:
    """Whether a second batch was begun."""
    return int(metrics(port).split('batches_total{model="mine"} ')[1].split()[0]) > 1


def test_names_of_models(tmp_path: Path):
    for name in ("one", "two", "a b"):
        (tmp_path / name / "best").mkdir(parents=True)
    one, two = str(tmp_path / "one"), str(tmp_path / "two" / "best")
    assert named_runs((one, two, f"three={one}")) == {"one": one, "two": two, "three": one}
    for runs, problem in (
        ((), "at least one"),
        ((one, one), "two models are named 'one'"),
        ((str(tmp_path / "a b"),), "write name=RUN"),
        ((f"a/b={one}",), "write name=RUN"),
    ):
        with pytest.raises(UserError, match=problem):
            named_runs(runs)


def test_wrong_options(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, problem in (
            (["--port", port], "Address already in use"),
            (["--port", "70000"], "must be 0 to 65535"),
            (["--max-examples", "0"], "must be at least 1"),
            (["--port", "0"], "no such folder"),
        ):
            done = run("serve", tmp_path / "none", *options)
            assert done.code == 2 and problem in done.err, done.err
