"""What the operator knows of the cluster: caches with the few indexes its decisions need.

Caches are hints: what must not happen twice is guarded by the API server's compare-and-swap, and what is about to be
taken as gone is asked for directly.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from egpu import conditions, names, placement, reasons, resources
from egpu.informer import Informer, Parsed
from egpu.kube import Kube
from egpu.types import Claim, GPUClass, Node, NodeCards, Pod, Slice

MANAGED: Final = f"{names.LABEL_MANAGED}=true"

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Parsed)
Listener = Callable[[str, T | None, T | None], None]


class Index(Generic[K]):
    """Keys of objects by something in them."""

    def __init__(self) -> None:
        self._keys: dict[K, set[str]] = {}

    def move(self, key: str, *, before: Iterable[K], after: Iterable[K]) -> None:
        """Takes an object's key from its former places to its present ones."""
        old, new = set(before), set(after)
        for place in old - new:
            held = self._keys.get(place, set())
            held.discard(key)
            if not held:
                self._keys.pop(place, None)
        for place in new - old:
            self._keys.setdefault(place, set()).add(key)

    def keys(self, place: K) -> tuple[str, ...]:
        """The keys of the objects at a place, sorted."""
        return tuple(sorted(self._keys.get(place, ())))


class World:
    """The caches. Claims and classes are kept current by kopf's watch, the others by their own."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self._listeners: dict[str, list[Callable[..., None]]] = {}
        self.classes: Informer[GPUClass] = self._informer("classes", resources.CLASSES, GPUClass.parse)
        self.claims: Informer[Claim] = self._informer("claims", resources.CLAIMS, Claim.parse)
        self.slices: Informer[Slice] = self._informer("slices", resources.SLICES, Slice.parse)
        self.node_cards: Informer[NodeCards] = self._informer("node_cards", resources.NODE_CARDS, NodeCards.parse)
        self.nodes: Informer[Node] = self._informer("nodes", resources.NODES, Node.parse)
        self.pods: Informer[Pod] = self._informer("pods", resources.PODS, Pod.parse, labels=MANAGED)
        self._slice_of_claim: Index[str] = Index()
        self._slice_promised: Index[str] = Index()
        self._slices_of_pod: Index[str] = Index()
        self._slices_of_node: Index[str] = Index()
        self._claims_of_class: Index[str] = Index()
        self._claims_for_slice: Index[str] = Index()
        self._pods_of_claim: Index[str] = Index()
        self._booked_on: Index[str] = Index()
        self._views: dict[str, placement.NodeView] = {}
        self.on_slice(self._index_slice)
        self.on_claim(self._index_claim)
        self.on_pod(self._index_pod)
        self.on_node_cards(self._index_node_cards)
        self.on_node(lambda key, _before, _after: self._forget_view(key))

    @property
    def watched(self) -> tuple[Informer[Slice] | Informer[NodeCards] | Informer[Node] | Informer[Pod], ...]:
        """The caches with a watch of their own."""
        return self.slices, self.node_cards, self.nodes, self.pods

    def on_class(self, listener: Listener[GPUClass]) -> None:
        """Calls ``listener(key, before, after)`` for each change of a class."""
        self._listen("classes", listener)

    def on_claim(self, listener: Listener[Claim]) -> None:
        """As :meth:`on_class`, for claims."""
        self._listen("claims", listener)

    def on_slice(self, listener: Listener[Slice]) -> None:
        """As :meth:`on_class`, for slices."""
        self._listen("slices", listener)

    def on_node_cards(self, listener: Listener[NodeCards]) -> None:
        """As :meth:`on_class`, for a node's cards and bookings."""
        self._listen("node_cards", listener)

    def on_node(self, listener: Listener[Node]) -> None:
        """As :meth:`on_class`, for nodes."""
        self._listen("nodes", listener)

    def on_pod(self, listener: Listener[Pod]) -> None:
        """As :meth:`on_class`, for pods with a claim."""
        self._listen("pods", listener)

    def default_class(self) -> GPUClass | None:
        """The class of claims that name none: the newest of those marked, as for StorageClass."""
        marked = [c for c in self.classes.values() if c.is_default and not c.metadata.deleting]
        return max(marked, key=lambda c: (c.metadata.creation_timestamp, c.metadata.name), default=None)

    def slice_of(self, claim: Claim) -> Slice | None:
        """The slice whose claimRef carries the claim's UID; of several, the one the claim's status names."""
        found = [s for name in self._slice_of_claim.keys(claim.metadata.uid) if (s := self.slices.get(name))]
        named = [s for s in found if s.metadata.name == claim.status.egpu_name]
        return next(iter(named or found), None)

    def promised_to(self, claim: Claim) -> Slice | None:
        """A slice an admin has promised to a claim of this name."""
        return next((s for k in self._slice_promised.keys(claim.metadata.key) if (s := self.slices.get(k))), None)

    def slices_of_pod(self, uid: str) -> tuple[str, ...]:
        """Names of the slices whose consumer is the pod."""
        return self._slices_of_pod.keys(uid)

    def slices_of_node(self, node: str) -> tuple[str, ...]:
        """Names of the slices on a node."""
        return self._slices_of_node.keys(node)

    def claims_of_class(self, name: str) -> tuple[str, ...]:
        """Keys of the claims that name a class; ``""`` for those that name none."""
        return self._claims_of_class.keys(name)

    def claims_for_slice(self, name: str) -> tuple[str, ...]:
        """Keys of the claims that name a slice, in spec or status."""
        return self._claims_for_slice.keys(name)

    def pods_of_claim(self, key: str) -> tuple[str, ...]:
        """Keys of the pods that name a claim."""
        return self._pods_of_claim.keys(key)

    def booked_on(self, slice_name: str) -> tuple[str, ...]:
        """Names of the nodes where a slice has bookings; more than one only while a lost race is being cleaned up."""
        return self._booked_on.keys(slice_name)

    def agent_address(self, node: str) -> str:
        """Where a node's agent answers, or ""."""
        held = self.node_cards.get(node)
        return held.status.agent_address if held else ""

    def view(self, node: str) -> placement.NodeView | None:
        """A node's free room, or None for a node without ElasticGPUNode."""
        held = self._views.get(node)
        if held is None and (cards := self.node_cards.get(node)) is not None:
            held = self._views[node] = placement.view(cards, labels=self._labels(node), ready=self._ready(cards))
        return held

    def views(self, *, open_only: bool = False) -> list[placement.NodeView]:
        """All nodes' free room; with ``open_only`` of those that take claims without a pod's tolerations."""
        found = [cards.metadata.name for cards in self.node_cards.values()]
        if open_only:
            found = [name for name in found if (node := self.nodes.get(name)) is not None and node.open]
        return [view for name in found if (view := self.view(name)) is not None]

    def _labels(self, node: str) -> dict[str, str]:
        found = self.nodes.get(node)
        return found.metadata.labels if found else {}

    def _ready(self, cards: NodeCards) -> bool:
        known = self.nodes.get(cards.metadata.name) is not None
        return known and conditions.holds(cards.status.conditions, reasons.READY)

    def _informer(
        self, name: str, resource: resources.Resource, parse: Callable[..., T], *, labels: str | None = None
    ) -> Informer[T]:
        def changed(key: str, before: T | None, after: T | None) -> None:
            for listener in self._listeners.get(name, ()):
                listener(key, before, after)

        return Informer(self.kube, resource, parse=parse, on_change=changed, labels=labels)

    def _listen(self, name: str, listener: Callable[..., None]) -> None:
        self._listeners.setdefault(name, []).append(listener)

    def _index_slice(self, key: str, before: Slice | None, after: Slice | None) -> None:
        for index, places in (
            (self._slice_of_claim, _claim_uid),
            (self._slice_promised, _promise),
            (self._slices_of_pod, _pod_uid),
            (self._slices_of_node, _node),
        ):
            index.move(key, before=places(before), after=places(after))

    def _index_claim(self, key: str, before: Claim | None, after: Claim | None) -> None:
        self._claims_of_class.move(key, before=_claim_class(before), after=_claim_class(after))
        self._claims_for_slice.move(key, before=_claim_slices(before), after=_claim_slices(after))

    def _index_pod(self, key: str, before: Pod | None, after: Pod | None) -> None:
        self._pods_of_claim.move(key, before=_pod_claims(before), after=_pod_claims(after))

    def _index_node_cards(self, key: str, before: NodeCards | None, after: NodeCards | None) -> None:
        self._forget_view(key)
        self._booked_on.move(key, before=_booked_slices(before), after=_booked_slices(after))

    def _forget_view(self, node: str) -> None:
        self._views.pop(node, None)


def _claim_uid(value: Slice | None) -> tuple[str, ...]:
    return (value.spec.claim_ref.uid,) if value and value.spec.claim_ref and value.spec.claim_ref.uid else ()


def _promise(value: Slice | None) -> tuple[str, ...]:
    ref = value.spec.claim_ref if value else None
    return (f"{ref.namespace}/{ref.name}",) if ref and not ref.uid else ()


def _pod_uid(value: Slice | None) -> tuple[str, ...]:
    return (value.spec.consumer.pod_uid,) if value and value.spec.consumer else ()


def _node(value: Slice | None) -> tuple[str, ...]:
    return (value.spec.node_name,) if value else ()


def _claim_class(value: Claim | None) -> tuple[str, ...]:
    return (value.spec.egpu_class_name or "",) if value else ()


def _claim_slices(value: Claim | None) -> set[str]:
    return {name for name in (value.spec.egpu_name, value.status.egpu_name) if name} if value else set()


def _pod_claims(value: Pod | None) -> set[str]:
    return {f"{value.metadata.namespace}/{name}" for name in value.claims.values()} if value else set()


def _booked_slices(value: NodeCards | None) -> set[str]:
    return {name for card in value.spec.bookings.values() for name in card.slices} if value else set()
