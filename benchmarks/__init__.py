"""Laneway measured beside its peers, on a real broker: `python -m benchmarks --help`, docs/benchmarks.md."""
