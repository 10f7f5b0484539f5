"""Where handlers run: which pool of threads, or which event loop, and how batches are put together."""
