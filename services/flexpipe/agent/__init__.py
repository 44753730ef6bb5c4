"""The agent: says what devices its node has, and that it is there; `fragments` decides."""
