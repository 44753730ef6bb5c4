"""The executor: orders in, shifts out. Owns the transaction and the route entry; `transitions` decides."""
