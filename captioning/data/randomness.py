"""Derives random numbers from a purpose and integers only, not from earlier random numbers."""

import hashlib
from contextlib import contextmanager

import torch


def derived_seed(purpose: str, *numbers: int) -> int:
    """Return an unsigned 64-bit seed, a hash of `purpose` and `numbers`."""
    name = f"{purpose} {' '.join(str(number) for number in numbers)}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def permutation(size: int, seed: int) -> list[int]:
    """Return the integers below `size` in a random order."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()


@contextmanager
def seeded(seed: int):
    """Seed torch's CPU generator, and restore its state at the end of the block."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed accelerators, but fork_rng does not restore their state.
        torch.default_generator.manual_seed(seed)
        yield
