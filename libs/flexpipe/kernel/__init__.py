"""What every part stands on: machines and their effects, ids, errors. Knows nothing of GPUs, NATS or time."""
