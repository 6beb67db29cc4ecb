"""The agent of one node: cards in, slices into containers, and nothing left behind."""
