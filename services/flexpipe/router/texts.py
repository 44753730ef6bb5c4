"""Tokenizers, one a model folder, read off the event loop and kept; and who serves which model name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from flexpipe.routing.effects import ServedModel
from flexpipe.routing.openai.errors import model_not_found, overloaded
from flexpipe.routing.text.tokenizer import ModelFolderError, TextTokenizer

LOAD_LIMIT_S: Final = 60.0
"""A tokenizer of a quarter million words loads in seconds; a request waits for it no longer than this."""

LONG_CHARS: Final = 8192
"""Above this, encoding takes more than a millisecond or two and goes to a thread."""

Made = TypeVar("Made")


class Texts:
    """The models known now. `known` is set by the machine's `ServeModels`."""

    def __init__(self) -> None:
        self._models: tuple[ServedModel, ...] = ()
        self._loading: dict[str, asyncio.Task[TextTokenizer]] = {}

    def serve(self, models: tuple[ServedModel, ...]) -> None:
        """Take the newest list; tokenizers of new models begin to load, those of models gone are dropped."""
        self._models = models
        paths = {model.model.path for model in models}
        for gone in [path for path in self._loading if path not in paths]:
            self._loading.pop(gone).cancel()
        for model in models:
            if model.serves:
                self._load(model.model.path)

    @property
    def served(self) -> tuple[str, ...]:
        """Names that a client may ask for now."""
        return tuple(sorted({model.model.name for model in self._models if model.serves}))

    def find(self, name: str) -> ServedModel:
        """The deployment of a model's (or a deployment's) name; one that serves first. Raises RequestRefused (404)."""
        named = [each for each in self._models if name in (each.model.name, each.deployment)]
        if not named:
            raise model_not_found(name, self.served)
        return min(named, key=lambda each: (not each.serves, each.deployment))

    async def tokenizer(self, model: ServedModel) -> TextTokenizer:
        """Its tokenizer. Raises RequestRefused (503) where it cannot be had."""
        task = self._load(model.model.path)
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                return await asyncio.shield(task)
        except ModelFolderError as error:
            self._loading.pop(model.model.path, None)  # the folder may be mended: look again
            raise overloaded(
                f"the tokenizer of {model.model.name} cannot be read: {error}"
            ) from error
        except TimeoutError as error:
            raise overloaded(f"the tokenizer of {model.model.name} is still loading") from error

    def close(self) -> None:
        """Drop what still loads."""
        for task in self._loading.values():
            task.cancel()

    def _load(self, path: str) -> asyncio.Task[TextTokenizer]:
        task = self._loading.get(path)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(TextTokenizer.load, Path(path)))
            task.add_done_callback(_looked_at)
            self._loading[path] = task
        return task


async def encoded(make: Callable[[], Made], chars: int) -> Made:
    """Run an encoding, in a thread where it is long."""
    return await asyncio.to_thread(make) if chars > LONG_CHARS else make()


def now() -> datetime:
    """What a chat template that prints the date is told."""
    return datetime.now(UTC)


def _looked_at(task: asyncio.Task[TextTokenizer]) -> None:
    """A failed load is told to whoever asks for it, and to nobody else."""
    if not task.cancelled():
        task.exception()
