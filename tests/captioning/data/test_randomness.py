import torch

from captioning.data.randomness import derived_seed, permutation, seeded


def test_seeds_differ_by_purpose_and_by_every_number():
    keys = [("item", 0, 0, 0), ("item", 0, 0, 1), ("item", 0, 1, 0), ("item", 1, 0, 0)]
    keys += [("order", 0, 0), ("item", 0, 0), ("item", 1, 10), ("item", 11, 0)]
    assert len({derived_seed(*key) for key in keys}) == len(keys)


def test_seeds_are_recorded():
    """A change would make a resumed run see other batches than the run that was interrupted."""
    assert derived_seed("item", 0, 1, 2) == 2556417577029233501
    assert permutation(8, derived_seed("order", 42, 0)) == [4, 0, 3, 2, 7, 6, 1, 5]


def test_seeded_draws_repeat_and_leave_the_generator_alone():
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    with seeded(3):
        assert torch.equal(torch.rand(4), first)


def test_accelerators_are_not_seeded(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    with seeded(3):
        torch.rand(1)
    assert seeds == []
