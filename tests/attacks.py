"""Files that hold a pickle, which must not be run."""

import os
import pickle

import numpy as np
import torch


class Attack:
    """A pickle that makes a folder when it is read."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def attacks(tmp_path):
    """Files of every form that holds a pickle."""
    torch.save({"model": {"w": torch.ones(2)}, "x": Attack()}, tmp_path / "beside weights.pth")
    torch.save(Attack(), tmp_path / "no weights.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "pickle.pth").write_bytes(pickle.dumps(Attack(), 2))
    objects = np.array([Attack(), None], dtype=object)
    np.savez(tmp_path / "a.npz", features=objects, files=["x"])
    with open(tmp_path / "b.npz", "wb") as file:
        np.save(file, objects, allow_pickle=True)
    return sorted(tmp_path.glob("*.pth")), sorted(tmp_path.glob("*.npz"))
