"""The error of secure aggregation."""


class ProtocolError(ArithmeticError):
    """A message of the protocol is not as it must be; no secret is revealed, and the round fails."""
