"""`flexpipe`, the command line: what people type. Owns nothing; what it prints comes from buckets and the event log."""
