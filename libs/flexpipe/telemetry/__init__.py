"""How services are seen from outside: JSON logs, metrics, traces, health. Decides nothing."""
