"""Offsets, cases, dead letters and retries, seen from outside the group; changes nothing."""
