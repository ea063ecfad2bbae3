"""Batches: the same for any number of processes and workers, bucketed, and prefetched."""

import gc
import logging
from unittest.mock import Mock

import pytest
import torch

from captioning.data import (
    EvaluationDataset,
    Prefetcher,
    Sample,
    TrainingDataset,
    evaluation_loader,
    evaluation_transform,
    normalise,
    training_loader,
    training_transform,
)
from captioning.data.loader import POOL, bucketed
from captioning.data.randomness import derived_seed, permutation, seeded
from captioning.runtime.errors import UserError
from tests.captioning.data.batches import KEYS, assert_same_batches
from tests.programs import raises_line


@pytest.fixture
def make_loader(photos, samples):
    """Return a function that makes a training loader of the ten photos, two captions each."""

    def make(batch_size, rank=0, world_size=1, num_workers=0, seed=7, **settings):
        dataset = TrainingDataset(
            samples, photos, training_transform(8), seed, captions_per_image=2, **settings
        )
        return training_loader(dataset, batch_size, seed, rank, world_size, num_workers)

    return make


@pytest.fixture
def make_evaluation(photos, samples):
    """Return a function that makes an evaluation loader of the first photos."""

    def make(count=10, batch_size=3, rank=0, world_size=1, num_workers=0, skip=False):
        dataset = EvaluationDataset(samples[:count], photos, evaluation_transform(8), skip)
        return evaluation_loader(dataset, batch_size, rank, world_size, num_workers)

    return make


def run(loader, epoch):
    loader.set_epoch(epoch)
    return list(loader)


def joined(batches_of_ranks):
    """Return one batch made of those that the processes see at the same step."""
    image = torch.cat([batch["image"] for batch in batches_of_ranks])
    parts = {key: [value for batch in batches_of_ranks for value in batch[key]] for key in KEYS}
    return {"image": image, **parts}


def test_derived_seeds_and_orders_are_those_of_every_version():
    """A change would make a resumed run see other batches than the run that was interrupted."""
    assert derived_seed("item", 0, 1, 2) == 2556417577029233501
    assert permutation(8, derived_seed("order", 42, 0)) == [4, 0, 3, 2, 7, 6, 1, 5]


def test_seeding_for_a_block_leaves_accelerators_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded"))
    with seeded(3):
        torch.rand(1)


