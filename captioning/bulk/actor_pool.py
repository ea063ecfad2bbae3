"""The actors of a cluster: asked for where a machine has room, and replaced where they are lost."""

import time
from collections import Counter
from typing import Any, Callable, Optional

from captioning.bulk.cluster import SHARDS_AT_ONCE, Cluster, Machine
from captioning.bulk.request import Request
from captioning.bulk.shards import Part
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.progress import say

TRIES = 3  # of an actor to begin on a machine, and of a shard to get on
LOOK_S = 2  # between two looks at which machines there are
PATIENCE_S = 60  # before it is said what is waited for


class Hand:
    """An actor, and the shards that it has, by the stream in which their captions come."""

    def __init__(self, actor: Any, machine: Machine, loading: Any):
        self.actor, self.machine, self.loading = actor, machine, loading
        self.at_once = 0  # until the captioner is loaded
        self.alone = False  # with a shard that may be the end of it
        self.lost = False
        self.asked_for = time.monotonic()
        self.parts: dict[Any, Part] = {}

    def free(self) -> bool:
        return not (self.lost or self.alone) and len(self.parts) < self.at_once


class Crew:
    """kind: the class of the actors; load: makes their captioner."""

    def __init__(self, cluster: Cluster, kind: type, load: Callable[[], Any]):
        self.cluster, self.kind, self.load = cluster, kind, load
        self.hands: list[Hand] = []
        self.report: Optional[str] = None
        self._failed: Counter[str] = Counter()  # by machine, those that did not begin, in a row
        self._reason = ""
        self._looked = self._worked = 0.0
        self._waits = False

    def tend(self, request: Request, most: int) -> None:
        """Ask for actors where there is room, but for no more than `most`. Raises UserError."""
        now = time.monotonic()
        if any(hand.at_once for hand in self.hands):
            self._worked, self._waits = now, False
        elif not self._worked:
            self._worked = now
        elif now - self._worked > PATIENCE_S and not self._waits:
            self._waits = True
            kind = "GPU" if self.cluster.device.type == "cuda" else "CPU"
            say(f"waiting for a machine with a free {kind}, and for the captioner to be loaded")
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        machines = self.cluster.machines()
        able = [machine for machine in machines if self._failed[machine.id] < TRIES]
        works = any(hand.at_once and not hand.lost for hand in self.hands)
        if machines and not able and not works:
            raise UserError(f"no machine of the cluster can start a captioner: {self._reason}")
        for machine in able:
            here = sum(hand.machine.id == machine.id for hand in self.hands)
            # One that waits for its place in vain does not keep another machine from its own.
            count = sum(
                not hand.lost and (hand.at_once > 0 or now - hand.asked_for < PATIENCE_S)
                for hand in self.hands
            )
            for _ in range(min(machine.actors - here, most - count)):
                actor = self.cluster.actor(self.kind, machine)
                loading = actor.load.remote(self.load, request)
                self.hands.append(Hand(actor, machine, loading))

    def loaded(self, hand: Hand, answer: Any) -> None:
        """An actor has answered `load`. Raises UserError where it cannot."""
        report, at_once, problem = answer
        if problem is not None:
            raise UserError(f"[{hand.machine.name}] {problem}")
        hand.loading, hand.at_once = None, min(at_once, SHARDS_AT_ONCE)
        self._failed[hand.machine.id] = 0
        if self.report is None:
            self.report = report
            say(report)

    def freest(self) -> Optional[Hand]:
        """The one with the fewest shards, if it takes another."""
        free = [hand for hand in self.hands if hand.free()]
        return min(free, key=lambda hand: len(hand.parts), default=None)

    def idle(self) -> Optional[Hand]:
        """One without a shard."""
        return next((hand for hand in self.hands if hand.free() and not hand.parts), None)

    def lose(self, hand: Hand, error: Exception) -> None:
        """Hand out nothing to it any more."""
        if not hand.lost:
            hand.lost = True
            if hand.loading is not None:
                self._failed[hand.machine.id] += 1
                self._reason = f"[{hand.machine.name}] {one_line(error, 300)}"
            say(f"lost a captioner on {hand.machine.name}; what it had goes to others")
        self.forget_lost(hand)

    def forget_lost(self, hand: Hand) -> None:
        """Make room for another, once all that a lost one sent has been taken."""
        import ray

        if hand.lost and not hand.parts and hand in self.hands:
            self.hands.remove(hand)
            ray.kill(hand.actor)
