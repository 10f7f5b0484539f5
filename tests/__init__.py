"""Laneway's tests: they mirror the parts of the package, plus `broker/` on a real Kafka."""
