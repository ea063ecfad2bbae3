"""Files of the Hugging Face hub: new ones, kept ones, and none."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from BLIP.weights import download as hub


class Calls(list):
    """What the hub is asked, and, in `siblings`, what it says of its files."""


@pytest.fixture
def hub_calls(monkeypatch, tmp_path):
    """Return what the hub is asked; it has every repository but those whose name begins with no.

    Every file of it holds b"content".
    """
    calls = Calls()

    def repo_info(self, repository, **where):
        calls.append(("info", repository, where))
        if repository.startswith("no/"):
            raise ConnectionError("no such repository, or no network")
        return SimpleNamespace(siblings=siblings)

    def fetch(repository, filename, **where):
        calls.append(("fetch", repository, filename, where))
        path = tmp_path / filename
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"content")
        return str(path)

    lfs = SimpleNamespace(sha256=hashlib.sha256(b"content").hexdigest())
    siblings = [SimpleNamespace(rfilename="a/b.json", size=7, lfs=lfs)]
    calls.siblings = siblings

    monkeypatch.setattr(hub.HfApi, "repo_info", repo_info)
    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: object())
    return calls


def test_a_file_is_fetched(hub_calls, tmp_path):
    assert hub.hub_file("some/model", "a/b.json", "space", "v1") == tmp_path / "a/b.json"
    where = {"repo_type": "space", "revision": "v1"}
    assert hub_calls == [
        ("info", "some/model", {**where, "timeout": hub.HUB_TIMEOUT_S, "files_metadata": True}),
        ("fetch", "some/model", "a/b.json", where),
    ]


def test_without_the_hub_nothing_is_tried_again(hub_calls):
    with pytest.raises(ConnectionError):
        hub.hub_file("no/model", "config.json")
    assert [call[0] for call in hub_calls] == ["info"]


def test_a_kept_file_needs_no_hub(hub_calls, monkeypatch, tmp_path):
    monkeypatch.undo()
    folder = tmp_path / "models--no--model"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def unreachable(self, *_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(hub.HfApi, "repo_info", unreachable)
    cached = hub.hub_file("no/model", "config.json")
    assert isinstance(cached, Path) and cached.read_text() == "{}"
    with pytest.raises(ConnectionError):
        hub.hub_file("no/model", "absent.json")


def test_a_file_of_another_hash_is_refused(hub_calls, tmp_path):
    hub_calls.siblings[0].lfs.sha256 = "0" * 64
    with pytest.raises(ValueError, match=r"b\.json has not the sha256 that the hub states"):
        hub.hub_file("some/model", "a/b.json")
    assert not (tmp_path / "a" / "b.json").exists()


def test_a_file_above_the_limit_is_not_fetched(hub_calls):
    hub_calls.siblings[0].size = hub.LARGEST + 1
    with pytest.raises(ValueError, match="has 17179869185 bytes, more than the 17179869184"):
        hub.hub_file("some/model", "a/b.json")
    assert [call[0] for call in hub_calls] == ["info"]


def test_a_hub_without_tls_is_not_asked(hub_calls, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://mirror")
    with pytest.raises(ValueError, match="HF_ENDPOINT is http://mirror: only https:// is used"):
        hub.hub_file("some/model", "a/b.json")
    assert hub_calls == []
