"""Captions a second of BLIP-base, and the time of one photo, beside transformers and the original.

Captions have their full length, so that all contenders make as many steps.
"""

import io
import itertools
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
import torch
from PIL import Image

from benchmarks.captioning import NEVER_ENDS, Captioners
from benchmarks.gpu.card import Card
from benchmarks.gpu.contenders import compare
from benchmarks.gpu.counts import captioning_phases
from benchmarks.measure import Work
from decoding import DecodingSettings

BATCHES, LENGTHS, PRECISIONS = (64, 1, 256, 8), (20, 40), ("bf16", "fp32")
GOALS = (("bf16", 64, 20), ("bf16", 1, 20))
PEERS = ("original's", "transformers", "ours")
ROUNDS = {1: 10, 8: 5}
FEW_ROUNDS = 3  # of larger batches
PHOTO = (640, 480)


def rows(card: Card) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """The goals' rows and that of one photo with the compiled copy, then all without, then the rest
    with it: a compilation takes longer than all other contenders."""
    captioners = Captioners(card.tiny, card.captioner)
    captioners.end_with(NEVER_ENDS)
    batches, lengths = ((2,), (6,)) if card.tiny else (BATCHES, LENGTHS)
    goals = [("bf16", 2, 6)] if card.tiny else GOALS
    every = list(itertools.product(PRECISIONS, lengths, batches))
    found: dict[str, Callable] = {}

    def add(precision: str, batch: int, length: int, compiled: bool) -> None:
        name = f"{precision}, batch {batch}, length {length}" + ", compiled" * compiled
        case = (captioners, precision, batch, length, compiled)
        found.setdefault(name, lambda: captions(card, name, *case))

    for goal in goals:
        add(*goal, compiled=True)
    found["one photo, bf16"] = lambda: one_photo(card, captioners)
    for precision, length, batch in every:
        if (precision, batch, length) not in goals:
            add(precision, batch, length, compiled=False)
    for precision, length, batch in [] if card.tiny else every:
        add(precision, batch, length, compiled=True)
    return found


def captions(
    card: Card,
    name: str,
    captioners: Captioners,
    precision: str,
    batch: int,
    length: int,
    compiled: bool,
) -> dict[str, Any]:
    """One row; the original's way is tried in the row's precision, under autocast, and in fp32."""
    settings = DecodingSettings(num_beams=3, max_length=length, min_length=5)
    works = captioners.works(precision, batch, settings)
    del works["as it is"]
    image = captioners.images(batch)
    naive = captioners.naive
    works["original's"] = captioners.autocast(precision)(
        lambda: naive.generate_details(image, settings)
    )
    if (precision, batch, length) not in GOALS:
        del works["original, fp32"]
    quick = captioners.copies[precision]
    phases = {"ours": captioning_phases(quick, batch, settings)}
    phases["encoder"] = phases["ours"][:1]
    if compiled:
        replayed = captioners.compiled(precision)
        works["compiled"] = lambda: replayed.generate_details(image, settings)
        phases["compiled"] = phases["ours"]
    facts = {"precision": precision, "batch": batch, "length": length, "phases": phases}
    rounds = 1 if card.tiny else ROUNDS.get(batch, FEW_ROUNDS)
    return compare(name, works, PEERS, rounds, (batch, "captions"), **facts)


def one_photo(card: Card, captioners: Captioners) -> dict[str, Any]:
    """From the bytes of a JPEG file to its caption, as the page or a program would have it."""
    from captioning.data import evaluation_transform, load_image

    settings = DecodingSettings(num_beams=3, max_length=6 if card.tiny else 20, min_length=5)
    transform = evaluation_transform(captioners.side)
    shapes = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(shapes).resize(PHOTO).save(file, "JPEG", quality=90)
    replayed = captioners.compiled("bf16")

    def image() -> torch.Tensor:
        photo = load_image("photo.jpg", io.BytesIO(file.getvalue()))
        return transform(photo).unsqueeze(0).to(card.device)

    def by(captioner: Any) -> Work:
        return lambda: captioner.generate_details(image(), settings).captions

    theirs = captioners.autocast("bf16")(
        lambda: captioners.their_tokens(image(), settings).tolist()
    )
    works = {
        "ours": by(captioners.copies["bf16"]),
        "compiled": by(replayed),
        "transformers": theirs,
        "reading alone": image,
    }
    phases = captioning_phases(captioners.copies["bf16"], 1, settings)
    facts = {"precision": "bf16", "phases": {"ours": phases, "compiled": phases}}
    rounds = 1 if card.tiny else 20
    return compare("one photo, bf16", works, PEERS[1:], rounds, (1, "captions"), **facts)