@pytest.mark.parametrize("world_size", [2, 4])
def test_batches_do_not_depend_on_the_number_of_processes(make_loader, world_size):
    whole = run(make_loader(4), epoch=1)
    assert [len(captions) for captions in whole[0]["captions"]] == [2] * 4
    parts = [
        run(make_loader(4 // world_size, rank, world_size), epoch=1) for rank in range(world_size)
    ]
    assert len(whole) == 2
    assert_same_batches([joined(step) for step in zip(*parts)], whole)


def test_batches_do_not_depend_on_the_number_of_workers(make_loader):
    expected = [run(make_loader(3), epoch) for epoch in range(2)]
    for num_workers in (1, 2):
        loader = make_loader(3, num_workers=num_workers)  # the workers live on between epochs
        next(iter(loader))  # an epoch that is broken off leaves nothing behind
        for epoch in range(2):
            assert_same_batches(run(loader, epoch), expected[epoch])


def test_an_epoch_holds_every_item_once_in_an_order_of_its_own(make_loader):
    loader = make_loader(2)
    orders = [
        [index for batch in run(loader, epoch) for index in batch["index"]] for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    other_seed = [index for batch in run(make_loader(2, seed=8), 0) for index in batch["index"]]
    assert other_seed != orders[0]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_callers_random_numbers_are_untouched(make_loader, make_evaluation, num_workers):
    before = torch.get_rng_state()
    loader = make_loader(4, num_workers=num_workers)
    run(loader, 0)
    run(loader, 1)
    list(make_evaluation(num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)


def test_fewer_items_than_a_global_batch_are_refused(make_loader):
    with pytest.raises(UserError, match=r"6 on 2 process\(es\) takes 12 .* there are 10: lower"):
        make_loader(6, world_size=2)


@pytest.mark.parametrize(("count", "world_size"), [(10, 1), (10, 3), (5, 7), (1, 2)])
def test_evaluation_gives_each_image_to_one_process(make_evaluation, count, world_size):
    seen = []
    for rank in range(world_size):
        loader = make_evaluation(count, rank=rank, world_size=world_size)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert all(len(batch["index"]) <= 3 for batch in batches)
        positions = [index for batch in batches for index in batch["index"]]
        assert positions == list(range(rank, count, world_size))
        seen += positions
        for batch in batches:
            assert batch["image"].shape == (len(batch["index"]), 3, 8, 8)
            assert batch["image_id"] == [100 + index for index in batch["index"]]
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_bad_image_in_a_worker_is_one_line_here_and_workers_end(
    photos, make_loader, make_evaluation, no_child_stays, kind, num_workers
):
    (photos / "4.png").write_bytes(b"")
    make = {"training": make_loader, "evaluation": make_evaluation}[kind]
    line = None
    gc.disable()  # what ends here does so because nothing refers to it
    try:
        try:  # pytest.raises would keep the workers alive
            list(make(batch_size=2, num_workers=num_workers))
        except UserError as error:
            line = str(error)
        no_child_stays()
    finally:
        gc.enable()
    assert "4.png: not a readable image" in line and "\n" not in line


def test_full_shared_memory_is_one_line(make_loader, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "share_memory_", Mock(side_effect=RuntimeError("no space")))
    loader = make_loader(batch_size=2, num_workers=2)
    with raises_line(UserError, "does not fit in shared memory (no space): enlarge /dev"):
        next(iter(loader))
    loader.close()


def test_skipped_images_are_replaced_counted_and_logged_once(photos, make_loader, caplog):
    (photos / "4.png").write_bytes(b"")
    (photos / "5.png").unlink()
    expected = run(make_loader(5, skip_bad_images=True), 0)
    caplog.clear()
    loader = make_loader(5, skip_bad_images=True, num_workers=2)
    with caplog.at_level(logging.WARNING):
        for epoch in range(2):
            batches = run(loader, epoch)
            assert all(batch["image"].shape == (5, 8, 8, 3) for batch in batches)
            assert not {4, 5}.intersection(i for batch in batches for i in batch["index"])
            assert sum(batch["skipped"] for batch in batches) == loader.skipped == 2
    assert_same_batches(run(loader, 0), expected)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all(sum(name in line for line in lines) == 1 for name in ("4.png", "5.png"))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_skipped_evaluation_images_are_left_out(photos, make_evaluation, caplog, num_workers):
    for name in ("2.png", "6.png", "7.png", "8.png"):  # 6 to 8 are a batch of their own
        (photos / name).write_bytes(b"")
    assert list(make_evaluation(1, rank=1, world_size=2, num_workers=num_workers)) == []
    loader = make_evaluation(skip=True, num_workers=num_workers)
    batches = list(loader)
    assert [batch["index"] for batch in batches] == [[0, 1], [3, 4, 5], [9]]
    assert [batch["skipped"] for batch in batches] == [1, 0, 0]
    assert [len(batch["image"]) for batch in batches] == [2, 3, 1]
    assert loader.skipped == len(caplog.records) == 4
    list(loader)
    assert loader.skipped == len(caplog.records) == 4


LENGTHS = [(7 * n) % 23 for n in range(1003)]


def test_bucketed_items_are_in_one_batch_and_batches_are_of_similar_length():
    order = permutation(1003, 5)
    first, second = (bucketed(order, LENGTHS, 10, seed) for seed in (1, 2))
    assert len(first) == len(set(first)) == 1000

    def padding(order):
        batches = [order[i : i + 10] for i in range(0, 1000, 10)]
        return sum(max(LENGTHS[i] for i in b) * 10 - sum(LENGTHS[i] for i in b) for b in batches)

    assert padding(first) < 0.1 * padding(order)
    shortest = [LENGTHS[item] for item in first[::10]]  # batches are shuffled
    assert shortest != sorted(shortest) and first != second and {*first} == {*second}
    pool = set(order[: POOL * 10])  # only those of a pool are sorted together
    assert all(len(pool.intersection(first[i : i + 10])) in (0, 10) for i in range(0, 1000, 10))


def test_a_loader_sorts_global_batches_by_words_and_shares_them_out():
    samples = [Sample("a.jpg", ("a b c.", "a"), 1), Sample("b.jpg", ("a b", "a b c d e f g"), 2)]
    one, two = (TrainingDataset(samples, ".", None, 0, count, 5) for count in (1, 2))
    assert (one.lengths(), two.lengths()) == ([3, 1, 2, 5], [3, 5])
    parts = []
    for rank in range(2):
        loader = training_loader(one, 1, 0, rank, 2, bucket_batches=True)
        loader.set_epoch(3)
        parts.append([key for (key,) in loader.batch_sampler])
    pairs = [{a[1], b[1]} for a, b in zip(*parts)]
    assert sorted(map(sorted, pairs)) == [[0, 3], [1, 2]]  # 3 and 5 words, 1 and 2


@pytest.mark.parametrize("count", [0, 1, 4])
def test_prefetched_batches_come_in_order_and_normalised(count):
    pixels = torch.randint(256, (count, 2, 8, 8, 3), dtype=torch.uint8)
    batches = [{"image": image, "captions": number} for number, image in enumerate(pixels)]
    fetched = list(Prefetcher(batches, torch.device("cpu")))
    assert [batch["captions"] for batch in fetched] == list(range(count))
    for before, after in zip(pixels, fetched):
        assert torch.equal(after["image"], normalise(before))
