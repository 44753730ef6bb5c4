"""The router's brain: filter, score and pick; the ledger; the hand-over; text and protocol. Pure."""
