"""Batches: the same for any number of processes and workers, and bucketed."""

import logging
from contextlib import closing
from itertools import combinations
from unittest.mock import Mock

import pytest
import torch

from captioning.data.annotations import Sample
from captioning.data.augmentation import training_transform
from captioning.data.dataset import EvaluationDataset, TrainingDataset
from captioning.data.image import evaluation_transform
from captioning.data.loader import evaluation_loader, training_loader
from captioning.data.randomness import derived_seed, permutation
from captioning.runtime.errors import UserError
from tests.captioning.data.conftest import KEYS, assert_same_batches
from tests.programs import raises_line


@pytest.fixture
def make_loader(photos, samples):
    """Return a function that makes a loader of the ten photos, for training with two captions."""

    def make(batch_size, rank=0, world_size=1, workers=0, seed=7, skip=False, kind="training"):
        if kind == "evaluation":
            dataset = EvaluationDataset(samples, photos, evaluation_transform(8), skip)
            return evaluation_loader(dataset, batch_size, rank, world_size, workers)
        settings = {"captions_per_image": 2, "skip_bad_images": skip}
        dataset = TrainingDataset(samples, photos, training_transform(8), seed, **settings)
        return training_loader(dataset, batch_size, rank, world_size, workers)

    return make


def run(loader, epoch):
    loader.set_epoch(epoch)
    return list(loader)


def test_derived_seeds_and_orders_are_those_of_every_version():
    """A change would make a resumed run see other batches than the run that was interrupted."""
    assert derived_seed("item", 0, 1, 2) == 2556417577029233501
    assert permutation(8, derived_seed("order", 42, 0)) == [4, 0, 3, 2, 7, 6, 1, 5]


@pytest.mark.parametrize("world_size", [2, 4])
def test_batches_do_not_depend_on_the_number_of_processes(make_loader, world_size):
    whole = run(make_loader(4), epoch=1)
    assert [len(captions) for captions in whole[0]["captions"]] == [2] * 4
    ranks = [make_loader(4 // world_size, rank, world_size) for rank in range(world_size)]
    joined = []
    for parts in zip(*(run(loader, epoch=1) for loader in ranks)):
        joined.append({key: [value for part in parts for value in part[key]] for key in KEYS})
        joined[-1]["image"] = torch.cat([part["image"] for part in parts])
    assert_same_batches(joined, whole)


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_depend_on_seed_and_epoch_but_not_on_workers(make_loader, workers):
    before = torch.get_rng_state()
    expected = [run(make_loader(3), epoch) for epoch in range(2)]
    loader = make_loader(3, workers=workers)  # the workers live on between epochs
    next(iter(loader))  # an epoch that is broken off leaves nothing behind
    for epoch in range(2):
        assert_same_batches(run(loader, epoch), expected[epoch])
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers are untouched
    of_runs = []
    for seed, epoch in ((7, 0), (7, 1), (8, 0)):
        batches = run(make_loader(2, seed=seed), epoch)
        order = [index for batch in batches for index in batch["index"]]
        images = torch.cat([batch["image"] for batch in batches])[torch.tensor(order).argsort()]
        assert sorted(order) == list(range(10))
        of_runs.append((order, images))
    for (order, images), (other_order, others) in combinations(of_runs, 2):
        assert order != other_order and (images != others).flatten(1).any(1).all()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_bad_image_is_one_line_and_workers_end(photos, make_loader, no_child_stays, kind, workers):
    (photos / "4.png").write_bytes(b"")
    loader = make_loader(2, workers=workers, kind=kind)
    with closing(loader), raises_line(UserError, "4.png: not a readable image"):
        list(loader)
    no_child_stays()


def test_shared_memory_that_is_too_small_is_one_line(make_loader, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "share_memory_", Mock(side_effect=RuntimeError("no space")))
    line = "does not fit in shared memory (no space): enlarge /dev"
    with closing(make_loader(2, workers=2)) as loader, raises_line(UserError, line):
        next(iter(loader))


def test_skipped_images_are_replaced_or_left_out_counted_and_logged_once(
    photos, make_loader, caplog
):
    for name in ("2.png", "6.png", "7.png", "8.png"):
        (photos / name).write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        loader = make_loader(5, workers=2, skip=True)
        for epoch in range(2):
            batches = run(loader, epoch)
            assert all(batch["image"].shape == (5, 8, 8, 3) for batch in batches)
            assert not {2, 6, 7, 8}.intersection(i for batch in batches for i in batch["index"])
            assert sum(batch["skipped"] for batch in batches) == loader.skipped == 4
            assert len(caplog.messages) == 4 == len(set(caplog.messages))
        loader = make_loader(3, workers=1, skip=True, kind="evaluation")
        for _ in range(2):  # 6 to 8 are a batch of their own
            batches = list(loader)
            assert [batch["index"] for batch in batches] == [[0, 1], [3, 4, 5], [9]]
            assert [batch["skipped"] for batch in batches] == [1, 0, 0]
            assert (loader.skipped, len(caplog.messages)) == (4, 8)


def test_a_loader_sorts_global_batches_by_words_and_shares_them_out():
    samples = [Sample("a.jpg", ("a b c.", "a"), 1), Sample("b.jpg", ("a b", "a b c d e f g"), 2)]
    one, two = (TrainingDataset(samples, ".", None, 0, count, 5) for count in (1, 2))
    assert (one.lengths(), two.lengths()) == ([3, 1, 2, 5], [3, 5])
    loaders = [training_loader(one, 1, rank, 2, bucket_batches=True) for rank in range(2)]
    parts = [[index for ((_, index),) in loader.batch_sampler] for loader in loaders]
    assert sorted(map(sorted, zip(*parts))) == [[0, 3], [1, 2]]  # 3 and 5 words, 1 and 2
