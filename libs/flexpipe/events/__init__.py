"""What is said on the bus: one file a noun, and `catalog` with every message, stream and bucket on one page."""
