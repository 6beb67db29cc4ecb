"""Isolations: how a container is held to its slice."""
