"""Reads tars of samples in webdataset's format, for bulk captioning and training.

A sample is the adjacent members with one key. The key is a member's name up to the first dot of its
file name. A sample has an image, the first member with the suffix of an image, and captions: the
lines of KEY.txt, or those in KEY.json, which may have other columns, too. The texts of an image
KEY.v2.png may also be KEY.v2.txt and KEY.v2.json.
"""

import os
import tarfile
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Optional

from captioning.files import stores
from captioning.files.columns import Row, row_of
from captioning.files.images import is_image
from captioning.files.reading import parse_json
from captioning.runtime.errors import UserError, one_line

SUFFIXES = (".tar", ".tar.gz", ".tgz")
MAX_BYTES = 1 << 30  # of an image or a text: a small compressed tar can be huge when unpacked


class BrokenTar(UserError):
    """A tar is cut off or damaged. An error of the disk or the store is another UserError."""


class Sample(NamedTuple):
    """A sample of a tar.

    - name: TAR/KEY.SUFFIX, in which TAR is the tar's path or address
    - position, size: where the image's bytes are in the unpacked tar
    - data: these bytes, if they were asked for
    - json, txt: the contents of KEY.json and KEY.txt; empty if there are none
    """

    name: str
    key: str
    position: int
    size: int
    data: Optional[bytes]
    json: bytes = b""
    txt: bytes = b""

    @property
    def row(self) -> Row:
        """The columns of KEY.json, with the captions of KEY.txt. Raises UserError."""
        try:
            json, captions = (text.decode("utf-8-sig") for text in (self.json, self.txt))
        except UnicodeDecodeError:
            raise UserError(f"{self.name}: its captions are not UTF-8 text") from None
        columns = parse_json(json or "{}", self.name)
        columns = {**columns, "image_id": self.key} if isinstance(columns, dict) else {}
        if captions:
            columns["captions"] = list(map(str.strip, captions.split("\n")))
        return row_of(columns, self.name)


def is_tars(source: str) -> bool:
    """Return whether a name is that of a tar or a pattern of tars."""
    return source.lower().endswith(SUFFIXES) and not os.path.isdir(source)


def expand(source: str) -> list[str]:
    """Return the tars of a brace pattern such as shards/{00000..00099}.tar.

    Raises UserError for a malformed pattern, and if a tar on disk is missing. For a missing tar in
    a store, the error is raised later, when the tar is read.
    """
    from webdataset.shardlists import expand_urls

    if stores.is_store(source):
        stores.check_address(source)
    if os.path.isfile(source):  # its name may have braces
        return [source]
    try:
        urls = expand_urls(source)
    except ValueError:
        raise UserError(f"{source}: not a pattern of tars such as {{00..99}}.tar") from None
    missing = [url for url in urls if not stores.is_store(url) and not os.path.isfile(url)]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(urls)} tars are missing, the first is {missing[0]}"
        )
    return urls


def samples(
    url: str, with_data: bool = True, left_out: Optional[list[str]] = None
) -> Iterator[Sample]:
    """Yield the samples of a tar that have an image. Raises BrokenTar, UserError.

    The sample in which a broken tar ends is not yielded.

    - with_data: whether to read the images. Without them the tar must not be compressed
    - left_out: a list that gets the names of files that are not yielded: further images of a
      sample, images with the name of an earlier image, and a file of each sample without an image
    """
    left_out, seen = [] if left_out is None else left_out, set()
    mode = "r|*" if with_data else "r:"
    with stores.read_errors(url), stores.open_file(url) as file:
        try:
            with tarfile.open(fileobj=file, mode=mode, tarinfo=_Member) as tar:
                for key, members in groupby(_members(tar), itemgetter(0)):
                    image, texts, other = None, {}, None
                    for _, suffix, member in members:
                        name, (stem, _, kind) = f"{url}/{key}.{suffix}", suffix.rpartition(".")
                        if kind in ("json", "txt"):
                            texts[suffix] = _content(tar, member)
                        elif not is_image(name):
                            other = name
                        elif image or name in seen:
                            left_out.append(name)
                        else:
                            data = _content(tar, member, with_data)
                            image = Sample(name, key, member.offset_data, member.size, data)
                            image_stem = stem
                    if image:
                        seen.add(image.name)
                        json, txt = (
                            texts.get(f"{image_stem}.{kind}", texts.get(kind, b""))
                            for kind in ("json", "txt")
                        )
                        yield image._replace(json=json, txt=txt)
                    elif other:
                        left_out.append(other)
        except (UserError, OSError):
            raise
        except Exception as error:  # of tarfile or a decompressor
            raise BrokenTar(f"{url}: cannot be read further: {one_line(error)}") from None


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, with_data: bool = True) -> bytes:
    if member.size > MAX_BYTES:
        raise tarfile.ReadError(f"{member.name} has {member.size:,} bytes")
    return tar.extractfile(member).read() if with_data else None


def _members(tar: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Yield (key of the sample, suffix, member) for each file that belongs to a sample."""
    from webdataset.tariterators import base_plus_ext

    for member in tar:
        tar.members = []  # tarfile would keep all
        key, suffix = base_plus_ext(member.name)
        if key and member.isreg():
            yield key, suffix.lower(), member
    if not getattr(tar, "has_end", False):
        raise tarfile.ReadError("it has no end marker: it was cut off or is damaged")


class _Member(tarfile.TarInfo):
    """A header that tells its tar when it is the end marker, which tarfile does not require."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> "_Member":
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:
            tar.has_end = True
            raise
