"""Scores of a branch, with labels and without; they work on its features and assignments as arrays."""
