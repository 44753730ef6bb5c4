"""The worker, one a node: starts, gates, watches and ends engine ranks as the executor orders."""
