"""Where claims fit: never over-booked, scores bounded, policies as written."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpu import placement, reasons
from egpu.placement import Ask, NodeView, Room
from egpu.request import Request
from egpu.types import Card, CardShare, LabelMatch, Match, Selector, Spread

GIB = 1024**3


def card(uuid: str, *, gib: int = 16, model: str = "Test", health: str = "Healthy", tflops: str | None = "20") -> Card:
    figures = {"fp32": Decimal(tflops)} if tflops else {}
    return Card(uuid=uuid, model=model, memory=gib * GIB, health=health, tflops=figures)


def room(uuid: str, *, core: int = 100, gib: float = 16, of: int = 16, **about: str) -> Room:
    return Room(card=card(uuid, gib=of, **about), core=core, memory=int(gib * GIB), empty=core == 100 and gib == of)


def node(*rooms: Room, name: str = "node-a", ready: bool = True, **labels: str) -> NodeView:
    return NodeView(name=name, ready=ready, labels=labels, rooms=rooms)


def ask(
    core: int = 0, gib: float | None = None, *, count: int = 1, card: Spread = Spread.BINPACK, **more: object
) -> Ask:
    selector = more.pop("selector", Selector())
    assert isinstance(selector, Selector)
    memory = int(gib * GIB) if gib is not None else None
    return Ask(request=Request(core=core, memory=memory, count=count, **more), selector=selector, card=card)  # type: ignore[arg-type]


def model(name: str) -> Selector:
    return Selector(model=Match(any_of=(name,)))


ZONE_X = Selector(node_labels=(LabelMatch(key="zone", any_of=("x",)),))
NOT_ZONE_X = Selector(node_labels=(LabelMatch(key="zone", none_of=("x",)),))

FITS = {
    "an empty card": (node(room("a")), [ask(25, 4)], True),
    "exactly what is left": (node(room("a", core=25, gib=4)), [ask(25, 4)], True),
    "one byte too much": (node(room("a", core=25, gib=4)), [ask(25, 4 + 2**-30)], False),
    "one percent too much": (node(room("a", core=25, gib=4)), [ask(26, 4)], False),
    "memory alone on a card with compute booked": (node(room("a", core=1, gib=4)), [ask(0, 4)], True),
    "memory alone on a card whose compute is all booked": (node(room("a", core=0, gib=4)), [ask(0, 4)], False),
    "a whole card beside another slice": (node(room("a", core=100, gib=15)), [ask(100, 1)], False),
    "a whole card alone": (node(room("a")), [ask(100)], True),
    "core without memory takes its share of memory": (node(room("a", core=100, gib=3)), [ask(25)], False),
    "two cards of two": (node(room("a"), room("b")), [ask(100, count=2)], True),
    "two cards of one": (node(room("a")), [ask(50, 1, count=2)], False),
    "half the memory of each": (node(room("a", gib=8)), [ask(memory_percent=50)], True),
    "more than half the memory of each": (node(room("a", gib=8)), [ask(memory_percent=51)], False),
    "TFLOPS of a known model": (node(room("a", core=50)), [ask(0, 1, tflops=Decimal(10))], True),
    "TFLOPS rounded up": (node(room("a", core=50)), [ask(0, 1, tflops=Decimal("10.1"))], False),
    "TFLOPS of an unknown model": (
        node(Room(card=card("a", tflops=None), core=100, memory=GIB, empty=True)),
        [ask(0, 1, tflops=Decimal(1))],
        False,
    ),
    "an unhealthy card": (node(room("a", health="Unhealthy")), [ask(1, 1)], False),
    "an agent not ready": (node(room("a"), ready=False), [ask(1, 1)], False),
    "another model": (node(room("a", model="T4")), [ask(1, 1, selector=model("A100"))], False),
    "the model in other capitals": (node(room("a", model="Tesla T4")), [ask(1, 1, selector=model("tesla t4"))], True),
    "not that card": (node(room("a")), [ask(1, 1, selector=Selector(uuid=Match(none_of=("a",))))], False),
    "a node label": (node(room("a"), zone="x"), [ask(1, 1, selector=ZONE_X)], True),
    "a node label that is absent": (node(room("a")), [ask(1, 1, selector=ZONE_X)], False),
    "not that label, and it is absent": (node(room("a")), [ask(1, 1, selector=NOT_ZONE_X)], True),
    "two containers on one card": (node(room("a")), [ask(50, 8), ask(50, 8)], True),
    "two containers, together too much": (node(room("a")), [ask(50, 8), ask(50, 9)], False),
    "two containers on two cards": (node(room("a", core=50), room("b", core=50)), [ask(50, 1), ask(50, 1)], True),
    "the whole card is left to the one that needs it": (
        node(room("a"), room("b", core=50, gib=8)),
        [ask(10, 1, card=Spread.SPREAD), ask(100)],
        True,
    ),
    "a choice must be taken back": (
        node(room("a", core=60, gib=4), room("b", core=40, gib=12)),
        [ask(40, 4), ask(30, 11)],
        True,
    ),
    "a container that asks nothing": (node(), [], True),
}


@pytest.mark.parametrize(("where", "asks", "expected"), FITS.values(), ids=FITS)
def test_fits(where: NodeView, asks: list[Ask], expected: bool) -> None:  # noqa: FBT001
    assert placement.fits(where, asks) is expected


REASONS = {
    "no cards": (node(), [ask(1, 1)], reasons.NODE_NO_CARDS, "node-a: 0 cards, no elastic GPU"),
    "agent": (node(room("a"), ready=False), [ask(1, 1)], reasons.NODE_NOT_READY, None),
    "health": (node(room("a", health="Unhealthy")), [ask(1, 1)], reasons.NODE_UNHEALTHY, None),
    "selector": (
        node(room("a")),
        [ask(1, 1, selector=Selector(uuid=Match(any_of=("b",))))],
        reasons.NODE_SELECTOR,
        None,
    ),
    "memory": (
        node(room("a", gib=2.1), room("b", gib=1), room("c", gib=0)),
        [ask(0, 4)],
        reasons.NODE_MEMORY,
        "node-a: 3 cards, largest free 2.1 GiB of 4 GiB asked",
    ),
    "core": (
        node(room("a", core=20)),
        [ask(25, 4)],
        reasons.NODE_CORE,
        "node-a: 1 card, largest free 20 % of 25 % asked",
    ),
    "count": (
        node(room("a"), room("b", core=0)),
        [ask(50, 1, count=2)],
        reasons.NODE_COUNT,
        "node-a: 2 cards, 1 with room of 2 asked",
    ),
    "TFLOPS": (
        node(Room(card=card("a", tflops=None), core=100, memory=GIB, empty=True)),
        [ask(tflops=Decimal(1))],
        reasons.NODE_TFLOPS,
        None,
    ),
    "together": (node(room("a")), [ask(60, 1), ask(60, 1)], reasons.NODE_TOGETHER, None),
}


@pytest.mark.parametrize(("where", "asks", "reason", "figure"), REASONS.values(), ids=REASONS)
def test_reasons(where: NodeView, asks: list[Ask], reason: str, figure: str | None) -> None:
    misfit = placement.explain(where, asks)
    assert misfit.reason == reason
    assert figure is None or misfit.figure == figure


def test_at_most_ten_reasons() -> None:
    assert len(reasons.NODE_REASONS) <= 10


def test_the_nearest_five_nodes_and_how_many_more() -> None:
    misfits = [placement.explain(node(room("a", gib=gib), name=f"n{gib}"), [ask(0, 16)]) for gib in range(8)]
    text = placement.nearest(misfits)
    assert [part.split(":")[0] for part in text.split("; ")] == ["n7", "n6", "n5", "n4", "n3", "and 3 more"]


POLICIES = {
    (Spread.BINPACK, Spread.BINPACK): "fuller-1",
    (Spread.BINPACK, Spread.SPREAD): "fuller-0",
    (Spread.SPREAD, Spread.BINPACK): "emptier-1",
    (Spread.SPREAD, Spread.SPREAD): "emptier-0",
}


@pytest.mark.parametrize(("node_policy", "card_policy"), POLICIES)
def test_two_tier_policy(node_policy: Spread, card_policy: Spread) -> None:
    """Row 109: four combinations, four placements on one fixture."""
    nodes = {
        "fuller": node(room("fuller-0", core=80, gib=12), room("fuller-1", core=40, gib=8), name="fuller"),
        "emptier": node(room("emptier-0"), room("emptier-1", core=80, gib=12), name="emptier"),
    }
    wish = ask(10, 1, card=card_policy)
    chosen = placement.best_node(nodes.values(), wish, node_policy)
    assert chosen is not None
    placed = placement.place(nodes[chosen], [wish])
    assert placed is not None
    assert placed[0][0].uuid == POLICIES[node_policy, card_policy]
    usages = {name: placement.usage_after(view, placement.place(view, [wish]) or ()) for name, view in nodes.items()}
    assert placement.scores(usages, node_policy)[chosen] == 10


def test_spread_keeps_nodes_even() -> None:
    """Row 42: 12 pods on 3 equal nodes differ by at most one."""
    nodes = {name: node(room(f"{name}-0"), room(f"{name}-1"), name=name) for name in "abc"}
    counts = dict.fromkeys(nodes, 0)
    for _ in range(12):
        chosen = placement.best_node(nodes.values(), ask(10, 1), Spread.SPREAD)
        assert chosen is not None
        nodes[chosen] = booked(nodes[chosen], placement.place(nodes[chosen], [ask(10, 1)]) or ())
        counts[chosen] += 1
    assert max(counts.values()) - min(counts.values()) <= 1


def booked(view: NodeView, placed: tuple[tuple[CardShare, ...], ...]) -> NodeView:
    rooms = {room.card.uuid: room for room in view.rooms}
    for share in (share for shares in placed for share in shares):
        rooms[share.uuid] = rooms[share.uuid].less(share)
    return NodeView(name=view.name, ready=view.ready, labels=view.labels, rooms=tuple(rooms.values()))


rooms = st.builds(
    lambda uuid, core, free, of: room(uuid, core=core, gib=min(free, of), of=of),
    st.uuids().map(str),
    st.integers(0, 100),
    st.integers(0, 80),
    st.sampled_from([16, 24, 80]),
)
views = st.lists(rooms, min_size=0, max_size=8).map(lambda found: node(*found))
asks = st.lists(
    st.builds(
        lambda core, gib, count, policy: ask(core, gib, count=count, card=policy),
        st.integers(0, 100),
        st.integers(1, 80),
        st.integers(1, 3),
        st.sampled_from(Spread),
    ),
    max_size=4,
)


@given(views, asks)
def test_never_over_booked(view: NodeView, wishes: list[Ask]) -> None:
    placed = placement.place(view, wishes)
    if placed is None:
        assert placement.explain(view, wishes).reason in reasons.NODE_REASONS
        return
    before = {room.card.uuid: room for room in view.rooms}
    for left in booked(view, placed).rooms:
        assert left.core >= 0
        assert left.memory >= 0
    for wish, shares in zip(wishes, placed, strict=True):
        assert len({share.uuid for share in shares}) == wish.request.count
        for share in shares:
            assert share == wish.request.share_of(before[share.uuid].card)
            assert share.core < 100 or sum(s.uuid == share.uuid for found in placed for s in found) == 1


@given(views, asks)
def test_what_asks_nothing_costs_nothing(view: NodeView, wishes: list[Ask]) -> None:
    assert placement.place(view, []) == ()
    assert booked(view, ()) == view
    alone = placement.place(view, wishes)
    assert placement.place(view, wishes) == alone


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.floats(0, 1), max_size=20), st.sampled_from(Spread))
def test_scores_are_bounded_and_the_best_has_the_highest(usages: dict[str, float], policy: Spread) -> None:
    scores = placement.scores(usages, policy)
    assert scores.keys() == usages.keys()
    assert all(0 <= score <= placement.SCORE_MOST for score in scores.values())
    if usages:
        best = (max if policy is Spread.BINPACK else min)(usages, key=lambda name: usages[name])
        assert scores[best] == placement.SCORE_MOST
