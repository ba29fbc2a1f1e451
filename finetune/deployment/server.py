"""The HTTP interface of trained models: routes, limits, request ids, and metrics."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import prometheus_client
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import finetune
from finetune.deployment.batcher import QueueFull
from finetune.deployment.served_model import (
    ErrorAnswer,
    PredictAnswer,
    ServedModel,
    TooLarge,
)
from finetune.types import UserError

CLIENT_GONE = 499
"""Status in the metrics for a client that closed the connection before its response."""
REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
"""Legal values of X-Request-ID; others are replaced."""
OTHER = "other"
"""The path in the metrics of requests without a route."""
WAITING_REQUESTS = "finetune_waiting_requests"
"""The metric to scale by."""
STOP_SECONDS = 30
"""Seconds for the requests under way after the signal to stop."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that stop the server."""
STATUSES: dict[int | str, str] = {
    400: "The body is not JSON, or the Host header names another host.",
    404: "The model does not exist.",
    413: "The body, the number of examples or an example exceeds a limit.",
    415: "The Content-Type is not application/json.",
    422: "The model cannot read the examples.",
    500: "An internal error; the log of the server has the details under the request id.",
    503: "Too many requests wait: try again after the seconds in Retry-After.",
}

log = logging.getLogger("finetune.serving")
access = logging.getLogger("finetune.serving.access")
"""Logs each answer, without its texts."""


