"""An operator in the test's own process on a real API server, with nodes and an agent made up by the test."""

from operator_stand.objects import CARD_MEMORY, GIB, claim, gpu_class, pod
from operator_stand.stand import Stand, Station

__all__ = ["CARD_MEMORY", "GIB", "Stand", "Station", "claim", "gpu_class", "pod"]
