"""Writes tars of samples in webdataset's format: images with their captions."""

import io
import json
import os
from collections.abc import Iterator
from itertools import takewhile
from typing import BinaryIO, Optional

from captioning.bulk.plan import Line, captions_of
from captioning.data.image import open_image
from captioning.files import stores, tables
from captioning.files.images import FORMATS
from captioning.files.tars import samples


def write_samples(file: BinaryIO, number: int, lines: list[Line], tar: Optional[str]) -> None:
    """Write a tar with a sample for each line of captions: image, KEY.txt and KEY.json (the line).

    tar: the tar that has the images and their keys; None for images in files or tables. Their keys
    are `number` (5 digits) and the index of the line (6 digits). An image that was removed since it
    was captioned is left out.
    """
    from webdataset import TarWriter

    with TarWriter(file, encoder=False, mtime=0, format="PAX_FORMAT") as writer:
        for key, suffix, data, line in _of_tar(tar, lines) if tar else _of_files(number, lines):
            captions = "\n".join(captions_of(line))
            texts = {"txt": captions.encode(), "json": json.dumps(line).encode()}
            writer.write({"__key__": key, suffix: data, **texts})


def _of_tar(tar: str, lines: list[Line]) -> Iterator[tuple]:
    by_name = {line["image"]: line for line in lines}
    for sample in takewhile(lambda _: by_name, samples(tar)):  # until all are found
        if line := by_name.pop(sample.name, None):
            yield sample.key, sample.name.rpartition(".")[2], sample.data, line


def _of_files(number: int, lines: list[Line]) -> Iterator[tuple]:
    for place, line in enumerate(lines):
        name = line["image"]
        suffix = os.path.splitext(name)[1][1:].lower()
        if tables.is_row(name):
            data = tables.image_bytes(name)
            with open_image(name, io.BytesIO(data)) as image:
                suffix = FORMATS.get(image.format, [".jpg"])[0][1:]
        else:
            data = stores.read_if_any(name)
        if data:
            yield f"{number:05d}{place:06d}", suffix, data, line
