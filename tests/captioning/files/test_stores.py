"""Files in an object store whose answers are slow, broken, late or none."""

import pytest

from captioning.files import stores
from captioning.runtime.errors import UserError
from tests.captioning.object_store import FAULTS

DATA = bytes(range(256)) * 100
PIECE = 10_000


@pytest.fixture
def address(s3, monkeypatch):
    """Return the address of a file of DATA, which is read in pieces of PIECE."""
    monkeypatch.setattr(stores, "PIECE", PIECE)
    s3.files.pipe_file("bucket/within/a.bin", DATA)
    s3.requests.clear()
    return "s3://bucket/within/a.bin"


@pytest.mark.parametrize("faults", [[], list(FAULTS) * 2])
def test_parts_and_the_whole_are_read_whatever_fails_on_the_way(s3, address, faults):
    s3.faults += faults
    with stores.open_file(address) as file:
        assert file.read() == DATA
        file.seek(-5, 2)
        s3.faults += faults
        assert file.read(9) == DATA[-5:]
    s3.faults += faults
    places = [(address, first, 100) for first in range(0, 2000, 100)]
    assert stores.read_ranges(places) == [DATA[n : n + 100] for n in range(0, 2000, 100)]
    assert s3.faults == []


def test_another_file_of_the_name_has_another_stamp(s3, address):
    before = stores.stamp(address)
    assert before[0] == len(DATA) and stores.stamp(address) == before
    s3.files.pipe_file(address, DATA[::-1])
    assert stores.stamp(address) != before


def test_what_is_gone_is_told_beside_what_is_there(s3, address):
    lost = "s3://bucket/within/lost.bin"
    found = stores.read_ranges([(address, 0, 2), (lost, 0, 2), (address, 2, 2)])
    assert found[::2] == [DATA[:2], DATA[2:4]]
    assert str(found[1]) == f"{lost}: no such file or bucket"
    assert type(found[1]) is stores.Missing
    with pytest.raises(UserError, match="no such file or bucket"):
        stores.open_file("s3://no-bucket/a.bin")


def test_what_is_not_allowed_is_told_at_once_and_no_secret_with_it(s3, address):
    s3.faults += ["refused"] * 50
    with pytest.raises(stores.StoreError, match=r"a.bin: not allowed: give credentials where s3fs"):
        stores.read_range(address, 0, 2)
    assert s3.requests["GET"] <= 2


def test_an_address_that_nobody_answers(s3, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(stores, "TRIES", 2)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(stores.StoreError) as error:
        stores.stamp("s3://bucket/a.bin")
    assert "s3://bucket/a.bin: 2 requests failed" in str(error.value)
    assert "S3CR3T" not in str(error.value) and error.value.__cause__ is None


def test_a_library_that_is_missing_is_named(monkeypatch):
    import fsspec

    def missing(*_, **__):
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UserError, match="gs://b/a: needs the gcsfs library: pip install gcsfs"):
        stores.stamp("gs://b/a")


def test_no_secret_is_taken_in_an_address():
    for address in ("s3://key:S3CR3T@bucket/a", "https://host/a?token=S3CR3T"):
        with pytest.raises(UserError, match="may contain a secret") as error:
            stores.check_address(address)
        assert "S3CR3T" not in str(error.value)
    stores.check_address("s3://bucket/a")
