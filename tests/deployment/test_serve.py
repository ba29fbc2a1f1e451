"""`finetune serve`: rows of `predict`, statuses, batches, the process and its graceful stop."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

import finetune
from finetune.deployment import server as serving
from finetune.deployment.commands import _listen, named_runs
from finetune.deployment.server import ServedModel, Waiting, make_app
from finetune.types import TextExample, UserError
from tests.command import run
from tests.deployment.conftest import blocking
from tests.forks import in_fork
from tests.small_data import close

ROOT = Path(__file__).parents[2]
TEXTS: dict[str, list[dict[str, Any]]] = {
    "texts": [{"text": "a lovely bright room"}, {"text": ""}, {"text": "dull & cold " * 9}],
    "pairs": [{"text": f"Ana lives in {place}", "text_pair": "Ana is happy"} for place in "xyz"],
    "tags": [{"text": "Ana saw  Oslo."}, {"words": ["Bruno", "", "Lagos"]}, {"text": ""}],
    "nested": [{"text": "Ana saw New York ."}, {"words": ["Quito"]}],
    "choices": [{"context": "it was dull", "question": "what?", "choices": ["warm", "dull"]}],
}


@pytest.fixture(scope="module")
def models(runs: dict[str, Path]) -> list[ServedModel]:
    return [ServedModel(name, str(runs[name])) for name in TEXTS]


@pytest.fixture(scope="module")
def client(models: list[ServedModel]) -> Iterator[TestClient]:
    with TestClient(make_app(models)) as made:
        yield made


def test_rows_are_those_of_predict(client: TestClient, runs: dict[str, Path]):
    for name, examples in TEXTS.items():
        answer = client.post(f"/models/{name}/predict", json={"examples": examples})
        assert answer.status_code == 200, answer.text
        inputs: list[Any] = [e if "choices" in e else tuple(e.values()) for e in examples]
        inputs = [item[0] if len(item) == 1 else item for item in inputs]
        expected = [p.to_dict() for p in finetune.load(runs[name]).predict(inputs)]
        assert close(answer.json()["predictions"], expected)


READS_TEXT = 'this model reads text and an optional id; send several examples as {"examples": [...'
WRONG: list[tuple[str, Any, str]] = [
    ("texts", b"{", "the body: Invalid JSON"),
    ("texts", {"examples": []}, "examples: List should have at least 1 item"),
    ("texts", {"examples": ["x"], "text": "y"}, "an example, or examples, not both"),
    ("texts", {"examples": ["x", {"text": "x", "lang": "en"}]}, "example 1 has text, lang"),
    ("texts", {"exmaples": ["x"]}, f"exmaples: {READS_TEXT}"),
    ("texts", {}, "example 0 has nothing: this model reads text"),
    ("texts", {"text": "x", "text_pair": "y"}, "text, text_pair: this model reads text and"),
    ("pairs", {"text": "x"}, "compares two texts and got one"),
    ("tags", {"text": "x", "words": ["x"]}, "text, words: this model reads text or words"),
    ("tags", {"words": ["x", 1]}, "words 1: Input should be a valid string"),
    ("choices", {"question": "x"}, "choices"),
]


def test_errors(client: TestClient):
    large = (b" " * 500_000 for _ in range(10))
    rows = [(name, 422, body, problem) for name, body, problem in WRONG]
    rows.append(("texts", 413, large, "the body has over 1,000,000 bytes"))
    for name, status, body, problem in [*rows, ("other", 404, {"text": "x"}, "Not Found")]:
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        answer = client.post(f"/models/{name}/predict", content=content)
        assert answer.status_code == status and problem in answer.json()["detail"], answer.text


def test_a_full_queue_and_a_bug(models: list[ServedModel], monkeypatch: pytest.MonkeyPatch):
    bug, no_mask = (
        mock.Mock(side_effect=e) for e in (RuntimeError("/a/path"), UserError("no mask"))
    )
    with TestClient(make_app(models[:1]), raise_server_exceptions=False) as client:
        for target, name, value, status, said in (
            (serving, "MOST_WAITING", 0, 503, "too many requests wait"),
            (models[0], "predict", bug, 500, "Internal Server Error"),
            (models[0], "predict", no_mask, 422, "no mask"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(target, name, value)
                answer = client.post("/predict", json={"text": "x"})
            assert answer.status_code == status and said in answer.text and "/a" not in answer.text
        assert client.post("/predict", json={"text": "x"}).status_code == 200


def test_models_and_examples_of_the_docs(client: TestClient):
    listed = client.get("/health").json()
    tasks = ["classify", "nli", "tag", "ner", "choice"]
    assert [(each["name"], each["task"]) for each in listed] == list(zip(TEXTS, tasks, strict=True))
    assert listed[0]["labels"] == ["neg", "pos"] and listed[2]["keys"] == ["text", "words"]
    assert listed[0]["waiting"] == 0 and client.get("/docs").status_code == 200
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/health", "/predict", *(f"/models/{name}/predict" for name in TEXTS)}
    for path in paths.keys() - {"/health"}:
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert client.post(path, json=body).status_code == 200


def test_batches(models: list[ServedModel], monkeypatch: pytest.MonkeyPatch):
    """Waiting requests go together in order; an error is its own."""
    batches: list[list[str]] = []

    def predict(examples: Sequence[TextExample]) -> list[str]:
        batches.append([example.text for example in examples])
        assert [example.id for example in examples] == [*range(len(examples))]
        if "bad" in batches[-1]:
            raise ValueError("bad")
        return [example.text * 2 for example in examples]

    async def ask() -> list[Any]:
        waiting = []
        for texts in ("a b c", "d", "bad", "e f", "g h i j k"):
            examples = [TextExample(0, text) for text in texts.split()]
            waiting.append(Waiting(examples, asyncio.Future()))
        models[0].waiting.extend(waiting)
        await models[0].work()
        futures = (one.predictions for one in waiting)
        return await asyncio.gather(*futures, return_exceptions=True)

    monkeypatch.setattr(models[0], "predict", predict)
    monkeypatch.setattr(models[0], "batch_size", 5)
    first, second, bad, *rest = asyncio.run(ask())
    assert (first, second) == (["aa", "bb", "cc"], ["dd"])
    assert rest == [["ee", "ff"], ["gg", "hh", "ii", "jj", "kk"]]
    assert str(bad) == "bad"
    together = ["a", "b", "c", "d", "bad"]
    assert batches == [together, together[:3], ["d"], ["bad"], ["e", "f"], [*"ghijk"]]


def test_names_of_models_and_wrong_options(tmp_path: Path):
    for name in ("one", "two", "a b"):
        (tmp_path / name / "best").mkdir(parents=True)
    one, two = str(tmp_path / "one"), str(tmp_path / "two" / "best")
    assert named_runs((one, two, f"three={one}")) == {"one": one, "two": two, "three": one}
    assert named_runs(("owner/name@v1",)) == {"name": "owner/name@v1"}
    for runs in ((one, one), (str(tmp_path / "a b"),), (f"a/b={one}",)):
        with pytest.raises(UserError, match="write name=RUN"):
            named_runs(runs)
    with _listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        for options, problem in (
            (["--port", port], "Address already in use"),
            (["--port", "70000"], "0-65535"),
            (["--batch-size", "0"], "--batch-size must be 1 or more"),
            (["--port", "0"], "no such folder"),
        ):
            run("serve", tmp_path / "none", *options).refused(problem)
        with socket.create_connection(taken.getsockname()), taken.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def post(port: int, body: bytes) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/predict", body)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def served_by(server: Any, readline: Callable[[], str]) -> tuple[int, str]:
    """The port of a process that serves a run as ``mine``, and its curl line."""
    line = readline()
    found = re.match(r"serving mine at http://127\.0\.0\.1:(\d+)/docs \(Ctrl-C stops\)", line)
    assert found, line + server.communicate(timeout=10)[1]
    return int(found[1]), readline()


def test_an_export_is_served_without_torch(runs: dict[str, Path], tmp_path: Path):
    pytest.importorskip("onnx")
    run("export", runs["texts"], "--out", tmp_path / "graph").ok()
    texts = ["a lovely room", "", "dull and cold " * 30]
    expected = [p.to_dict() for p in finetune.load(runs["texts"]).predict(texts)]
    code = blocking("torch", "transformers", "accelerate", "scipy")
    code += "\nfrom finetune.cli.main import main; main()"
    words = [sys.executable, "-c", code, "serve", f"mine={tmp_path / 'graph'}", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen(words, **pipes, text=True, cwd=ROOT) as server,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(server.kill)
        assert server.stdout is not None
        port, _ = served_by(server, server.stdout.readline)
        found = post(port, json.dumps({"examples": texts}).encode())[1]["predictions"]
        assert found[1] == expected[1] and found[1]["label"] is None
        for row, other in zip(found, expected, strict=True):
            assert row.keys() == other.keys() and row["label"] == other["label"]
        assert found[0]["score"] == pytest.approx(expected[0]["score"], abs=0.02)  # bfloat16
        assert post(port, b'{"words": ["a"]}')[0] == 422


def test_a_server(runs: dict[str, Path]):
    """Documented requests, and a stop that answers what is under way."""
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    curls = re.findall(r"^curl .*$", page, flags=re.MULTILINE)
    words = [sys.executable, "-m", "finetune", "serve", f"mine={runs['texts']}", "--port", "0"]
    with in_fork(words, ROOT) as server:
        port, hint = served_by(server, server.readline)
        assert f"curl -s http://127.0.0.1:{port}/predict -d " in hint
        for line in (*curls, hint):
            assert post(port, shlex.split(line)[-1].encode())[0] == 200
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n{"
        for name, status in (("localhost", 200), (f"127.0.0.1:{port}", 200), ("a.example", 400)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/health", headers={"Host": name})
            assert connection.getresponse().status == status
        texts = [f"a lovely room {'in Oslo ' * (n % 40)}" for n in range(250)]
        results: list[tuple[int, dict[str, Any]]] = []
        body = json.dumps({"examples": texts}).encode()
        waiting = threading.Thread(target=lambda: results.append(post(port, body)))
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(head)
            waiting.start()
            post(port, b'{"text": "after it"}')
            server.terminate()
            slow.sendall(b'"text": "late"}')
            assert slow.recv(100_000).startswith(b"HTTP/1.1 200")
        waiting.join(60)
        assert results[0][0] == 200 and len(results[0][1]["predictions"]) == len(texts)
        server.communicate(timeout=60)
        assert server.returncode == 0
