"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

Raised by `reading` and `prompts`, caught once in the router's HTTP front. Messages are one line
and name the field, the value and the fix; they never carry headers or keys.
"""

from pydantic import BaseModel, ConfigDict

from flexpipe.kernel.errors import FlexPipeError


class ErrorDetail(BaseModel):
    """The inner object; `param` is the path of the field at fault, as in `messages.0.content`."""

    model_config = ConfigDict(frozen=True)

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The whole body of a 4xx or 5xx answer, or of an error frame in a stream."""

    model_config = ConfigDict(frozen=True)

    error: ErrorDetail


class RequestRefused(FlexPipeError):
    """A request gets no completion. `status` is the HTTP status, if none was sent yet."""

    def __init__(self, status: int, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(error=self.detail)


def invalid(message: str, *, param: str | None, code: str) -> RequestRefused:
    """400: the client can mend it."""
    return _refused(400, message, "invalid_request_error", param, code)


def context_length_exceeded(
    prompt_tokens: int, max_tokens: int | None, context: int, *, param: str
) -> RequestRefused:
    """400 with the numbers. All in tokens."""
    wanted = "" if max_tokens is None else f" and asks for {max_tokens} more"
    fix = "shorten the prompt" if max_tokens is None else "shorten the prompt or ask for fewer"
    return invalid(
        f"{param}: the prompt has {prompt_tokens} tokens{wanted}, "
        f"but this model's context holds {context}: {fix}",
        param=param,
        code="context_length_exceeded",
    )


def model_not_found(name: str, known: tuple[str, ...]) -> RequestRefused:
    """404: no deployment of that name."""
    served = ", ".join(sorted(known)) or "none yet"
    return _refused(
        404,
        f"model: {name!r} is not served here; served: {served}",
        "invalid_request_error",
        "model",
        "model_not_found",
    )


def engine_failed(reason: str) -> RequestRefused:
    """502: the engines could not do it, and no other could take over."""
    return _refused(502, reason, "server_error", None, "engine_failed")


def overloaded(reason: str) -> RequestRefused:
    """503, to be sent with `Retry-After`: nothing can serve it now."""
    return _refused(503, reason, "server_error", None, "overloaded")


def _refused(status: int, message: str, kind: str, param: str | None, code: str) -> RequestRefused:
    detail = ErrorDetail(message=message, type=kind, param=param, code=code)
    return RequestRefused(status, detail)
