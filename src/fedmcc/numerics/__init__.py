"""Numerical code without networks: random streams, state dicts, k-means, normalised cuts, loss gradients."""
