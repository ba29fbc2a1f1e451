"""Trained models over HTTP: a queue for each model, whose waiting requests make a batch."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, cast

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, BeforeValidator, Field, StrictInt, ValidationError

import finetune
from finetune.deployment.onnx_model import OnnxModel, is_export
from finetune.tasks import model_folder
from finetune.types import Example, Prediction, UserError

MOST_BYTES = 1_000_000
"""Largest request body in bytes."""
MOST_WAITING = 512
"""Largest number of waiting requests of a model."""
_INPUT_KEYS = (("text",), ("text", "text_pair"), ("words",))  # keys of an example that is no row


class ExampleBody(BaseModel, extra="allow"):
    """An example of a request; ``ServedModel`` refuses keys that its model does not read."""

    id: str | StrictInt | None = None
    text: str | None = None
    text_pair: str | None = None
    words: list[str] | None = None
    context: str | None = None
    question: str | None = None
    choices: list[str] | None = None


_Rows = list[
    Annotated[ExampleBody, BeforeValidator(lambda row: {"text": row} if type(row) is str else row)]
]


class Body(ExampleBody):
    """A request: one example, or several ones, which may be texts."""

    examples: _Rows | None = Field(None, min_length=1)


class Waiting(NamedTuple):
    """A request that waits for its predictions."""

    examples: Sequence[Example]
    predictions: asyncio.Future[Sequence[Prediction]]


class ServedModel:
    """A model of a run, a model folder, a hub id or an export, with the queue of its requests."""

    def __init__(self, name: str, folder: str, batch_size: int = 64) -> None:
        self.name, self.batch_size = name, batch_size
        self.waiting, self.thread = deque[Waiting](), ThreadPoolExecutor(1)
        self.worker: asyncio.Task[None] | None = None
        if is_export(folder):
            model = OnnxModel(folder)
            task, labels = model.task, list(model.decoder.labels)
            self.reader: Any = model
            self.predict: Any = model.predict_examples
        else:
            source = model_folder(folder)  # a wrong name is told before torch is imported
            from finetune.inference.predictor import Predictor  # exports are served without torch

            predictor = Predictor(source)
            task, labels = predictor.task.name, list(predictor.labels)
            self.reader, self.predict = predictor.task.state, predictor.predict
        if not self.reader.input_keys:
            raise UserError(f"{folder}: its inputs are more than texts and words: use predict.")
        texts = (key for key in self.reader.input_keys if key not in ("words", "choices"))
        self.sample: dict[str, Any] = dict.fromkeys(texts, "A text.")
        if "choices" in self.reader.input_keys:
            self.sample["choices"] = ["yes", "no"]
        keys = self.reader.input_keys
        self.about = {"name": name, "task": task, "labels": labels, "keys": keys}

    async def answer(self, request: Request) -> Response:
        """Predict an example or several ones, together with those of other requests."""
        body = await self._body(request)
        rows: Sequence[ExampleBody] = body.examples or [body]
        if body.examples and body.model_fields_set != {"examples"}:
            raise HTTPException(422, "give an example, or examples, not both.")
        try:
            examples = [self._example(f"example {n}", row) for n, row in enumerate(rows)]
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        if len(self.waiting) >= MOST_WAITING:
            raise HTTPException(503, "too many requests wait.", {"Retry-After": "1"})
        one = Waiting(examples, asyncio.get_running_loop().create_future())
        self.waiting.append(one)
        if self.worker is None or self.worker.done():
            self.worker = asyncio.create_task(self.work())
        ids = (index if row.id is None else row.id for index, row in enumerate(rows))
        answers = zip(await one.predictions, ids, strict=True)
        predictions = [prediction.to_dict() | {"id": id} for prediction, id in answers]
        return JSONResponse({"model": self.name, "predictions": predictions})

    async def _body(self, request: Request) -> Body:
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > MOST_BYTES:
                raise HTTPException(413, f"the body has over {MOST_BYTES:,} bytes.")
        try:
            return Body.model_validate_json(bytes(content))
        except ValidationError as error:
            problem = error.errors(include_input=False)[0]
            where = " ".join(map(str, problem["loc"])) or "the body"
            raise HTTPException(422, f"{where}: {problem['msg']}.") from None

    def _example(self, where: str, row: ExampleBody) -> Example:
        values, reader = row.model_dump(exclude_none=True, exclude={"id"}), self.reader
        is_row = "choices" in reader.input_keys
        legal = tuple(values) in _INPUT_KEYS or is_row
        if not legal or not values.keys() <= {*reader.input_keys}:
            keys = (" or " if "words" in reader.input_keys else ", ").join(reader.input_keys)
            raise UserError(
                f"{where} has {', '.join(values) or 'nothing'}: this model reads {keys} and an "
                'optional id; send several examples as {"examples": [...]}.'
            )
        fields: list[Any] = list(values.values())
        inputs = values if is_row else fields[0] if len(fields) == 1 else fields
        return cast("Example", reader.example(0, inputs, where))

    async def work(self) -> None:
        """Predict the waiting requests, as many as fit into a batch, then the next ones."""
        while self.waiting:
            batch, room = list[Waiting](), self.batch_size
            while self.waiting and (not batch or len(self.waiting[0].examples) <= room):
                batch.append(self.waiting.popleft())
                room -= len(batch[-1].examples)
            await self._predict(batch)

    async def _predict(self, batch: Sequence[Waiting]) -> None:
        together = [example for one in batch for example in one.examples]
        examples = [replace(example, id=number) for number, example in enumerate(together)]
        try:
            loop = asyncio.get_running_loop()
            predictions = iter(await loop.run_in_executor(self.thread, self.predict, examples))
        except Exception as error:
            refused = HTTPException(422, str(error)) if isinstance(error, UserError) else error
            for one in batch:
                if len(batch) == 1:
                    one.predictions.set_exception(refused)
                else:  # the other requests are not to blame
                    await self._predict([one])
            return
        for one in batch:
            one.predictions.set_result([next(predictions) for _ in one.examples])


def make_app(models: Sequence[ServedModel], hosts: Sequence[str] = ("*",)) -> FastAPI:
    """Make the application, whose ``/predict`` asks the first model, for these ``Host`` headers."""
    app = FastAPI(title="finetune", version=finetune.__version__)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    for path, model in [("", models[0]), *((f"/models/{m.name}", m) for m in models)]:
        example = {"schema": {"type": "object"}, "example": model.sample}
        body = {"requestBody": {"content": {"application/json": example}}}
        app.post(f"{path}/predict", openapi_extra=body)(model.answer)

    @app.get("/health")
    async def health() -> list[dict[str, Any]]:
        """Describe the models, with the number of their waiting requests."""
        return [{**model.about, "waiting": len(model.waiting)} for model in models]

    return app


def run_server(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the requests under way."""
    config = uvicorn.Config(app, ws="none", timeout_graceful_shutdown=30)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises a signal again after its stop
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
