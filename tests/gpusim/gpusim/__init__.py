"""A simulated NVIDIA driver: libraries, a daemon a node, faults on demand and the ground truth."""
