"""The OpenAPI schema of requests and answers, with an example for each model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finetune.deployment.serving.models import ServedModel

_TEXT = {"type": "string"}
_EXAMPLE = {
    "type": "object",
    "properties": {
        "text": _TEXT,
        "text_pair": {**_TEXT, "description": "The second text, for models of pairs."},
        "words": {
            "type": "array",
            "items": _TEXT,
            "description": "Words in place of a text, for models of words.",
        },
        "context": {**_TEXT, "description": "A text to choose by, for multiple choice."},
        "question": {**_TEXT, "description": "The question, for multiple choice."},
        "choices": {"type": "array", "items": _TEXT, "description": "Its choices, two or more."},
        "id": {"oneOf": [_TEXT, {"type": "integer"}], "description": "Repeated in the row."},
    },
    "additionalProperties": False,
}
_REQUEST = {
    "oneOf": [
        _EXAMPLE,
        {
            "type": "object",
            "properties": {"examples": {"type": "array", "items": {"oneOf": [_TEXT, _EXAMPLE]}}},
            "required": ["examples"],
            "additionalProperties": False,
        },
    ]
}
_ANSWER = {
    "type": "object",
    "properties": {
        "model": _TEXT,
        "predictions": {
            "type": "array",
            "items": {"type": "object"},
            "description": "A row for each example, as `finetune predict` writes it.",
        },
        "request_id": _TEXT,
    },
    "required": ["model", "predictions", "request_id"],
}
_ERROR = {
    "type": "object",
    "properties": {"error": _TEXT, "request_id": _TEXT},
    "required": ["error", "request_id"],
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": {"application/json": {"schema": _ERROR}}}
    for status, meaning in {
        400: "The body is not JSON, or the Host header names another host.",
        404: "The model does not exist.",
        408: "The body did not arrive in time.",
        413: "The body, the number of examples or an example exceeds a limit.",
        415: "The Content-Type is not application/json.",
        422: "The model cannot read the examples.",
        500: "An internal error; the log of the server has the details under the request id.",
        503: "Too many requests wait: try again after the seconds in Retry-After.",
    }.items()
}


def predict_schema(models: Sequence[ServedModel]) -> dict[str, Any]:
    """Return request body and answer of the routes that predict."""
    examples = {model.name: {"value": _sample(model)} for model in models}
    several = [_sample(models[0]) | {"id": "first"}, _sample(models[0])]
    examples["several"] = {"value": {"examples": several}}
    content = {"application/json": {"schema": _REQUEST, "examples": examples}}
    answer = {"description": "Predictions.", "content": {"application/json": {"schema": _ANSWER}}}
    return {"requestBody": {"required": True, "content": content}, "responses": {"200": answer}}


def _sample(model: ServedModel) -> dict[str, Any]:
    if "words" in model.keys:
        return {"text": "Maria Keller flew from Lisbon to Oslo."}
    if "choices" in model.keys:
        return {"question": "Where does a fish live?", "choices": ["in water", "on the moon"]}
    if model.engine.pairs:
        return {"text": "A man is cooking dinner.", "text_pair": "Somebody prepares food."}
    return {"text": "The staff were kind and the room was spotless."}
