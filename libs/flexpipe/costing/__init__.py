"""What a change costs and whether it is worth it: the brain of the estimator."""
