"""Arrays in an .npz file, which is a zip archive: looked at before it is unpacked."""

import zipfile
from pathlib import Path

import numpy as np

# What numpy and zipfile raise for a file that is no archive of these arrays.
NO_ARRAYS = (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile)

LARGEST = 4 << 30  # bytes of an array unpacked: the features of two million images


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Return the arrays of these names; an array of Python objects, a pickle, is refused.

    Raises one of NO_ARRAYS, FileNotFoundError among them.
    """
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member.file_size for member in archive.infolist()}
        for name in names:
            if members.get(f"{name}.npy", 0) > LARGEST:
                raise ValueError(f"{name} unpacks to more than {LARGEST} bytes")
    with np.load(path, allow_pickle=False) as content:
        arrays = [content[name] for name in names]
    for name, array in zip(names, arrays):
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is no array")
    return arrays
