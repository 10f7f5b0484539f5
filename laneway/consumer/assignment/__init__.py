"""Partitions that come and go: who owns which, and how its ledger is opened and brought up to date."""
