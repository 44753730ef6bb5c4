"""Reads a request body, or says in one line what is wrong with it.

Called by the router's HTTP front with the raw bytes. Every refusal is a 400 in OpenAI's shape that
names the field by its path, what it expects and what it got.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flexpipe.routing.openai.errors import RequestRefused, invalid
from flexpipe.routing.openai.requests import Body, ChatRequest, CompletionRequest

_SHOWN_CHARS_MAX = 60

_KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string": "a string",
    "list": "an array",
    "tuple": "an array",
    "dict": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "dataclass": "an object",
}

# pydantic's error type -> what the value has to be, from the error's context.
_BOUNDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "too_long": "at most {max_length} items long",
    "too_short": "at least {min_length} items long",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "at least {min_length} characters long",
    "finite_number": "a finite number",
}

_Read = TypeVar("_Read", bound=Body)


def read_chat(raw: bytes) -> ChatRequest:
    """The body of `/v1/chat/completions`. Raises `RequestRefused` (400)."""
    return _read(ChatRequest, raw)


def read_completion(raw: bytes) -> CompletionRequest:
    """The body of `/v1/completions`. Raises `RequestRefused` (400)."""
    return _read(CompletionRequest, raw)


def _read(model: type[_Read], raw: bytes) -> _Read:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False), raw, model) from error


def _refusal(errors: Sequence[ErrorDetails], raw: bytes, model: type[Body]) -> RequestRefused:
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return invalid(f"the body is not JSON: {reason}", param=None, code="invalid_json")
    whole = json.loads(raw)
    located = [(_path(whole, error), error) for error in errors]
    deepest = max(len(path) for path, _ in located)
    path = next(path for path, _ in located if len(path) == deepest)
    here = [error for other, error in located if other == path]
    return _describe(path, here, model)


def _path(whole: object, error: ErrorDetails) -> tuple[str | int, ...]:
    """Where in the body the fault is: pydantic's location without its names for union branches."""
    path: list[str | int] = []
    place = whole
    for step in error["loc"]:
        match place, step:
            case dict(), str() if step in place:
                place = place[step]
            case list(), int() if step < len(place):
                place = place[step]
            case _:
                continue
        path.append(step)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    if error["type"] == "at_odds":
        path.append(error["ctx"]["param"])
    return tuple(path)


def _describe(
    path: Sequence[str | int], errors: Sequence[ErrorDetails], model: type[Body]
) -> RequestRefused:
    param = ".".join(map(str, path)) or None
    name = param or "the body"
    first = errors[0]
    match first["type"]:
        case "extra_forbidden":
            fix = _nearest(str(path[-1]), model) if len(path) == 1 else "remove it"
            return invalid(f"unknown field {name}: {fix}", param=param, code="unknown_parameter")
        case "missing":
            return invalid(
                f"{name}: missing, it is required",
                param=param,
                code="missing_required_parameter",
            )
        case "at_odds":
            return invalid(f"{name}: {first['msg']}", param=param, code="invalid_value")
    wanted = dict.fromkeys(_wanted(error) for error in errors)
    mistyped = all(_kind(error) for error in errors)
    return invalid(
        f"{name}: must be {' or '.join(wanted)}, got {_shown(first['input'])}",
        param=param,
        code="invalid_type" if mistyped else "invalid_value",
    )


def _nearest(field: str, model: type[Body]) -> str:
    near = difflib.get_close_matches(field, model.model_fields, n=1)
    return f"did you mean {near[0]}?" if near else "remove it"


def _kind(error: ErrorDetails) -> str | None:
    base, _, rest = error["type"].rpartition("_")
    if error["type"] == "int_from_float":
        return _KINDS["int"]
    return _KINDS.get(base) if rest in ("type", "parsing") else None


def _wanted(error: ErrorDetails) -> str:
    context: Mapping[str, object] = error.get("ctx", {})
    if kind := _kind(error):
        return kind
    if bound := _BOUNDS.get(error["type"]):
        return bound.format(**{name: _whole(number) for name, number in context.items()})
    match error["type"]:
        case "literal_error":
            return f"{context['expected']}"
        case "union_tag_invalid":
            return f"an object whose type is one of {context['expected_tags']}"
        case "union_tag_not_found":
            return "an object with a type"
    return error["msg"]


def _whole(number: object) -> object:
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
