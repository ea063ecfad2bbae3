"""Concurrent calls share a batch; each gets its answer or its error."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from app.dynamic_batcher import Disconnected, DynamicBatcher
from app.options import read_options
from app.photos import Limits
from app.service import CaptionService
from tests.app.captions import caption_of

PHOTOS = [
    Image.merge("RGB", [Image.radial_gradient("L").point(lambda v, i=i: v * i % 256)] * 3)
    for i in range(1, 7)
]


class Maker:
    """Answers batches once `may` is set. batches: the items of each."""

    def __init__(self):
        self.batches, self.may, self.busy = [], threading.Event(), threading.Event()

    def __call__(self, items):
        self.batches.append(list(items))
        self.busy.set()
        assert self.may.wait(100)
        if "bad" in items:
            raise ValueError("bad", len(items))
        return [item * 2 for item in items]


def gather(maker, calls, max_batch=8, disconnected=()):
    """Make the calls (key, item) while a first batch is running."""
    batcher = DynamicBatcher(maker, max_batch)
    events = [threading.Event() for _ in calls]
    with ThreadPoolExecutor(len(calls) + 1) as threads:
        first = threads.submit(batcher.submit, "first", "first", threading.Event())
        assert maker.busy.wait(100)
        asked = [threads.submit(batcher.submit, *c, event) for c, event in zip(calls, events)]
        with batcher._condition:
            assert batcher._condition.wait_for(lambda: len(batcher._waiting) == len(calls), 20)
        for index in disconnected:
            events[index].set()
        maker.may.set()
        assert first.result() == "firstfirst"
        return [each.exception() or each.result() for each in asked]


@pytest.mark.parametrize(
    ("keys", "max_batch", "sizes"),
    [("abaa", 8, [1, 3]), ("aaaaa", 2, [1, 2, 2]), ([None] * 3, 8, [1, 1, 1])],
)
def test_waiting_calls_of_one_key_share_batches(keys, max_batch, sizes):
    maker = Maker()
    calls = [(key, index) for index, key in enumerate(keys)]
    assert gather(maker, calls, max_batch) == [2 * index for index in range(len(keys))]
    assert sorted(map(len, maker.batches[1:])) == sizes
    assert all(len({keys[index] for index in batch}) == 1 for batch in maker.batches[1:])


def test_an_item_that_fails_fails_alone():
    maker = Maker()
    good, bad, other = gather(maker, [("a", 1), ("a", "bad"), ("a", 3)])
    assert (good, other) == (2, 6)
    assert bad.args == ("bad", 1)  # in a batch of one
    assert sorted(map(len, maker.batches[1:])) == [1, 1, 1, 3]


def test_items_of_disconnected_callers_are_left_out():
    maker = Maker()
    found = gather(maker, [("a", 1), ("a", 2), ("b", 3)], disconnected=(0, 2))
    assert found[1] == 4 and all(isinstance(found[i], Disconnected) for i in (0, 2))
    assert [item for batch in maker.batches[1:] for item in batch] == [2]


def test_samples_are_not_batched(checkpoints):
    service, sizes = CaptionService(checkpoints, Limits()), []
    service.batcher.on_batch = lambda items, seconds: sizes.append(items)
    options = read_options({"sample": True, "max_length": 12, "temperature": 3, "seed": 4})

    def sampled(photo):
        return caption_of(service, photo, checkpoints[0], options).details.caption

    alone = list(map(sampled, PHOTOS))
    with ThreadPoolExecutor(len(PHOTOS)) as threads:
        assert list(threads.map(sampled, PHOTOS)) == alone
    assert sizes == [1] * 12


def test_the_memory_of_a_failed_batch_is_freed_before_its_items_are_retried(monkeypatch):
    class Tensor:
        pass

    kept = []

    def make(items):
        large = Tensor()
        assert all(each() is None for each in kept)
        kept.append(weakref.ref(large))
        if len(items) > 1:
            raise MemoryError
        return [2 * item for item in items]

    monkeypatch.setattr("app.dynamic_batcher.WINDOW_S", 20)
    batcher = DynamicBatcher(make, 2)
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda i: batcher.submit("a", i, threading.Event()), range(2))
        assert list(found) == [0, 2] and len(kept) == 3
