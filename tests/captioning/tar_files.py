"""Tars as any program makes them, by Python's own tarfile."""

import io
import tarfile


def write_members(path, members):
    """Write a tar of (name, bytes); returns where the bytes of each begin."""
    starts = {}
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            starts[name] = tar.offset + tarfile.BLOCKSIZE
            tar.addfile(entry, io.BytesIO(data))
    return starts


def write_tar(path, photos, more=()):
    """Write a tar of photos with captions, and of further members."""
    members = []
    for photo in photos:
        members += [(photo.name, photo.read_bytes()), (f"{photo.stem}.txt", b"old")]
    write_members(path, [*members, *more])
