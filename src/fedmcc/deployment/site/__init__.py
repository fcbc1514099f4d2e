"""A site of a federation, from `fedmcc site start` to its replies."""
