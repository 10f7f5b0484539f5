"""What Laneway would do with a live topic, found by doing it in memory: `laneway preview`."""
