"""What a worker was told: the keys of `laneway.toml` (`model`), and where their values come from (`load`)."""
