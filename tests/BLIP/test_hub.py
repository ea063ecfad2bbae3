"""Files of the Hugging Face hub: new ones, kept ones, and none."""

from pathlib import Path

import pytest

from BLIP import hub


@pytest.fixture
def hub_calls(monkeypatch, tmp_path):
    """Return what the hub is asked; it has every repository but those whose name begins with no."""
    calls = []

    def repo_info(self, repository, **where):
        calls.append(("info", repository, where))
        if repository.startswith("no/"):
            raise ConnectionError("no such repository, or no network")

    def fetch(repository, filename, **where):
        calls.append(("fetch", repository, filename, where))
        return str(tmp_path / filename)

    monkeypatch.setattr(hub.HfApi, "repo_info", repo_info)
    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_, **__: object())
    return calls


def test_a_file_is_fetched(hub_calls, tmp_path):
    assert hub.hub_file("some/model", "a/b.json", "space", "v1") == tmp_path / "a/b.json"
    where = {"repo_type": "space", "revision": "v1"}
    assert hub_calls == [
        ("info", "some/model", {**where, "timeout": hub.TIMEOUT_S}),
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
