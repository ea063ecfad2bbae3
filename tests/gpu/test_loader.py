"""Batches come to the device beside the model's work, and are whole when it reads them."""

import torch

from captioning.data.image import normalise
from captioning.data.loader import Prefetcher

BUSY_CYCLES = 2_000_000_000  # of the model's stream: about a second


def pixels(card, count):
    """Yield a loader's batches of bytes, in pinned memory on a GPU."""
    side = 32 if card.tiny else 384
    random = torch.Generator().manual_seed(0)
    for number in range(count):
        image = torch.randint(256, (8, side, side, 3), dtype=torch.uint8, generator=random)
        yield {"image": image.pin_memory() if card.on_gpu else image, "image_id": [number] * 8}


def test_no_copy_waits_for_the_model(card):
    """While the stream of the model is busy, the next batch arrives on its own stream."""
    prefetcher = Prefetcher(list(pixels(card, 6)), card.device)
    batches, overlapped = iter(prefetcher), 0
    next(batches)
    for _ in range(3):
        if card.on_gpu:
            torch.cuda.synchronize()
            torch.cuda._sleep(BUSY_CYCLES)
        next(batches)
        if card.on_gpu:
            prefetcher.stream.synchronize()  # what comes after this batch is there
            overlapped += not torch.cuda.current_stream().query()  # and the model still at work
            torch.cuda.synchronize()
    print(f"{overlapped} of 3 copies ended before the model's work")
    assert overlapped == 3 * card.on_gpu


def test_batches_are_whole_when_the_model_reads_them(card):
    """Also if it is slow, and frees each batch before it asks for the next."""
    expected = [normalise(batch["image"]) for batch in pixels(card, 8)]
    seen = []
    for batch in Prefetcher(list(pixels(card, 8)), card.device):
        if card.on_gpu:
            torch.cuda._sleep(BUSY_CYCLES // 100)
        seen.append(batch.pop("image").mul(1).cpu())
    for found, wanted in zip(seen, expected):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(seen) == 8
