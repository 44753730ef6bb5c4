"""Where the command line finds a running FlexPipe: the environment, or the folder of an embedded instance.

An embedded instance (`flexpipe up`, the demo) lies in `$FLEXPIPE_HOME`, default `var/flexpipe`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flexpipe.bus.connection import Bus, connect
from flexpipe.bus.server import settings_from
from flexpipe.bus.settings import BusSettings
from flexpipe.cli.variables import settings_of
from flexpipe.kernel.errors import InvalidInput, Unavailable

OPERATOR = "operator"
CONNECT_LIMIT_S = 3.0


def home() -> Path:
    """The folder of the embedded instance."""
    return Path(os.environ.get("FLEXPIPE_HOME", "var/flexpipe")).absolute()


def bus_settings() -> BusSettings:
    """The operator's settings. Raises InvalidInput, or Unavailable with what to do where there are none."""
    if os.environ.get("FLEXPIPE_BUS_URL"):
        return settings_of(BusSettings)
    try:
        settings = settings_from(home() / "bus", OPERATOR)
    except InvalidInput as error:
        raise Unavailable(
            f"nothing runs in {home()}: start it with `make up`, or set FLEXPIPE_BUS_URL, FLEXPIPE_BUS_USER and "
            "FLEXPIPE_BUS_PASSWORD"
        ) from error
    return settings.model_copy(update={"connect_limit_s": CONNECT_LIMIT_S})


@asynccontextmanager
async def operator_bus() -> AsyncIterator[Bus]:
    """A connection as the operator. Raises Unavailable in one line."""
    async with connect(bus_settings(), service=OPERATOR, name=f"cli-{os.getpid()}") as bus:
        yield bus
