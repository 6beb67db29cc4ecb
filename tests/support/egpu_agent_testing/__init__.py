"""A node without a runtime, for tests of the agent alone: kubelet's sockets and checkpoint, cards from a file."""

from egpu_agent_testing.bench import CARD, OTHER_CARD, Bench, card, condition, pod_uid
from egpu_agent_testing.kubelet import KubeletDouble

__all__ = ["CARD", "OTHER_CARD", "Bench", "KubeletDouble", "card", "condition", "pod_uid"]
