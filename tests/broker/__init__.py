"""Tests on a real Kafka. `kafka.py` finds or starts one, `cluster.py` talks to it, `conftest.py` has both."""
