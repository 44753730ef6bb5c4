"""What is free, in which shapes: an agent's samples, the fleet tree, blocks. The brains of agent and monitor."""
