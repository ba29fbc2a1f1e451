"""The HTTP interface, in process: rows of `predict`, statuses, limits, several models."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

import finetune
from finetune.deployment.batcher import Limits
from finetune.deployment.served_model import ServedModel
from finetune.deployment.server import make_app
from finetune.inference.predictor import Predictor
from finetune.types import UserError
from tests.command import run
from tests.deployment.conftest import served
from tests.small_data import close

HOSTS = frozenset({"127.0.0.1", "localhost"})
NAMES = ("texts", "pairs", "tags", "nested", "choices")
TEXTS = {
    "texts": [{"text": "a lovely bright room"}, {"text": ""}, {"text": "dull & cold " * 9}],
    "pairs": [{"text": f"Ana lives in {place}", "text_pair": "Ana is happy"} for place in "xyz"],
    "tags": [{"text": "Ana saw  Oslo."}, {"words": ["Bruno", "", "Lagos"]}, {"text": ""}],
    "nested": [{"text": "Ana saw New York ."}, {"words": ["Quito"]}],
    "choices": [{"context": "it was dull", "question": "what?", "choices": ["warm", "dull"]}],
}


@pytest.fixture(scope="module")
def models(runs: dict[str, Path]) -> Iterator[list[ServedModel]]:
    limits = Limits(max_bytes=3000, max_examples=4, max_characters=400)
    with served(runs, NAMES, limits) as models:
        yield models


@pytest.fixture(scope="module")
def client(models: list[ServedModel]) -> Iterator[TestClient]:
    with TestClient(make_app(models, hosts=HOSTS), base_url="http://127.0.0.1:8000") as made:
        yield made


def test_the_context_counts_with_each_choice(client: TestClient):
    body = {"context": "x" * 90, "question": "what?", "choices": ["a", "b", "c", "d"]}
    answer = client.post("/models/choices/predict", json=body)
    assert answer.status_code == 200, answer.text
    answer = client.post("/models/choices/predict", json=body | {"choices": list("abcde")})
    assert answer.status_code == 413 and "485 characters: at most 400" in answer.json()["error"]


def test_rows_are_those_of_predict(client: TestClient, runs: dict[str, Path], tmp_path: Path):
    for name in NAMES:
        answer = client.post(f"/models/{name}/predict", json={"examples": TEXTS[name]})
        assert answer.status_code == 200, answer.text
        for example, row in zip(TEXTS[name], answer.json()["predictions"], strict=True):
            named = {"tokens" if k == "words" else k: v for k, v in example.items()}
            (tmp_path / "one.jsonl").write_text(json.dumps(named) + "\n", "utf-8")
            done = run("predict", runs[name], "--file", tmp_path / "one.jsonl").ok()
            assert close(row | {"id": 0}, json.loads(done.out))


def test_answers_of_concurrent_requests_are_their_own(client: TestClient, runs: dict[str, Path]):
    words = ("lovely", "bright", "dreadful", "dull", "broken", "cold", "Oslo", "Quito")
    texts = [f"the room {' '.join(words[: n % 9])} {n}" for n in range(120)]
    expected = [each.record() for each in Predictor(runs["texts"]).predict(texts)]

    def ask(number: int) -> dict:
        body = {"text": texts[number], "id": f"text {number}"}
        answer = client.post("/predict", json=body, headers={"X-Request-ID": f"r{number}"})
        assert answer.json()["request_id"] == answer.headers["X-Request-ID"] == f"r{number}"
        return answer.json()["predictions"][0]

    with ThreadPoolExecutor(16) as pool:
        rows = list(pool.map(ask, range(len(texts))))
    for number, (row, want) in enumerate(zip(rows, expected, strict=True)):
        assert close(row, want | {"id": f"text {number}"})
    assert len({row["score"] for row in rows}) > 20


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (400, b"{", "not JSON in UTF-8: Expecting property name"),
        (400, b'{"text": "\xff"}', "error parsing the body"),
        (400, b"[" * 2000, "error parsing the body"),
        (413, b" " * 3001, "over 3,000 bytes"),
        (413, {"examples": ["x"] * 5}, "5 examples in a request: at most 4"),
        (413, {"text": "x" * 401}, "example 0: 401 characters: at most 400"),
        (422, [], "the body: Input should be a valid dictionary"),
        (422, {"examples": []}, "examples: List should have at least 1 item"),
        (422, {"examples": {}}, "examples: Input should be a valid list"),
        (422, {"examples": ["x"], "text": "y"}, "the body: text: Extra inputs are not permitted"),
        (422, {"examples": ["x", 3]}, "example 1: Input should be a valid dictionary"),
        (422, {"text": None}, "example 0: text: Input should be a valid string"),
        (422, {}, "example 0: give text."),
        (
            422,
            {"text": "x", "text_pair": "y"},
            "0: text_pair: Extra inputs are not permitted. This model reads text.",
        ),
        (422, {"text": "x", "id": 1.5}, "example 0: id: Input should be a valid string"),
        (422, b'{"text": "\\ud800"}', "not valid UTF-8"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_errors(client: TestClient, status: int, body: Any, problem: str):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/predict", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert problem in answer.json()["error"]
    assert answer.json()["request_id"] == answer.headers["X-Request-ID"]


def test_errors_of_other_inputs(client: TestClient):
    for name, example, problem in (
        ("pairs", {"text": "x"}, "give text and text_pair"),
        ("tags", {"text": "x", "words": ["x"]}, "not both"),
        ("tags", {"words": ["x", 1]}, "words: Input should be a valid string"),
        ("tags", {"text": ["x"]}, "text: Input should be a valid string"),
    ):
        answer = client.post(f"/models/{name}/predict", json=example)
        assert answer.status_code == 422 and problem in answer.json()["error"]


def test_a_body_of_unknown_length_is_counted(client: TestClient):
    chunks = (b" " * 1000 for _ in range(10))
    answer = client.post("/predict", content=chunks, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_other_statuses(client: TestClient):
    assert client.post("/predict", content=b"{}").status_code == 415
    assert client.post("/predict", data={"text": "x"}).status_code == 415
    assert client.get("/predict").status_code == 405
    assert client.get("/models/../x").json()["error"] == "Not Found"
    unknown = client.post("/models/other/predict", json={"text": "x"})
    assert unknown.status_code == 404 and "texts, pairs" in unknown.json()["error"]
    rebound = client.get("/models", headers={"Host": "attacker.example:8000"})
    assert rebound.status_code == 400 and "Host" in rebound.json()["error"]
    assert client.get("/models", headers={"Host": "localhost"}).status_code == 200


def test_request_ids(client: TestClient):
    made = client.get("/health").headers["X-Request-ID"]
    assert len(made) == 32
    for bad in ("x" * 129, "a b", "<script>"):
        assert client.get("/health", headers={"X-Request-ID": bad}).headers["X-Request-ID"] != bad


def test_a_full_queue(client: TestClient, models: list[ServedModel], monkeypatch):
    monkeypatch.setattr(models[0].batcher, "max_waiting", 0)
    answer = client.post("/predict", json={"text": "x"})
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
    monkeypatch.undo()
    assert client.post("/predict", json={"text": "x"}).status_code == 200


def test_a_bug_shows_in_the_log_only(
    client: TestClient, models: list[ServedModel], monkeypatch, caplog
):
    def fail(items: Any) -> Any:
        raise RuntimeError("at /secret/path")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(models[0].batcher, "predict", fail)
        answer = client.post("/predict", json={"text": "x"}, headers={"X-Request-ID": "seven"})
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "internal error: see the log of the server.",
        "request_id": "seven",
    }
    assert "request seven failed" in caplog.text and "/secret/path" in caplog.text
    assert client.post("/predict", json={"text": "x"}).status_code == 200


def test_models_health_and_metrics(client: TestClient):
    answer = client.get("/models").json()
    assert answer["finetune"] == finetune.__version__
    listed = answer["models"]
    assert [(each["name"], each["task"]) for each in listed] == [
        ("texts", "classify"),
        ("pairs", "nli"),
        ("tags", "tag"),
        ("nested", "ner"),
        ("choices", "choice"),
    ]
    assert listed[0]["labels"] == ["neg", "pos"] and listed[2]["keys"] == ["text", "words"]
    assert client.get("/health").json() == {"status": "ok"}
    before = client.get("/metrics").text
    client.post("/models/tags/predict", json={"examples": ["Ana saw Oslo", "x"]})
    client.post("/models/tags/predict", json={})
    text = client.get("/metrics").text
    assert (
        value(text, 'examples_total{model="tags"}')
        == value(before, 'examples_total{model="tags"}') + 2
    )
    path = 'requests_total{path="/models/tags/predict",status="422"}'
    assert value(text, path) >= 1 and value(text, 'request_seconds_bucket{le="+Inf"}') == value(
        text, "request_seconds_count"
    )


def value(text: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in text.splitlines() if f"finetune_{name}" in line)


def test_answers_are_logged_without_texts(client: TestClient, caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO", logger="finetune.serving.access"):
        client.post("/predict", json={"text": "secret"}, headers={"X-Request-ID": "r1"})
        client.get("/models/a%0Ab?q=secret")
    lines = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r'testclient "POST /predict" 200 \d+\.\d ms r1', lines[0]), lines
    assert re.match(r'testclient "GET /models/a\\nb" 404 ', lines[1]), lines


def test_openapi_examples_can_be_sent(client: TestClient):
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        "/predict",
        *(f"/models/{name}/predict" for name in NAMES),
        "/models",
        "/health",
        "/metrics",
    }
    for name in NAMES:
        post = schema["paths"][f"/models/{name}/predict"]["post"]
        body = post["requestBody"]["content"]["application/json"]["schema"]
        assert len(body["anyOf"]) == 2, "an example, or several"
        (example,) = schema["components"]["schemas"][f"Example_of_{name}"]["examples"]
        for sent in (example, {"examples": [example, example]}):
            assert client.post(f"/models/{name}/predict", json=sent).status_code == 200
        assert {"200", "400", "404", "413", "415", "422", "500", "503"} <= set(post["responses"])


def test_limits_and_names_are_checked():
    with pytest.raises(UserError, match="--batch-size 0: must be at least 1"):
        Limits(batch_size=0)
