"""A page and a JSON API for a complete run: clusters of new images, names and merges (`launch.serve`)."""
