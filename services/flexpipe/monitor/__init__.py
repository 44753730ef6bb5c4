"""The monitor: owns the fleet tree and its blocks; `fragments` decides."""
