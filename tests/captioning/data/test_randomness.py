import torch

from captioning.data.randomness import derived_seed, permutation, seeded


def test_seeds_are_recorded():
    """A change would make a resumed run see other batches than the run that was interrupted."""
    assert derived_seed("item", 0, 1, 2) == 2556417577029233501
    assert permutation(8, derived_seed("order", 42, 0)) == [4, 0, 3, 2, 7, 6, 1, 5]


def test_accelerators_are_not_seeded(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(3):
        torch.rand(1)
    assert seeds == []
