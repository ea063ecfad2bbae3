"""Batches of captions of similar length, so that little of a batch is padding."""

from collections.abc import Sequence

from captioning.data.randomness import permutation

# Batches that are sorted together: enough for lengths to differ little within one, and few enough
# for an epoch to stay random.
POOL = 50


def bucketed(order: Sequence[int], lengths: Sequence[int], size: int, seed: int) -> list[int]:
    """Return an order of whole batches of `size`, the items of each of similar length.

    order: a random order of items; lengths: by item. What fills no batch is dropped.
    """
    order = order[: len(order) // size * size]
    batches = []
    for start in range(0, len(order), POOL * size):
        pool = sorted(order[start : start + POOL * size], key=lambda item: lengths[item])
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    return [item for batch in permutation(len(batches), seed) for item in batches[batch]]
