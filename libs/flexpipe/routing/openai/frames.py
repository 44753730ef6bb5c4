"""Writes one streamed response as server-sent events, in the order the protocol has.

Called by the router, one writer a stream. Role first and once, text, one finish, one usage chunk
(with empty choices, only if asked for), `[DONE]` last; however many plans the text came from.
Nothing is written before there is something to say, so that until then the status is still open
and a failed request may be tried again elsewhere.
"""

from flexpipe.routing.openai.errors import ErrorBody
from flexpipe.routing.openai.responses import (
    Answer,
    ChatChunkChoice,
    Endpoint,
    Response,
    TextChoice,
    UsageBody,
    Written,
    finish_choice,
    role_choice,
    text_choice,
)
from flexpipe.routing.stream import FinishReason, Usage

CONTENT_TYPE = "text/event-stream; charset=utf-8"

# A comment: keeps idle connections open, is no content and counts as none.
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


OTHER_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""Raw in JSON they are allowed and in event streams they end no line, yet many clients split lines at them."""


def event(body: Written | ErrorBody) -> bytes:
    """One `data:` frame. JSON has no raw line ends, so one line is enough, and `OTHER_LINE_ENDS` go escaped."""
    written = body.json_bytes() if isinstance(body, Written) else body.model_dump_json().encode()
    for end, escaped in OTHER_LINE_ENDS.items():
        written = written.replace(end.encode(), escaped.encode())
    return b"data: " + written + b"\n\n"


class FrameWriter:
    """The frames of one stream.

    `committed` is true once a byte was written: from then on the status is 200 and a failure can
    only be an error frame. `closed` is true after the last frame; later calls are mistakes.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        include_usage: bool,
        prompt_to_tell: tuple[int, ...] | None = None,
    ) -> None:
        """`prompt_to_tell` are the prompt's ids where the client wants ids told (`return_token_ids`)."""
        self._answer = answer
        self._include_usage = include_usage
        self._tells_ids = prompt_to_tell is not None
        self._prompt_to_tell = prompt_to_tell
        self._untold: tuple[int, ...] = ()
        self._opened = False
        self.committed = False
        self.closed = False

    def text(self, delta: str, tokens: tuple[int, ...] = ()) -> bytes:
        """The frames for a piece of text; none for no text, whose ids are told with the next piece."""
        self._untold += tokens
        if not delta:
            return b""
        return self._open() + self._chunk(text_choice(self._answer, delta))

    def finish(self, reason: FinishReason, usage: Usage) -> bytes:
        """The last frames of a stream that went well."""
        frames = self._open() + self._chunk(finish_choice(self._answer, reason))
        if self._include_usage:
            frames += event(self._response((), UsageBody.of(usage)))
        self.closed = True
        return frames + DONE

    def fail(self, body: ErrorBody) -> bytes:
        """The last frames of a stream that broke after it was committed: no finish, an error."""
        self._check_open()
        self.committed = self.closed = True
        return event(body) + DONE

    def ping(self) -> bytes:
        """A comment frame. It commits the status."""
        self._check_open()
        self.committed = True
        return PING

    def _open(self) -> bytes:
        self._check_open()
        self.committed = True
        if self._opened or self._answer.endpoint is Endpoint.COMPLETION:
            return b""
        self._opened = True
        untold, self._untold = self._untold, ()  # the role says nothing, so no ids are its own
        frame = self._chunk(role_choice())
        self._untold = untold
        return frame

    def _chunk(self, choice: ChatChunkChoice | TextChoice) -> bytes:
        if not self._tells_ids:
            return event(self._response((choice,), None))
        told, self._untold = self._untold, ()
        prompt, self._prompt_to_tell = self._prompt_to_tell, None
        response = self._response((choice.model_copy(update={"token_ids": told}),), None)
        if prompt is not None:
            response = response.model_copy(update={"prompt_token_ids": prompt})
        return event(response)

    def _response(
        self, choices: tuple[ChatChunkChoice | TextChoice, ...], usage: UsageBody | None
    ) -> Response:
        chat = self._answer.endpoint is Endpoint.CHAT
        response = Response(
            id=self._answer.id,
            object="chat.completion.chunk" if chat else "text_completion",
            created=self._answer.created,
            model=self._answer.model,
            choices=choices,
        )
        if not self._include_usage:
            return response
        return response.model_copy(update={"usage": usage})

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError(f"stream {self._answer.id} is closed; nothing may follow [DONE]")
