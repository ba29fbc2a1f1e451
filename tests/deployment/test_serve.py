"""`finetune serve` as a process: its address, requests, the graceful stop."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import http.client
import io
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import finetune
from finetune.deployment import commands
from finetune.deployment.commands import _listen, named_runs
from finetune.types import UserError
from tests.command import run
from tests.deployment.conftest import blocking

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


@pytest.fixture
def trained(runs: dict[str, Path]) -> Path:
    return runs["texts"]


@contextlib.contextmanager
def serving(
    folder: Path, *options: str, level: str = "warning", before: str = ""
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Serve a run as ``mine``, after some Python code; the process and its port."""
    code = f"{before}\nfrom finetune.cli.main import main; main()"
    words = ("serve", f"mine={folder}", "--port", "0", "--log-level", level, *options)
    server = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.match(r"serving mine at http://127\.0\.0\.1:(\d+)/.* \(Ctrl-C stops\)\n", line)
        assert found, line + server.communicate(timeout=10)[1]
        yield server, int(found[1])
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
def test_weights_that_are_overwritten_in_place_change_no_answer(trained: Path, tmp_path: Path):
    shutil.copytree(trained / "best", tmp_path / "best")
    weights = tmp_path / "best" / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    with serving(tmp_path) as (server, port):
        before = post(port, b'{"text": "a lovely room"}')[1]["predictions"]
        content = weights.read_bytes()
        with weights.open("r+b") as file:  # the same file, half as long
            file.seek(1000)
            file.write(content[len(content) // 2 :])
            file.truncate(len(content) // 2)
        assert post(port, b'{"text": "a lovely room"}')[1]["predictions"] == before
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/models") as answer:
            assert json.load(answer)["models"][0]["sha256"] == digest
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out) == (0, "")
        assert err == f"mine: {tmp_path}, sha256 {digest}\nstopped\n"


def test_an_export_is_served_without_torch(trained: Path, tmp_path: Path):
    pytest.importorskip("onnx")
    run("export", trained, "--out", tmp_path / "graph").ok()
    digest = hashlib.sha256((tmp_path / "graph" / "model.onnx").read_bytes()).hexdigest()
    texts = ["a lovely room", "", "dull and cold " * 30]
    expected = [p.record() for p in finetune.load(trained).predict(texts)]
    before = blocking("torch", "transformers", "accelerate", "scipy")
    graph = serving(tmp_path / "graph", level="info", before=before)
    with graph as (server, port):
        found = post(port, json.dumps({"examples": texts}).encode())[1]["predictions"]
        assert found[1] == expected[1] and found[1]["label"] is None
        for row, other in zip(found, expected, strict=True):
            assert row.keys() == other.keys() and row["label"] == other["label"]
        assert found[0]["score"] == pytest.approx(expected[0]["score"], abs=0.02)  # bfloat16
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/models") as answer:
            listed = json.load(answer)["models"][0]
        assert (listed["sha256"], listed["task"]) == (digest, "classify")
        assert post(port, b'{"words": ["a"]}')[0] == 422
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=60)
        requests = re.findall(r'INFO 127\.0\.0\.1 "(\w+ \S+)" (\d+) ', err)
        assert requests == [
            ("POST /predict", "200"),
            ("GET /models", "200"),
            ("POST /predict", "422"),
        ], err


def test_a_server(trained: Path):
    with serving(trained) as (server, port):
        status, answer = post(port, b'{"text": "a lovely room"}')
        assert status == 200 and answer["model"] == "mine"
        assert [row["id"] for row in documented_program(port)] == [0, "b"]
        assert post(port, b"{")[0] == 400
        assert post(port, b"x" * 10_000_000)[0] == 413
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                b"application/json\r\nContent-Length: 100\r\n\r\n{"
            )
        texts = [f"a lovely room {'in Oslo ' * (n % 40)}" for n in range(250)]
        results: list[tuple[int, dict]] = []
        body = json.dumps({"examples": texts}).encode()
        waiting = threading.Thread(target=lambda: results.append(post(port, body)))
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                b"application/json\r\nContent-Length: 16\r\n\r\n{"
            )
            waiting.start()
            while not (f'status="{CLIENT_GONE}"' in metrics(port) and in_progress(port)):
                pass
            server.send_signal(signal.SIGTERM)
            slow.sendall(b'"text": "late"}')
            assert slow.recv(100_000).startswith(b"HTTP/1.1 200")
        waiting.join(60)
        assert results[0][0] == 200 and len(results[0][1]["predictions"]) == len(texts)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err.splitlines()[1:]) == (0, "", ["stopped"])


CLIENT_GONE = 499


def metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def in_progress(port: int) -> bool:
    """Whether a second batch was begun."""
    return float(metrics(port).split('batches_total{model="mine"} ')[1].split()[0]) > 1


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


def test_loggers_of_the_program_are_as_before():
    loggers = [logging.getLogger(name) for name in ("finetune.serving", "uvicorn.error")]
    before = [(each.level, list(each.handlers), each.propagate) for each in loggers]
    with commands._log_on_standard_error("INFO"):
        assert not any(each.propagate for each in loggers)
    assert [(each.level, each.handlers, each.propagate) for each in loggers] == before


def test_wrong_options(tmp_path: Path):
    logger = logging.getLogger("finetune.serving")
    before = (logger.level, list(logger.handlers), logger.propagate, dict(os.environ))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, problem in (
            (["--port", port], "Address already in use"),
            (["--port", "70000"], "must be 0 to 65535"),
            (["--max-examples", "0"], "must be at least 1"),
            (["--port", "0"], "no such folder"),
        ):
            run("serve", tmp_path / "none", *options).refused(problem)
    after = (logger.level, logger.handlers, logger.propagate, dict(os.environ))
    assert after == before, "the logs and the environment of the program"
