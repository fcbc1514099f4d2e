"""The training loop, and how a batch fits into memory and time."""
