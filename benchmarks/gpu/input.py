"""Training photos a second that our loader and the original's give, on 4 to 16 cores.

What the card needs is in the rows of `training`: images a second of a step.
"""

import os
from collections.abc import Mapping
from typing import Any, Callable

from benchmarks.gpu.card import Card
from benchmarks.gpu.contenders import compare
from benchmarks.loader import Ours, draw_photos, forget
from benchmarks.original_input import Photos, cv2, original_loader, plain_loader

CORES = (16, 8, 4)
SIZE, TINY_SIZE = (640, 480), (80, 60)
BATCH = 32
BATCHES_A_CORE = 4
ROUNDS = 2
PEERS = ("original's", "ours")


def rows(card: Card) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """As many cores as the machine has, where those are fewer than all that are asked for."""
    here = len(os.sched_getaffinity(0))
    cores = [1] if card.tiny else [n for n in CORES if n <= here] or [here]
    return {f"{n} cores": lambda n=n: photos_a_second(card, n) for n in cores}


def photos_a_second(card: Card, cores: int) -> dict[str, Any]:
    """One row: an epoch by so many worker processes on so many cores, ours to the device."""
    batch, side = (2, 32) if card.tiny else (BATCH, 384)
    folder = card.folder / "photos"
    folder.mkdir(exist_ok=True)
    count = batch * BATCHES_A_CORE * cores
    paths = draw_photos(folder, TINY_SIZE if card.tiny else SIZE, count, 4 if card.tiny else 16)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])  # and of the processes that are started now
    try:
        original = original_loader(paths, side, batch, cores)
        decoding = plain_loader(Photos(paths, forget), batch, cores)
        works = {
            "ours": Ours(paths, side, batch, cores, card.device),
            "original's": lambda: sum(len(x.to(card.device)) for x, _ in original),
            "decoding alone": lambda: sum(len(x) for x, _ in decoding),
        }
        facts = {"cores": cores, "size": list(SIZE), "opencv": cv2.__version__ if cv2 else "none"}
        rounds = 1 if card.tiny else ROUNDS
        return compare(f"{cores} cores", works, PEERS, rounds, (count, "images"), **facts)
    finally:
        os.sched_setaffinity(0, before)
