"""The shards of a plan, handed out to the actors of a Ray cluster, and their captions kept here.

The plan and the parts are this process's alone. An actor sends the lines of a shard every second;
they go into the shard's journal, as those of one process do. Whoever else is lost, they stay.
"""

import os
import time
from collections import deque
from typing import Any, Callable, Optional

from captioning.bulk.actor_pool import TRIES, Crew, Hand
from captioning.bulk.actors import CaptioningActor
from captioning.bulk.cluster import Cluster
from captioning.bulk.local_engine import Count, finish, publish
from captioning.bulk.request import Request
from captioning.bulk.shards import Handed, Made, Part, Plan
from captioning.files import stores
from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.progress import say

PAUSE_S = 0.2
PATIENCE_S = 10  # of a run that was asked to stop, for its actors


class ManyActors:
    """The engine of more than one process. load: makes the captioner, where an actor is.

    kind: the class of the actors, with the methods of `CaptioningActor`.
    """

    def __init__(
        self, cluster: Cluster, load: Callable[[], Any], kind: type = CaptioningActor
    ) -> None:
        self.cluster = cluster
        self.crew = Crew(cluster, kind, load)

    def start(self, request: Request, shards: int) -> None:
        """Have an actor whose captioner is loaded. Raises UserError and Stopped."""
        self.cluster.join()
        work = _Work(self.crew, request)
        while not any(hand.at_once for hand in self.crew.hands):
            self.crew.tend(request, shards)
            work.gather()
            if signals.stop_requested():
                raise signals.Stopped

    def caption(self, request: Request, plan: Plan, shards: list[int], count: Count) -> None:
        """Finish those shards. Raises Stopped, OSError and UserError: what is done is kept."""
        work = _Work(self.crew, request, plan, shards, count)
        try:
            work.finish()
        except UserError:
            work.leave()
            raise
        if signals.stop_requested():
            work.leave()
            raise signals.Stopped
        if work.given_up:
            raise UserError(work.given_up[0])


class _Work:
    """What is left of one plan."""

    def __init__(
        self,
        crew: Crew,
        request: Request,
        plan: Optional[Plan] = None,
        shards: Any = (),
        count: Optional[Count] = None,
    ):
        self.crew, self.request, self.plan, self.count = crew, request, plan, count
        self.waiting = deque(shards)
        self.suspects: list[int] = []  # lost twice with their actors: handed out one to an actor
        self.losses: dict[int, tuple[int, int]] = {}  # lines that there were, and how often
        self.given_up: list[str] = []
        self.leaving = False

    def finish(self) -> None:
        """Hand out and take until nothing is left, or the program is asked to stop."""
        while not signals.stop_requested():
            held = sum(len(hand.parts) for hand in self.crew.hands)
            left = len(self.waiting) + len(self.suspects) + held
            if not left:
                return
            self.crew.tend(self.request, left)
            self._hand_out()
            self.gather()

    def leave(self) -> None:
        """Take what actors have made, if they are quick, and nothing more of them."""
        self.leaving = True
        until = time.monotonic() + PATIENCE_S
        for hand in self.crew.hands:
            hand.actor.stop.remote()
        while any(hand.parts for hand in self.crew.hands) and time.monotonic() < until:
            try:
                self.gather()
            except UserError:
                continue  # the first that was told counts

    def _hand_out(self) -> None:
        """Shards first that are as good as any; a suspect has an actor for itself, at the end."""
        while self.waiting and (hand := self.crew.freest()) is not None:
            self._give(hand, self.waiting.popleft())
        while self.suspects and (hand := self.crew.idle()) is not None:
            hand.alone = True
            self._give(hand, self.suspects.pop())

    def _give(self, hand: Hand, shard: int) -> None:
        part = Part(self.request.parts, shard)
        if part.path.exists():
            publish(self.request, self.plan, part)
            return
        self.request.claim_tars()
        lines, entries = part.recover().lines, self.plan.entries(shard)
        number, first = self.plan.number(shard), _first(entries)
        seen = first if not stores.is_store(first) and os.path.exists(first) else None
        handed = Handed(shard, number, entries, list(lines), seen)
        stream = hand.actor.caption.options(num_returns="streaming").remote(handed)
        hand.parts[stream] = part

    def gather(self) -> None:
        """Take what has come, after waiting for it a little. Raises UserError."""
        import ray

        senders: dict[Any, Hand] = {}
        for hand in self.crew.hands:
            senders.update(dict.fromkeys(hand.parts, hand))
            if hand.loading is not None:
                senders[hand.loading] = hand
        if not senders:
            time.sleep(PAUSE_S)
            return
        come, _ = ray.wait(list(senders), num_returns=1, timeout=PAUSE_S)
        if come:
            come, _ = ray.wait(list(senders), num_returns=len(senders), timeout=0)
        for sender in come:
            hand = senders[sender]
            try:
                if sender is hand.loading:
                    self.crew.loaded(hand, ray.get(sender))
                else:
                    self._take(hand, sender, Made(*ray.get(next(sender))))
            except (ray.exceptions.RayError, StopIteration) as error:
                if self.leaving:
                    hand.parts.pop(sender, None)
                else:
                    self._lost(hand, sender, error)

    def _take(self, hand: Hand, stream: Any, made: Made) -> None:
        part = hand.parts[stream]
        for line in made.said:
            say(f"[{hand.machine.name}] {line}")
        if made.lines:
            part.add(made.lines)
            self.count(len(made.lines))
        if made.counts is not None:
            part.seal()
            finish(self.request, self.plan, part, made.counts)
        if made.counts is not None or made.problem is not None:
            del hand.parts[stream]
            hand.alone = False
            self.crew.forget_lost(hand)
        if made.problem is not None:
            raise UserError(f"[{hand.machine.name}] {made.problem}")

    def _lost(self, hand: Hand, sender: Any, error: Exception) -> None:
        import ray

        part = hand.parts.pop(sender, None)
        self.crew.lose(hand, error)
        if part is None:
            return
        before, times = self.losses.get(part.shard, (0, 0))
        times = times + 1 if len(part.lines) == before else 1
        self.losses[part.shard] = len(part.lines), times
        if times < TRIES:
            (self.waiting.appendleft if times == 1 else self.suspects.append)(part.shard)
        elif isinstance(error, ray.exceptions.RayTaskError):  # a bug
            raise error
        else:
            entries = self.plan.entries(part.shard)
            where = _first(entries[min(len(part.lines), len(entries) - 1) :])
            self.given_up.append(
                f"shard {part.shard}: {times} captioners were lost at {where} or soon after it: "
                f"{one_line(error, 300)}"
            )


def _first(entries: list[dict[str, Any]]) -> str:
    """The image or tar that comes first."""
    return entries[0].get("tar") or entries[0]["image"]
