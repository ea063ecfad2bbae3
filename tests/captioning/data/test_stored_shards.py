"""Training on tars of an object store: the batches of the same tars on disk, or one line."""

import pytest

from captioning.data import training_loader
from captioning.files.stores import StoreError
from captioning.runtime.errors import UserError
from tests.captioning.data.batches import assert_same_batches, dataset, members
from tests.captioning.object_store import FAULTS
from tests.captioning.tar_files import write_members


@pytest.fixture
def tars(s3, photos, samples):
    """Return the paths of two tars of five samples, and their addresses in a store."""
    paths, addresses = [], []
    for number in range(2):
        paths.append(str(photos / f"{number}.tar"))
        own = [s._replace(captions=(f"of {number}",)) for s in samples[5 * number :][:5]]
        write_members(paths[-1], members(photos, own, "json"))
        s3.files.put_file(paths[-1], f"bucket/{number}.tar")
        addresses.append(f"s3://bucket/{number}.tar")
    return paths, addresses


def loader(tars, workers=0, skip=False):
    return training_loader(dataset(tars, skip=skip), 3, 7, num_workers=workers)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_are_those_of_the_same_tars_on_disk_whatever_fails(s3, tars, workers):
    on_disk = list(loader(tars[0]))
    s3.faults += FAULTS
    in_store = loader(tars[1], workers)
    assert s3.faults == []
    s3.faults += FAULTS
    batches = list(in_store)
    in_store.close()
    assert s3.faults == [] and len(batches) == len(on_disk) == 3
    assert_same_batches(batches, on_disk, keys=("captions", "index"))  # ids are addresses
    s3.requests.clear()
    loader(tars[1])
    assert not s3.requests["GET"]  # where samples lie is known


def test_a_key_that_vanishes_is_one_line_or_counted(s3, tars):
    in_store = loader(tars[1]), loader(tars[1], skip=True)
    s3.files.rm_file("bucket/1.tar")
    with pytest.raises(UserError, match=r"s3://bucket/1\.tar: no such file or bucket"):
        list(in_store[0])
    batches = list(in_store[1])
    assert {caption[-1] for batch in batches for (caption,) in batch["captions"]} == {"0"}
    assert sum(batch["skipped"] for batch in batches) in (4, 5)  # a tenth sample makes no batch


def test_a_store_that_refuses_ends_a_run_that_skips_bad_images(s3, tars):
    in_store = loader(tars[1], skip=True)
    s3.faults += ["refused"] * 100
    with pytest.raises(StoreError, match="not allowed"):
        list(in_store)
