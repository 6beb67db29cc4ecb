"""What can go wrong, seen from outside."""


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says what, where, and what to do instead."""


class NoNodeAccess(ClusterError):
    """The cluster belongs to someone else: its processes and nodes' files are out of reach."""
