"""The router: client connections, running sequences, the ledger. Its decisions are `flexpipe.routing`'s."""
