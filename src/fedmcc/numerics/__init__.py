"""Arithmetic without a network: random streams, state dicts, k-means, the normalised cut, loss gradients."""
