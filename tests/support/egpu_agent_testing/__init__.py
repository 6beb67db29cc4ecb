"""A double of kubelet at its two sockets and its checkpoint file, for tests of the agent alone."""

from egpu_agent_testing.kubelet import KubeletDouble

__all__ = ["KubeletDouble"]
