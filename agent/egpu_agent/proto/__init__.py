"""The parts of kubelet's gRPC interfaces that the agent speaks; see ``generate.py``."""
