"""The worker's brain: which ranks run on one node, under which fence, and what is told about them."""
