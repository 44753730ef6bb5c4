"""Hypothesis strategies for every frozen value, read off its fields: any message can be drawn without a line of code.

Values whose fields must fit each other (plans, gears) are drawn from the builders.
"""

from __future__ import annotations

import types
from enum import Enum
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt, MaxLen, MinLen
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flexpipe.model.gear import EMPTY_GEAR, Gear
from flexpipe.model.plan import Plan
from flexpipe.testing.builders import a_gear, a_plan

Model = TypeVar("Model", bound=BaseModel)

LARGEST = 10**9
ITEMS = 2
"""Of a drawn tuple or mapping: enough to see that there may be several."""

WHOLE: dict[type, st.SearchStrategy[Any]] = {
    Plan: st.just(a_plan("node-a/cpu0")),
    Gear: st.sampled_from([EMPTY_GEAR, a_gear(a_plan("node-a/cpu0"))]),
}


def example_of(cls: type[Model]) -> st.SearchStrategy[Model]:
    """Values of a model, valid by its fields' types and bounds."""
    if cls in WHOLE:
        return WHOLE[cls]
    return st.builds(cls, **{name: _field(info) for name, info in cls.model_fields.items()})


def _field(info: FieldInfo) -> st.SearchStrategy[Any]:
    return _of(info.annotation, tuple(info.metadata))


def _of(kind: Any, marks: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner = (
            mark.metadata if isinstance(mark, FieldInfo) else (mark,) for mark in arguments[1:]
        )
        return _of(arguments[0], (*chain.from_iterable(inner), *marks))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*(_of(each, marks) for each in arguments))
    if origin is tuple:
        return _tuple(arguments, marks)
    if origin is dict:
        return st.dictionaries(_of(arguments[0]), _of(arguments[1]), max_size=ITEMS)
    if isinstance(kind, type):
        return _plain(kind, marks)
    raise TypeError(f"no example of {kind!r}: teach flexpipe.testing.examples")


def _plain(kind: type, marks: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if issubclass(kind, BaseModel):
        return example_of(kind)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is int:
        low, high = _bounds(marks, step=1)
        return st.integers(int(low), int(high))
    if kind is float:
        low, high = _bounds(marks, step=1e-3)
        return st.floats(low, high, allow_nan=False, allow_infinity=False)
    if kind is str:
        return _text(marks)
    raise TypeError(f"no example of {kind!r}: teach flexpipe.testing.examples")


def _tuple(arguments: tuple[Any, ...], marks: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        least = _size(marks, MinLen, 0)
        return st.lists(_of(arguments[0]), min_size=least, max_size=least + ITEMS).map(tuple)
    return st.tuples(*(_of(each) for each in arguments))


def _text(marks: tuple[Any, ...]) -> st.SearchStrategy[str]:
    for mark in marks:
        pattern = getattr(mark, "pattern", None)
        if isinstance(pattern, str):
            return st.from_regex(pattern, fullmatch=True)
    least = _size(marks, MinLen, 0)
    return st.text(min_size=least, max_size=max(least, min(_size(marks, MaxLen, 20), 20)))


def _size(marks: tuple[Any, ...], kind: type, otherwise: int) -> int:
    name = "min_length" if kind is MinLen else "max_length"
    for mark in marks:
        if isinstance(mark, kind | Len):
            value = getattr(mark, name)
            return otherwise if value is None else int(value)
    return otherwise


def _bounds(marks: tuple[Any, ...], step: float) -> tuple[float, float]:
    low, high = -float(LARGEST), float(LARGEST)
    for mark in marks:
        match mark:
            case Ge(ge=bound):
                low = float(str(bound))
            case Gt(gt=bound):
                low = float(str(bound)) + step
            case Le(le=bound):
                high = float(str(bound))
            case Lt(lt=bound):
                high = float(str(bound)) - step
    return low, high
