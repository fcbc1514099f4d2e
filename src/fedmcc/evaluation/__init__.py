"""Scores of a network, with and without labels, computed from its features and assignments as arrays."""
