"""The estimator's brain: what a change of gear brings and costs, the gate it must pass, and the order that follows.

`pricing` reckons, `guards` is the gate, `desk` what is remembered of a deployment, `estimator` the machine over them.
"""

from flexpipe.costing.estimator import Estimator

__all__ = ["Estimator"]
