"""Settings from the environment, and the one line that a wrong variable gets. Called where commands and services begin.

It never shows a value that pydantic did not name as the wrong one: the others may be passwords.
"""

from __future__ import annotations

import logging
import os
import re
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from flexpipe.bus.settings import BusSettings
from flexpipe.kernel.errors import InvalidInput

S = TypeVar("S", bound=BaseSettings)

LOG_LEVEL = "FLEXPIPE_LOG_LEVEL"


def settings_of(cls: type[S]) -> S:
    """Settings of that class from the environment. Raises InvalidInput naming the variable."""
    try:
        return cls()
    except ValidationError as error:
        # A service's settings hold those of the bus, which have a prefix of their own.
        of = BusSettings if error.title == BusSettings.__name__ else cls
        raise _first_fault(of, error) from error
    except SettingsError as error:
        found = re.search(r'field "(\w+)"', str(error))
        name = _variable(cls, (found[1] if found else "",))
        raise InvalidInput(name, os.environ.get(name), "write it as JSON") from error


def log_level() -> str:
    """How much services log. Raises InvalidInput for a level that there is not."""
    level = os.environ.get(LOG_LEVEL, "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise InvalidInput(LOG_LEVEL, level, "use DEBUG, INFO, WARNING or ERROR")
    return level


def _first_fault(cls: type[BaseSettings], error: ValidationError) -> InvalidInput:
    fault = error.errors()[0]
    name = _variable(cls, fault["loc"])
    if fault["type"] == "missing":
        return InvalidInput(name, None, "set it")
    return InvalidInput(name, fault["input"], fault["msg"])


def _variable(cls: type[BaseSettings], where: tuple[int | str, ...]) -> str:
    """The variable of a field; behind it, after dots, the place within its JSON."""
    field, *inside = map(str, where)
    return ".".join((f"{cls.model_config['env_prefix']}{field.upper()}", *inside))
