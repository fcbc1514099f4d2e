"""Real federations as their operators see them: certificates and keys, Flower's programs, a proxy, a status.

Nothing here knows of training; Flower is reached through its programs alone.
"""
