"""Providers: what kind of cards a node has, and how the driver lets a container at them."""
