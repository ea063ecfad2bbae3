"""Files that hold a pickle, which must not be run."""

import os
import pickle

import numpy as np
import pytest
import torch


class Attack:
    """A pickle that makes a folder when it is read."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Run a test in its own folder, and assert that no pickle ran: import it where it counts."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "ran").exists()


def attacks(tmp_path):
    """Files of every form that holds a pickle."""
    content = {"model": {"w": torch.ones(2)}, "x": Attack()}
    torch.save(content, tmp_path / "beside weights.pth")
    torch.save(content, tmp_path / "old form.pth", _use_new_zipfile_serialization=False)
    torch.save(Attack(), tmp_path / "no weights.pth")
    for protocol in (0, 2):
        (tmp_path / f"pickle {protocol}.pth").write_bytes(pickle.dumps(Attack(), protocol))
    np.savez(tmp_path / "a.npz", features=np.array([Attack()]), files=np.array(["x"]))
    objects = np.array([Attack(), None], dtype=object)
    np.savez(tmp_path / "b.npz", features=objects, files=objects)
    with open(tmp_path / "c.npz", "wb") as file:
        np.save(file, objects, allow_pickle=True)
    return sorted(tmp_path.glob("*.pth")), sorted(tmp_path.glob("*.npz"))
