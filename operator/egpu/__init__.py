"""The shared core of Elastic GPU: what operator, agent and command line agree on."""

__version__ = "0.1.0"
