"""Files of the Hugging Face hub: new, cached, and refused."""

import hashlib
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from BLIP.weights import download as hub

URL = "https://huggingface.co/spaces/some/model/resolve/v1/a/b.json"


@pytest.fixture
def stated(monkeypatch, tmp_path):
    """Return what the hub states about every file, with the `calls`; each file holds b"content"."""
    hashed = hashlib.sha256(b"content").hexdigest()
    stated = SimpleNamespace(size=7, etag=hashed, error=None, calls=[])

    def metadata(url, timeout):
        stated.calls.append(url)
        if stated.error:
            raise stated.error
        if "/no/" in url:
            raise ConnectionError("no such repository, or no network")
        return stated

    def fetched(repository, filename, **where):
        stated.calls.append((repository, filename, where))
        path = tmp_path / filename
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"content")
        return str(path)

    monkeypatch.setattr(hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(hub, "hf_hub_download", fetched)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return stated


def write_cache(folder):
    """Write the cache of a repository that has a config.json."""
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")


@pytest.mark.parametrize("etag", ["", "0" * 40])  # "": the file's own SHA-256
def test_a_new_file_is_fetched(stated, tmp_path, etag):
    stated.etag = etag or stated.etag
    assert hub.hub_file("some/model", "a/b.json", "space", "v1") == tmp_path / "a/b.json"
    where = {"repo_type": "space", "revision": "v1"}
    assert stated.calls == [URL, ("some/model", "a/b.json", where)]


def test_without_a_network_a_cached_file_is_used_and_nothing_is_retried(stated, tmp_path):
    write_cache(tmp_path / "models--no--model")
    assert hub.hub_file("no/model", "config.json").read_text() == "{}"
    with pytest.raises(ConnectionError):
        hub.hub_file("no/model", "absent.json")
    assert len(stated.calls) == 2


def test_a_file_that_was_removed_from_the_hub_is_not_used_from_the_cache(stated, tmp_path):
    write_cache(tmp_path / "models--some--model")
    stated.error = EntryNotFoundError("404")
    with pytest.raises(EntryNotFoundError):
        hub.hub_file("some/model", "config.json")
    stated.error = LocalEntryNotFoundError("no network")
    assert hub.hub_file("some/model", "config.json").read_text() == "{}"


def test_a_file_with_another_hash_is_refused(stated, tmp_path):
    stated.etag = "0" * 64
    with pytest.raises(ValueError, match=r"b\.json does not have the sha256 that the hub states"):
        hub.hub_file("some/model", "a/b.json")
    assert not (tmp_path / "a" / "b.json").exists()


def test_a_file_above_the_limit_is_not_fetched(stated):
    stated.size = hub.LARGEST + 1
    with pytest.raises(
        ValueError, match="has 17179869185 bytes, which exceeds the limit of 17179869184"
    ):
        hub.hub_file("some/model", "a/b.json")
    assert len(stated.calls) == 1


def test_a_hub_without_tls_is_not_asked(stated, monkeypatch):
    template = "http://mirror/{repo_id}/resolve/{revision}/{filename}"
    for module in ("constants", "file_download"):  # where older versions read it
        name = f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE"
        monkeypatch.setattr(name, template, raising=False)
    with pytest.raises(ValueError, match="HF_ENDPOINT gives http://mirror"):
        hub.hub_file("some/model", "a/b.json")
    assert stated.calls == []


def test_a_kind_needs_a_repository_and_a_file():
    """Without a file, "spaces/owner" would be read as a model's repository."""
    with pytest.raises(hub.DownloadError, match=r"is not hf://\[spaces/\]owner/name"):
        hub.fetch("hf://spaces/owner/name")
