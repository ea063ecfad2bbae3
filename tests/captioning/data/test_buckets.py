"""Batches of similar length: every item once, little padding, another order each epoch."""

from captioning.data import TrainingDataset, evaluation_transform, training_loader
from captioning.data.annotations import Sample
from captioning.data.loader import POOL, bucketed
from captioning.data.randomness import permutation

LENGTHS = [(7 * n) % 23 for n in range(1003)]


def test_every_item_is_in_one_batch_and_batches_are_of_similar_length():
    order = bucketed(permutation(1003, 5), LENGTHS, 10, 1)
    assert len(order) == len(set(order)) == 1000

    def padding(order):
        batches = [order[i : i + 10] for i in range(0, 1000, 10)]
        return sum(max(LENGTHS[i] for i in b) * 10 - sum(LENGTHS[i] for i in b) for b in batches)

    assert padding(order) < 0.1 * padding(permutation(1003, 5))


def test_batches_are_not_in_order_of_length_and_differ_with_the_seed():
    first, second = (bucketed(permutation(1003, 5), LENGTHS, 10, seed) for seed in (1, 2))
    shortest = [LENGTHS[item] for item in first[::10]]
    assert shortest != sorted(shortest) and first != second
    assert {*first} == {*second}


def test_only_batches_within_a_pool_are_sorted_together():
    order = permutation(1003, 5)
    pool = set(order[: POOL * 10])
    batches = bucketed(order, LENGTHS, 10, 1)
    assert all(len(pool.intersection(batches[i : i + 10])) in (0, 10) for i in range(0, 1000, 10))


def dataset(captions_per_image):
    samples = [
        Sample("a.jpg", ("a b c.", "a"), 1),
        Sample("b.jpg", ("a b", "a b c d e f g"), 2),
    ]
    return TrainingDataset(samples, ".", evaluation_transform(8), 0, captions_per_image, 5)


def test_lengths_are_words_as_they_are_trained_on():
    assert dataset(1).lengths() == [3, 1, 2, 5]
    assert dataset(2).lengths() == [3, 5]


def test_a_loader_sorts_global_batches_and_shares_them_out(monkeypatch):
    parts = []
    for rank in range(2):
        loader = training_loader(dataset(1), 1, 0, rank, 2, bucket_batches=True)
        loader.set_epoch(3)
        parts.append([key for (key,) in loader.batch_sampler])
    pairs = [{a[1], b[1]} for a, b in zip(*parts)]
    assert sorted(map(sorted, pairs)) == [[0, 3], [1, 2]]  # 3 and 5 words, 1 and 2
    plain = training_loader(dataset(1), 2, 0, bucket_batches=False)
    assert sorted(key[1] for batch in plain.batch_sampler for key in batch) == [0, 1, 2, 3]