def make_app(models: Sequence[ServedModel], *, hosts: frozenset[str] | None = None) -> FastAPI:
    """Return the application.

    Args:
        models: The models; ``/predict`` asks the first one. The caller starts and closes them.
        hosts: Host names that requests may name, to refuse DNS rebinding; None allows all.
    """
    app = FastAPI(
        title="finetune",
        summary="Predictions of trained text encoders.",
        docs_url=None,  # its pages load scripts
        redoc_url=None,
    )
    descriptions = [model.describe() for model in models]
    page = (Path(__file__).parent / "page.html").read_text("utf-8")
    policy = {"Content-Security-Policy": _policy(page), "X-Content-Type-Options": "nosniff"}
    metrics = Metrics(models)
    errors: Any = {s: {"description": why, "model": ErrorAnswer} for s, why in STATUSES.items()}

    by_path = {"/predict": models[0]} | {f"/models/{m.name}/predict": m for m in models}
    for path, model in by_path.items():
        name, predict = f"predict with {model.name}", _predict_with(model)
        app.post(path, response_model=PredictAnswer, responses=errors, name=name)(predict)

    @app.get("/models")
    async def list_models() -> Response:
        """List the version of the toolkit, and the models with their inputs and labels."""
        return json_response({"finetune": finetune.__version__, "models": descriptions})

    @app.get("/health")
    async def health() -> Response:
        """Return status 200 while every model answers, else 503."""
        alive = all(model.batcher.alive for model in models)
        return json_response({"status": "ok" if alive else "failed"}, 200 if alive else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        """Return counts in the text format of Prometheus."""
        return Response(metrics.text(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    async def read_page() -> Response:
        """Return a page to try the models."""
        return HTMLResponse(page, headers=policy)

    @app.post("/models/{name}/predict", include_in_schema=False)
    async def predict_with_none(name: str) -> Response:
        raise HTTPException(404, f"no such model: there are {', '.join(m.name for m in models)}.")

    @app.exception_handler(HTTPException)
    async def error(request: Request, problem: Any) -> Response:
        return error_response(request.scope, problem.status_code, problem.detail, problem.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, problem: Any) -> Response:
        status, text = _problem(problem.errors()[0])
        if status == 422:
            text += f" This model reads {', '.join(by_path[request.url.path].engine.keys)}."
        return error_response(request.scope, status, text)

    guard: Any = Guard
    app.add_middleware(guard, metrics=metrics, hosts=hosts, max_bytes=models[0].limits.max_bytes)
    return app


def _predict_with(model: ServedModel) -> Callable[..., Awaitable[Response]]:
    async def predict(request: Request, body: Any) -> Response:
        try:
            items = model.items(body)
            future = model.batcher.submit(items, [item.size for item in items])
            rows = await _rows(request, future)
        except TooLarge as error:
            raise HTTPException(413, str(error)) from None
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        except QueueFull:
            problem = "too many requests wait: try again later."
            raise HTTPException(503, problem, {"Retry-After": "1"}) from None
        id = request.state.request_id
        return json_response({"model": model.name, "predictions": rows, "request_id": id})

    predict.__annotations__ = {"request": Request, "body": model.request, "return": Response}
    predict.__doc__ = f"Predict one or several examples with the model {model.name}."
    return predict


def _problem(error: Mapping[str, Any]) -> tuple[int, str]:
    place = list(error["loc"][1:])
    if error["type"] == "json_invalid":
        reason = error["ctx"]["error"]
        return 400, f"the body is not JSON in UTF-8: {reason} at character {place[0]}."
    where = "the body"
    if place[:1] == ["examples"]:
        where = f"example {place[1]}" if len(place) > 1 else "examples"
        place = place[2:]
    key = next((each for each in place if isinstance(each, str)), None)
    where += "" if key is None else f": {key:.80}"
    return 422, f"{where}: {error['msg']}."


class Metrics:
    """Counts and times for Prometheus."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.models, self.registry = models, CollectorRegistry()
        named: Any = {"registry": self.registry}
        self.requests = Counter(
            "finetune_requests", "Responses by path and status.", ["path", "status"], **named
        )
        self.seconds = Histogram(
            "finetune_request_seconds", "Seconds from request to response.", **named
        )
        examples = Counter("finetune_examples", "Predicted examples.", ["model"], **named)
        batches = Counter("finetune_batches", "Batches of examples.", ["model"], **named)
        self.waiting = Gauge(
            WAITING_REQUESTS, "Requests that wait for a batch.", ["model"], **named
        )
        for model in models:
            model.batcher.count = _counter(examples.labels(model.name), batches.labels(model.name))

    def add(self, path: str, status: int, seconds: float) -> None:
        """Enter a response (status 499: the client has gone)."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.observe(seconds)
        self._enter_waiting()

    def text(self) -> bytes:
        """Return all metrics."""
        self._enter_waiting()
        return prometheus_client.generate_latest(self.registry)

    def _enter_waiting(self) -> None:
        for model in self.models:
            self.waiting.labels(model.name).set(model.batcher.waiting)


def _counter(examples: Any, batches: Any) -> Callable[[int], None]:
    def count(number: int) -> None:
        batches.inc()
        examples.inc(number)

    return count


class Guard:
    """Middleware: request ids, limits of a request, metrics, the log, and unexpected errors."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, hosts: frozenset[str] | None, max_bytes: int
    ) -> None:
        self.app, self.metrics, self.hosts, self.max_bytes = app, metrics, hosts, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = id
        begin, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = id
            await send(message)

        try:
            if refusal := self._refusal(scope, headers):
                await error_response(scope, *refusal)(scope, receive, send_with_id)
            else:
                await self.app(scope, self._limited(scope, receive), send_with_id)
        except ClientDisconnect:
            status = CLIENT_GONE
        except Exception:
            log.exception("request %s failed", id)
            if not status:
                response = error_response(scope, 500, "internal error: see the log of the server.")
                await response(scope, receive, send_with_id)
        finally:
            gone = not status or scope["state"].get("gone", False)
            status, seconds = CLIENT_GONE if gone else status, time.perf_counter() - begin
            self.metrics.add(getattr(scope.get("route"), "path", OTHER), status, seconds)
            client, target = (scope.get("client") or ("-",))[0], scope["path"].encode()
            access.info(
                '%s "%s %s" %d %.1f ms %s',
                client,
                scope["method"],
                repr(target)[2:-1],
                status,
                1000 * seconds,
                id,
            )
        return None

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = re.sub(r":\d*$", "", headers.get("host", "")).lower()
        if self.hosts is not None and host not in self.hosts:
            return 400, "unknown name in the Host header: use the address that the server prints."
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "the Content-Type must be application/json."
            length = headers.get("content-length", "")
            if length.isdecimal() and int(length) > self.max_bytes:
                return 413, f"the body is over {self.max_bytes:,} bytes."
        return None

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.disconnect":
                scope["state"]["gone"] = True
            size += len(message.get("body", b""))
            if size > self.max_bytes:
                raise HTTPException(413, f"the body is over {self.max_bytes:,} bytes.")
            return message

        return limited


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return values as a JSON response."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return Response(
        text.encode("utf-8", "backslashreplace"), status, headers, media_type="application/json"
    )


def error_response(
    scope: Scope, status: int, problem: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as JSON."""
    content = {"error": problem, "request_id": scope["state"]["request_id"]}
    return json_response(content, status, headers)


async def _rows(request: Request, future: Future[list[Any]]) -> list[Any]:
    answers = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answers, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ClientDisconnect
        return answers.result()
    finally:
        gone.cancel()
        answers.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _policy(page: str) -> str:
    hashes = {}
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = hashlib.sha256(text.encode()).digest()
        hashes[tag] = f"'sha256-{base64.b64encode(digest).decode()}'"
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def run_server(app: FastAPI, models: Sequence[ServedModel], listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests under way."""
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    for number in SIGNALS:  # uvicorn raises a signal again after its stop
        signal.signal(number, lambda *_: None)
    for model in models:
        model.batcher.start()
    uvicorn.Server(config).run(sockets=[listener])
    for model in models:
        model.batcher.close()
