"""Which gears a fleet allows and what each would deliver: the brain of the planner."""
