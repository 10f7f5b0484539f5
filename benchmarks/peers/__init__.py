"""Each peer in a process of its own; the environment that it needs is pinned beside it."""
