"""Secure aggregation (Bonawitz et al. 2017): the server learns the sum of vectors, and no single one.

`participant` is the side of a client and `collector` that of the server; the rest are pure functions.
docs/decisions/0014-secure-aggregation.md explains the protocol and what it does not prevent.
"""
