import pytest
import torch

from captioning.data import Prefetcher, normalise

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    ),
]


def make_batches(count):
    return [
        {
            "image": torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8),
            "captions": [[f"caption {number}"]] * 2,
            "image_id": [number, number],
        }
        for number in range(count)
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [0, 1, 4])
def test_batches_come_in_order_and_normalised(device, count):
    batches = make_batches(count)
    fetched = list(Prefetcher(batches, torch.device(device)))
    assert len(fetched) == count
    for before, after in zip(batches, fetched):
        assert after["image"].device.type == device
        torch.testing.assert_close(after["image"].cpu(), normalise(before["image"]))
        assert after["captions"] == before["captions"]
        assert after["image_id"] == before["image_id"]
        assert before["image"].dtype == torch.uint8


def test_one_batch_is_always_under_way():
    taken = []

    def source():
        for number, batch in enumerate(make_batches(4)):
            taken.append(number)
            yield batch

    batches = iter(Prefetcher(source(), torch.device("cpu")))
    assert taken == []
    ahead = [len(taken) for _ in batches]
    assert ahead == [2, 3, 4, 4]
