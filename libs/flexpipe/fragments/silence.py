"""Who is alive, judged by silence. Called by the monitor's machine; times in seconds since the epoch.

Silence counts against a node only while the judge's own echo through the same server returns. An agent that is silent
while its worker beats, or while its engines answer routers, makes the node `unobserved`: plans stay, nothing new is
placed. After an outage, of the bus or of the judge, all clocks start anew.
"""

from __future__ import annotations

from typing import Final, Literal

SILENCE_S: Final = 1.75
"""Three missed beats of half a second, and a quarter for the way. With the quarter between two looks a loss is known
within two seconds."""

EVIDENCE_S: Final = 1.0
"""A worker's beat, or tokens from engines of the node, that are younger keep it from being lost."""

ECHO_FRESH_S: Final = 1.25
"""An echo is sent every half second and may take as long; below the silence limit, so that an outage is known as one
before it could cost a node."""

PAUSE_S: Final = 1.0
"""Signs of life are fed every quarter of a second. A longer gap means that this process stood still: what it did not
hear in that time proves nothing."""

Verdict = Literal["observed", "unobserved", "lost"]


def is_silent(now_s: float, heard_s: float) -> bool:
    """Whether it was silent for too long."""
    return now_s - heard_s >= SILENCE_S


def of_silent(now_s: float, worker_s: float | None, answered_s: float | None) -> Verdict:
    """What a node with a silent agent is, by the last signs of its worker and of its engines."""
    signs = [sign for sign in (worker_s, answered_s) if sign is not None]
    return "unobserved" if signs and now_s - max(signs) <= EVIDENCE_S else "lost"


def is_outage(now_s: float, fed_s: float | None, echo_s: float | None) -> bool:
    """Whether nothing can be said of anybody: the echo is old, or we stood still since `fed_s`."""
    stood_still = fed_s is not None and now_s - fed_s > PAUSE_S
    return stood_still or echo_s is None or now_s - echo_s > ECHO_FRESH_S
