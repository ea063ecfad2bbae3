"""Files in an object store whose answers are slow, broken, late or none."""

import pytest

from captioning.files import store_requests, stores
from captioning.runtime.errors import UserError


def test_what_is_not_allowed_is_told_at_once(s3):
    s3.files.pipe_file("bucket/a.bin", b"data")
    s3.requests.clear()
    s3.faults += ["refused"] * 50
    with pytest.raises(stores.StoreError, match=r"a.bin: not allowed: give credentials where s3fs"):
        stores.read_range("s3://bucket/a.bin", 0, 2)
    assert s3.requests["GET"] <= 2


def test_an_address_that_nobody_answers_is_named_without_secrets(s3, monkeypatch):
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(store_requests, "TRIES", 2)
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
