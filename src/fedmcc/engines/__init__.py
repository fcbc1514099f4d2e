"""Engines carry tasks to clients and their updates back."""
