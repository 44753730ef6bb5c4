"""Gear modes, one file each, and the words for them.

`notation` reads what people type, `modes` lists every mode, `layout` makes plans and says what fits. Called by the
command line (and later by the planner); never places anything by itself and never talks to anybody.
"""
