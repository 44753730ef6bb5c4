"""The estimator: prices proposals and orders or declines; `costing` decides."""
