"""The planner: proposes gears; `planning` decides."""
