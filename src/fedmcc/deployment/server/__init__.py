"""The server of a federation, from `fedmcc server start` to the last round."""
