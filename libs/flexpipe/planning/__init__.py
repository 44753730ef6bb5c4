"""Which gears a fleet allows and what each would deliver: the brain of the planner.

`planner` is the machine. `books` mirrors the buckets, `demand` sums what routers say, `ground` says which blocks are
free, `layouts` lays plans over them, `mixing` puts plans together into gears, `ranking` orders those, `proposal` does
all of it once for one deployment and `together` for several, `baseline` keeps the gear of the escape hatch resolved.
Nothing here orders anything.
"""

from flexpipe.planning.planner import WATCHES, Planner

__all__ = ["WATCHES", "Planner"]
