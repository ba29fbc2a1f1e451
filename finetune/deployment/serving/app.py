"""The HTTP interface of trained models: routes, limits, request ids and errors as JSON."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import finetune
from finetune.deployment.serving.batcher import QueueFull
from finetune.deployment.serving.metrics import OTHER, TYPE, Metrics
from finetune.deployment.serving.models import ServedModel, TooLarge, item_size
from finetune.deployment.serving.schema import ERRORS, predict_schema
from finetune.types import UserError

BODY_SECONDS = 30
"""Seconds in which the body of a request must arrive."""
CLIENT_GONE = 499
"""Status in the metrics for a client that closed the connection before its response."""
REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
"""Legal values of X-Request-ID; others are replaced."""

log = logging.getLogger("finetune.serving")
access = logging.getLogger("finetune.serving.access")
"""Logs each answer, without its texts."""


def make_app(
    models: Sequence[ServedModel], *, hosts: frozenset[str] | None = None, workers: int = 1
) -> FastAPI:
    """Return the application.

    Its ``state`` has ``draining``, which the server sets when it is about to stop, and ``metrics``.

    Args:
        models: The models; ``/predict`` asks the first one. The caller closes them.
        hosts: Host names that requests may name, to refuse DNS rebinding; None allows all.
        workers: Number of processes that will run the application, after a fork.
    """
    app = FastAPI(
        title="finetune",
        summary="Predictions of trained text encoders.",
        docs_url=None,  # its pages load scripts
        redoc_url=None,
    )
    by_name = {model.name: model for model in models}
    app.state.draining = False
    descriptions = [model.describe() for model in models]
    page = (Path(__file__).parent / "page.html").read_text("utf-8")
    policy = {"Content-Security-Policy": _policy(page), "X-Content-Type-Options": "nosniff"}

    schema = predict_schema(models)

    @app.post("/predict", openapi_extra=schema, responses=ERRORS)
    async def predict(request: Request) -> Response:
        """Predict one or several examples with the first model."""
        return await _answer(request, models[0])

    @app.post("/models/{name}/predict", openapi_extra=schema, responses=ERRORS)
    async def predict_with(request: Request, name: str) -> Response:
        """Predict one or several examples with a model."""
        if name not in by_name:
            raise HTTPException(404, f"no such model: there are {', '.join(by_name)}.")
        return await _answer(request, by_name[name])

    @app.get("/models")
    async def list_models() -> Response:
        """List the version of the toolkit, and the models with their inputs and labels."""
        return json_response({"finetune": finetune.__version__, "models": descriptions})

    @app.get("/health")
    async def health() -> Response:
        """Return status 200 while every model answers, else 503."""
        alive = all(model.batcher.alive for model in models)
        return json_response({"status": "ok" if alive else "failed"}, 200 if alive else 503)

    @app.get("/live")
    async def live() -> Response:
        """Return status 200: the process answers."""
        return json_response({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """Return status 200 while requests are welcome, 503 if a model failed or before a stop."""
        if app.state.draining:
            return json_response({"status": "draining"}, 503)
        return await health()

    @app.get("/metrics", response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        """Return counts in the text format of Prometheus."""
        return Response(app.state.metrics.text(models), media_type=TYPE)

    @app.get("/", include_in_schema=False)
    async def read_page() -> Response:
        """Return a page to try the models."""
        return HTMLResponse(page, headers=policy)

    @app.exception_handler(HTTPException)
    async def error(request: Request, problem: Any) -> Response:
        return error_response(request.scope, problem.status_code, problem.detail, problem.headers)

    paths = {route.path for route in app.routes if isinstance(route, Route)}
    app.state.metrics = Metrics(sorted(paths), workers)
    app.add_middleware(Guard, metrics=app.state.metrics, hosts=hosts)
    return app


class Guard:
    """Middleware: request ids, the check of the Host header, metrics, and unexpected errors."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, hosts: frozenset[str] | None) -> None:
        self.app, self.metrics, self.hosts = app, metrics, hosts

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
                answer = MutableHeaders(scope=message)
                answer["X-Request-ID"] = id
                if scope["app"].state.draining:  # the next request goes to another server
                    answer["Connection"] = "close"
            await send(message)

        try:
            if self.hosts is not None and _host(headers.get("host", "")) not in self.hosts:
                problem = "unknown name in the Host header: use the address that the server prints."
                await error_response(scope, 400, problem)(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = CLIENT_GONE
        except Exception:
            log.exception("request %s failed", id)
            if not status:
                response = error_response(scope, 500, "internal error: see the log of the server.")
                await response(scope, receive, send_with_id)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", OTHER)
            status, seconds = status or CLIENT_GONE, time.perf_counter() - begin
            self.metrics.count(path, status, seconds)
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


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return values as a JSON response; an unpaired surrogate stays the escape that it was."""
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


async def _answer(request: Request, model: ServedModel) -> Response:
    """Answer a request for predictions."""
    if model.batcher.waiting >= model.limits.max_waiting:
        raise _busy()
    body = await _json_body(request, model.limits.max_bytes)
    try:
        items = model.items(body)
        future = model.batcher.submit(items, [item_size(item) for item in items])
        rows = await _rows(request, future)
    except TooLarge as error:
        raise HTTPException(413, str(error)) from None
    except UserError as error:
        raise HTTPException(422, str(error)) from None
    except QueueFull:
        raise _busy() from None
    return json_response(
        {"model": model.name, "predictions": rows, "request_id": request.state.request_id}
    )


async def _json_body(request: Request, max_bytes: int) -> Any:
    """Read the body of a request, at most ``max_bytes`` of it, as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "the Content-Type must be application/json.")
    too_large = HTTPException(413, f"the body is over {max_bytes:,} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        problem = f"the body did not arrive within {BODY_SECONDS} seconds."
        raise HTTPException(408, problem, {"Connection": "close"}) from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        problem = "the body is not JSON in UTF-8"
        if isinstance(error, json.JSONDecodeError):
            problem += f": {error.msg} at character {error.pos}"
        raise HTTPException(400, f"{problem}.") from None


async def _rows(request: Request, future: Future[list[Any]]) -> list[Any]:
    """Wait for the answers; withdraw the request if the client closes the connection."""
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


def _busy() -> HTTPException:
    return HTTPException(503, "too many requests wait: try again later.", {"Retry-After": "1"})


def _host(header: str) -> str:
    """Return the name in a Host header, without the port."""
    return re.sub(r":\d*$", "", header).lower()


def _policy(page: str) -> str:
    """Return a content security policy that allows the page's own script and style, and no more."""
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
