"""A training step of BLIP-base beside that of transformers' BLIP: images a second, memory."""

from collections.abc import Mapping
from typing import Any, Callable

from benchmarks.gpu.card import Card
from benchmarks.gpu.contenders import compare
from benchmarks.gpu.counts import training_flops
from benchmarks.training import COMPILED, OURS, OURS_SMILE, SMILE, THEIRS, TOKENS, Training

BATCH = 32
ROUNDS = 5
SPECS = {OURS: "mle", OURS_SMILE: SMILE, COMPILED: "mle", THEIRS: "mle"}
IN_FP32 = f"{THEIRS}, fp32"  # as the original was trained
CASES = (("bf16", 1, False), ("fp32", 1, False), ("bf16", 5, False), ("bf16", 1, True))


def rows(card: Card) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """Those with the compiled captioner last: it takes longest until it runs."""
    made: list[Training] = []  # where it is first asked for, after the checks' memory is free

    def row(name: str, precision: str, an_image: int, compiled: bool) -> dict[str, Any]:
        if not made:
            made.append(Training(card.tiny, True, card.device))
        return steps(card, made[0], name, precision, an_image, compiled)

    found = {}
    for precision, an_image, compiled in CASES[2:] if card.tiny else CASES:
        name = f"{precision}, {an_image} caption{'s' * (an_image > 1)} an image"
        name += ", compiled" * compiled
        found[name] = lambda case=(name, precision, an_image, compiled): row(*case)
    return found


def steps(
    card: Card, training: Training, name: str, precision: str, an_image: int, compiled: bool
) -> dict[str, Any]:
    batch, autocast = 2 if card.tiny else BATCH, precision == "bf16"
    contenders = [OURS, OURS_SMILE, *([COMPILED] if compiled else []), THEIRS]
    works = {who: training.step(who, SPECS[who], autocast, an_image, batch) for who in contenders}
    if autocast and an_image == 1:
        works[IN_FP32] = training.step(THEIRS, "mle", False, an_image, batch)
    tokens = batch * an_image * sum(TOKENS) / len(TOKENS)
    flops = training_flops(training.ours, batch, round(tokens), max(TOKENS))
    phases = {who: [{"flops": {precision: flops}, "bytes": 0}] for who in contenders}
    facts = {"precision": precision, "batch": batch, "captions_an_image": an_image}
    peers = (THEIRS, IN_FP32, OURS)
    items = (batch, "images")
    return compare(name, works, peers, 1 if card.tiny else ROUNDS, items, **facts, phases=phases)
