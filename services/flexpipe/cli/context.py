"""Where the command line finds a running FlexPipe: the environment, or the file that `flexpipe up` leaves.

The file lies in `$FLEXPIPE_HOME` (default `var/flexpipe`) and is readable by its owner alone: it holds the operator's
password on the bus.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import ValidationError

from flexpipe.bus.connection import Bus, connect
from flexpipe.bus.settings import BusSettings
from flexpipe.kernel.errors import Unavailable
from flexpipe.kernel.frozen import Frozen

FILE = "context.json"
OPERATOR = "operator"
CONNECT_LIMIT_S = 5.0


class Context(Frozen):
    """What `flexpipe up` says about itself."""

    bus_url: str
    user: str
    password: str
    router_url: str


def home() -> Path:
    """The folder of the running instance."""
    return Path(os.environ.get("FLEXPIPE_HOME", "var/flexpipe")).absolute()


def write_context(folder: Path, context: Context) -> None:
    """Leave the file, readable by its owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.touch(mode=0o600)
    path.write_text(context.model_dump_json(indent=2))


def read_context() -> Context | None:
    """The file's content, or None where nothing runs here."""
    try:
        return Context.model_validate_json((home() / FILE).read_text())
    except (OSError, ValidationError):
        return None


def bus_settings() -> BusSettings:
    """The operator's settings. Raises Unavailable, with what to do, where there are none."""
    if os.environ.get("FLEXPIPE_BUS_URL"):
        return BusSettings()
    context = read_context()
    if context is None:
        raise Unavailable(
            f"nothing runs in {home()}: start it with `make up` (or set FLEXPIPE_BUS_URL, _USER and _PASSWORD)"
        )
    return BusSettings.model_validate(
        {
            "url": context.bus_url,
            "user": context.user,
            "password": context.password,
            "connect_limit_s": CONNECT_LIMIT_S,
        }
    )


@asynccontextmanager
async def operator_bus() -> AsyncIterator[Bus]:
    """A connection as the operator. Raises Unavailable in one line."""
    async with connect(bus_settings(), service=OPERATOR, name=f"cli-{os.getpid()}") as bus:
        yield bus
