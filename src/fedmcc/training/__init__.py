"""The training loop, and what it needs to fit batches into memory and to measure time."""
