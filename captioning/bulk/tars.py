"""Images in tar shards, as the webdataset library reads and writes them."""

import contextlib
import itertools
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple, Optional

from captioning.bulk.shards import Line, captions_of
from captioning.files import stores
from captioning.files.images import is_image
from captioning.files.tars import LARGEST, Tar, is_sample, key_and_suffix


class Member(NamedTuple):
    """One sample of a tar. name: the tar's, a slash and the image's within it."""

    name: str
    key: str
    data: bytes


def estimate(urls: Sequence[str]) -> Optional[int]:
    """About how many images they hold, by the first and the sizes; None where it cannot be told."""
    if any(map(stores.is_store, urls)):
        return None
    sizes = [os.path.getsize(url) for url in urls]
    try:
        with open(urls[0], "rb") as file, Tar.open(fileobj=file) as tar:
            count = sum(is_image(member.name) for member in tar.each())
    except (tarfile.TarError, OSError, EOFError):
        return None
    return round(count * sum(sizes) / max(sizes[0], 1))


def members(url: str) -> Iterator[Member]:
    """The images of a tar, in its order. Raises whatever a broken one makes tarfile raise.

    A sample without an image is passed over. Of one with several the first counts, as of several
    images of one name.
    """
    key, taken, seen = None, False, set()
    with stores.opened(url) as file, Tar.open(fileobj=file, mode="r|*") as tar:
        for member in tar.each():
            found, suffix = key_and_suffix(member.name)
            if not member.isreg() or not is_sample(member.name) or found is None:
                continue
            if found != key:
                key, taken = found, False
            name = f"{key}.{suffix}"
            if taken or not is_image(name):
                continue
            if member.size > LARGEST:
                raise ValueError(f"{member.name} has {member.size:,} bytes, too many for an image")
            taken = True
            if name not in seen:
                seen.add(name)
                yield Member(f"{url}/{name}", key, tar.content(member))


def write(file: BinaryIO, number: int, lines: list[Line], tar: Optional[str]) -> None:
    """Write a tar of images and their lines: photos by number, those of a tar as they were there.

    Each becomes key.jpg (or whatever it is), key.txt, the captions a line each, and key.json.
    """
    from webdataset import TarWriter

    samples = _photos(number, lines) if tar is None else _members(tar, lines)
    with TarWriter(file, encoder=False, mtime=0, format="PAX_FORMAT") as writer:
        for key, name, data, line in samples:
            text = "\n".join(captions_of(line)).encode()
            content = {
                name.rpartition(".")[2]: data,
                "txt": text,
                "json": json.dumps(line).encode(),
            }
            writer.write({"__key__": key, **content})


def _photos(number: int, lines: list[Line]) -> Iterator[tuple[str, str, bytes, Line]]:
    for place, line in enumerate(lines):
        suffix = os.path.splitext(line["image"])[1].lower()
        # It may have been removed or replaced by a pipe since it was captioned.
        with contextlib.suppress(FileNotFoundError, stores.Missing):
            if stores.is_store(line["image"]) or os.path.isfile(line["image"]):
                yield f"{number:05d}{place:06d}", suffix, stores.whole(line["image"]), line


def _members(tar: str, lines: list[Line]) -> Iterator[tuple[str, str, bytes, Line]]:
    by_name = {line["image"]: line for line in lines}
    for member in itertools.takewhile(lambda _: by_name, members(tar)):  # no further than read
        line = by_name.pop(member.name, None)
        if line is not None:
            yield member.key, member.name, member.data, line
