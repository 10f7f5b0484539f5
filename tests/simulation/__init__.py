"""The deterministic simulation: whole histories of several workers in one thread, from a seed."""
