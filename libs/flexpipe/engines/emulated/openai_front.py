"""The emulated engine's own OpenAI endpoints: what the router's relay path talks to.

Fields that only a real model could honour (tools, response_format, logprobs …) are taken and
ignored; ``n`` choices are ``n`` sequences, all the same since the oracle knows no chance.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from flexpipe.engines.emulated.asgi import (
    bounded_body,
    call_when_gone,
    close_events,
    open_events,
    send_event,
)
from flexpipe.engines.emulated.scheduler import Scheduler
from flexpipe.engines.emulated.sequences import Limits, Sequence
from flexpipe.engines.emulated.text import TextCodec, TextStream
from flexpipe.engines.emulated.wire import DEFAULT_MAX_NEW_TOKENS, Unsupported, read_body

MAX_CHOICES = 8


class StreamOptions(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    include_usage: bool = False


class _Common(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    model: str = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    ignore_eos: bool = False
    priority: int | None = None
    rid: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def limits(self) -> Limits:
        longest = self.max_completion_tokens or self.max_tokens or DEFAULT_MAX_NEW_TOKENS
        return Limits(longest, 0, frozenset(), self.ignore_eos)


class TextPart(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    role: str
    content: str | list[TextPart] | None = None

    def flat(self) -> dict[str, object]:
        """Role and text; parts that are not text (images) leave a mark."""
        content = self.content
        if isinstance(content, list):
            content = "".join(p.text if p.type == "text" else f"<{p.type}>" for p in content)
        return {"role": self.role, "content": content or ""}


class ChatRequest(_Common):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]


class CompletionRequest(_Common):
    prompt: str | list[int]


@dataclass(frozen=True, slots=True)
class Shape:
    """How one endpoint's answers differ from the other's."""

    whole: Literal["chat.completion", "text_completion"]
    chunk: Literal["chat.completion.chunk", "text_completion"]

    @property
    def chat(self) -> bool:
        return self.whole == "chat.completion"


CHAT = Shape("chat.completion", "chat.completion.chunk")
COMPLETION = Shape("text_completion", "text_completion")


class Answer:
    """One OpenAI request in progress: its choices, and the texts they become."""

    def __init__(
        self, scheduler: Scheduler, codec: TextCodec, shape: Shape, model: str, wanted: _Common
    ) -> None:
        self._scheduler = scheduler
        self._codec = codec
        self._shape = shape
        self._model = model
        self._wanted = wanted
        self._id = wanted.rid or uuid.uuid4().hex
        self._created = int(time.time())
        self.sequences: list[Sequence] = []

    def submit(self, prompt: list[int]) -> None:
        """Raises RequestRefused. A queue that is full shows as a finished first sequence."""
        try:
            for index in range(self._wanted.n):
                rid = self._id if self._wanted.n == 1 else f"{self._id}-{index}"
                limits, priority = self._wanted.limits, self._wanted.priority or 0
                self.sequences.append(self._scheduler.submit(rid, prompt, limits, priority, None))
        except ValueError:
            self.drop()
            raise

    def drop(self) -> None:
        for sequence in self.sequences:
            self._scheduler.drop(sequence)

    async def deltas(self, index: int) -> AsyncIterator[tuple[str, dict[str, object] | None]]:
        """Pieces of one choice's text; the last comes with how it ended."""
        sequence = self.sequences[index]
        stream = TextStream(self._codec, self._wanted.stops)
        taken = 0
        while True:
            await sequence.changed.wait()
            sequence.changed.clear()
            finish = sequence.finish
            text = stream.push(sequence.output[taken:])
            taken = len(sequence.output)
            if stream.matched is not None:
                self._scheduler.drop(sequence)
                yield text, {"finish_reason": "stop", "matched_stop": stream.matched}
                return
            if finish is not None:
                matched = dict(finish.fields).get("matched")
                ending = {"finish_reason": finish.type, "matched_stop": matched}
                yield text + stream.flush(), ending
                return
            if text:
                yield text, None

    def usage(self) -> dict[str, object]:
        read = len(self.sequences[0].prompt)
        written = sum(len(sequence.output) for sequence in self.sequences)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        }

    async def whole(self) -> dict[str, object]:
        choices = []
        for index in range(len(self.sequences)):
            text = ""
            ending: dict[str, object] | None = None
            async for piece, end in self.deltas(index):
                text += piece
                ending = end
            said = (
                {"message": {"role": "assistant", "content": text, "reasoning_content": None}}
                if self._shape.chat
                else {"text": text}
            )
            choices.append({"index": index, **said, "logprobs": None, **(ending or {})})
        return {**self._head(self._shape.whole), "choices": choices, "usage": self.usage()}

    async def chunks(self) -> AsyncIterator[dict[str, object]]:
        """The events of a stream, choice after choice.

        As in SGLang a chat ends with an empty delta, a completion with its last piece of text.
        """
        for index in range(len(self.sequences)):
            if self._shape.chat:
                yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None)
            async for piece, ending in self.deltas(index):
                if not self._shape.chat:
                    yield {**self._chunk(index, {"text": piece}, ending), "usage": None}
                    continue
                if piece:
                    yield self._chunk(index, {"delta": {"content": piece}}, None)
                if ending is not None:
                    yield self._chunk(index, {"delta": {}}, ending)
        options = self._wanted.stream_options
        if options is not None and options.include_usage:
            yield {**self._head(self._shape.chunk), "choices": [], "usage": self.usage()}

    def _chunk(
        self, index: int, said: dict[str, object], ending: dict[str, object] | None
    ) -> dict[str, object]:
        close = ending or {"finish_reason": None, "matched_stop": None}
        choice = {"index": index, **said, "logprobs": None, **close}
        return {**self._head(self._shape.chunk), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


class OpenAiFront:
    """Handlers of ``/v1/models``, ``/v1/chat/completions`` and ``/v1/completions``."""

    def __init__(self, model_path: Path, model_name: str, scheduler: Scheduler) -> None:
        self._model_path = model_path
        self._model_name = model_name
        self._scheduler = scheduler
        self._codec: TextCodec | None = None

    async def models(self, _: Request) -> Response:
        card = {
            "id": self._model_name,
            "object": "model",
            "created": 0,
            "owned_by": "sglang",
            "root": self._model_name,
            "max_model_len": self._scheduler.context_tokens,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def chat(self, request: Request) -> Response:
        wanted = read_body(ChatRequest, await bounded_body(request))
        prompt = self._text().chat_prompt([message.flat() for message in wanted.messages])
        return await self._answer(request, CHAT, wanted, prompt)

    async def completions(self, request: Request) -> Response:
        wanted = read_body(CompletionRequest, await bounded_body(request))
        given = wanted.prompt
        prompt = self._text().encode(given) if isinstance(given, str) else given
        return await self._answer(request, COMPLETION, wanted, prompt)

    def _text(self) -> TextCodec:
        if self._codec is None:
            try:
                self._codec = TextCodec(self._model_path)
            except ValueError as error:
                raise Unsupported(str(error)) from None
        return self._codec

    async def _answer(
        self, request: Request, shape: Shape, wanted: _Common, prompt: list[int]
    ) -> Response:
        model = wanted.model or self._model_name
        answer = Answer(self._scheduler, self._text(), shape, model, wanted)
        answer.submit(prompt)
        first = answer.sequences[0].finish
        if first is not None and first.status_code is not None:
            answer.drop()
            code = first.status_code
            body = {"object": "error", "message": first.message, "type": str(code), "code": code}
            return JSONResponse(body, status_code=code)
        if wanted.stream:
            return AnswerStream(answer)
        watch = asyncio.create_task(call_when_gone(request.receive, answer.drop))
        try:
            return JSONResponse(await answer.whole())
        finally:
            watch.cancel()
            answer.drop()


class AnswerStream(Response):
    """Server-sent events of an OpenAI stream."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await open_events(send)
        watch = asyncio.create_task(call_when_gone(receive, self._answer.drop))
        try:
            async for chunk in self._answer.chunks():
                await send_event(send, chunk)
            await close_events(send)
        finally:
            watch.cancel()
            self._answer.drop()
