"""Reads and writes images in tar shards of the webdataset format."""

import contextlib
import io
import itertools
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Optional

from captioning.bulk.shards import OutputLine, captions_of
from captioning.data.image import open_image
from captioning.files import stores, tables
from captioning.files.images import FORMATS, is_image
from captioning.files.reading import parse_json
from captioning.files.tars import MAX_MEMBER_BYTES, MAX_TEXT_BYTES, Tar
from captioning.runtime.errors import UserError


class SampleImage(NamedTuple):
    """The image of a webdataset sample.

    name: TAR/KEY.SUFFIX, in which TAR is the tar's path or address. key: the sample's key. data:
    the bytes of the image file. text: the content of the sample's member KEY.json, if any.
    """

    name: str
    key: str
    data: bytes
    text: Optional[bytes] = None

    def fields(self) -> dict[str, Any]:
        """Return the fields in the sample's KEY.json; {} without them. Raises UserError."""
        try:
            found = parse_json((self.text or b"{}").decode("utf-8-sig"), self.name)
        except UnicodeDecodeError:
            raise UserError(f"{self.name}: its .json is not UTF-8 text") from None
        return found if isinstance(found, dict) else {}


def estimate(urls: Sequence[str]) -> Optional[int]:
    """Estimate the number of images in tars from the first tar and the sizes of all tars.

    Returns None if a tar is in a store, or if the first tar cannot be read.
    """
    if any(map(stores.is_store, urls)):
        return None
    sizes = [os.path.getsize(url) for url in urls]
    try:
        with open(urls[0], "rb") as file, Tar.open(fileobj=file) as tar:
            count = sum(is_image(member.name) for _, _, member in tar.each())
    except (tarfile.TarError, OSError, EOFError):
        return None
    return round(count * sum(sizes) / max(sizes[0], 1))


def members(url: str) -> Iterator[SampleImage]:
    """Yield the images of a tar in order.

    Samples without an image are left out. If a sample has several images, or several images have
    the same name, only the first is yielded. A broken tar raises an error of tarfile or gzip; the
    sample in which the tar breaks off is not yielded. Raises ValueError for a file that is too
    large.
    """
    key, text, seen = None, None, set()
    held = []  # the sample's image, until the sample ends, because KEY.json may follow the image
    with stores.open_file(url) as file, Tar.open(fileobj=file, mode="r|*") as tar:
        for found, suffix, member in tar.each():
            if found != key:
                if held:
                    yield held.pop()._replace(text=text)
                key, text, taken = found, None, False
            name = f"{key}.{suffix}"
            if suffix == "json" and member.size <= MAX_TEXT_BYTES:
                text = tar.content(member)
            if taken or not is_image(name):
                continue
            if member.size > MAX_MEMBER_BYTES:
                raise ValueError(f"{member.name} has {member.size:,} bytes, too many for an image")
            taken = True
            if name not in seen:
                seen.add(name)
                held.append(SampleImage(f"{url}/{name}", key, tar.content(member)))
    if held:
        yield held.pop()._replace(text=text)


class OutputSample(NamedTuple):
    """A sample of an output tar. suffix, data: the image file's suffix without dot, its content."""

    key: str
    suffix: str
    data: bytes
    line: OutputLine


def write(file: BinaryIO, number: int, lines: list[OutputLine], tar: Optional[str]) -> None:
    """Write an output tar with one sample for each output line of a shard.

    A sample consists of the image file, KEY.txt with one caption per line, and KEY.json with the
    output line. file: the open tar. number: the number of the output tar. tar: the input tar, which
    has the images and their KEYs; None for images in files or tables. In that case KEY is `number`
    (5 digits) and the index in the shard (6 digits).
    """
    from webdataset import TarWriter

    samples = _samples_of_images(number, lines) if tar is None else _samples_of_tar(tar, lines)
    with TarWriter(file, encoder=False, mtime=0, format="PAX_FORMAT") as writer:
        for sample in samples:
            content = {
                "__key__": sample.key,
                sample.suffix: sample.data,
                "txt": "\n".join(captions_of(sample.line)).encode(),
                "json": json.dumps(sample.line).encode(),
            }
            writer.write(content)


def _samples_of_images(number: int, lines: list[OutputLine]) -> Iterator[OutputSample]:
    for place, line in enumerate(lines):
        key, name = f"{number:05d}{place:06d}", line["image"]
        if tables.is_row(name):
            data = tables.image_bytes(name)
            with open_image(name, io.BytesIO(data)) as image:
                suffix = FORMATS.get(image.format, FORMATS["JPEG"])[0]
            yield OutputSample(key, suffix.removeprefix("."), data, line)
            continue
        # Leave out a photo that was removed since it was captioned. Only read regular files,
        # because reading a pipe would block.
        with contextlib.suppress(FileNotFoundError, stores.Missing):
            if stores.is_store(name) or os.path.isfile(name):
                suffix = os.path.splitext(name)[1].lower().removeprefix(".")
                yield OutputSample(key, suffix, stores.read_bytes(name), line)


def _samples_of_tar(tar: str, lines: list[OutputLine]) -> Iterator[OutputSample]:
    by_name = {line["image"]: line for line in lines}
    for member in itertools.takewhile(lambda _: by_name, members(tar)):  # until all are found
        line = by_name.pop(member.name, None)
        if line is not None:
            yield OutputSample(member.key, member.name.rpartition(".")[2], member.data, line)
