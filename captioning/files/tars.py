"""Expands name patterns of tar shards in webdataset's format, and reads tars within size limits."""

import os
import re
import tarfile
from collections.abc import Iterator
from typing import Any

from captioning.files import stores
from captioning.runtime.errors import UserError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
# Limits for a member of a tar, because a small compressed tar can be huge when unpacked. The second
# limit is for the member's headers, such as long names, PAX records and maps of sparse files.
MAX_MEMBER_BYTES = 1 << 30
MAX_HEADER_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 24  # limit for a member with captions or other fields

_META = re.compile(r"__[^/]*__(/|$)")  # names of members with webdataset's metadata of the tar


def is_tars(source: str) -> bool:
    path = source.partition("?")[0] if stores.is_store(source) else source
    return path.endswith(SUFFIXES)


class Tar(tarfile.TarFile):
    """A tar that is read sequentially. The size of headers is limited."""

    def __init__(self, name=None, mode="r", fileobj=None, **settings: Any):
        super().__init__(name, mode, _LimitedFile(fileobj), **settings)

    def each(self) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
        """Yield (key of the sample, suffix, member) for each file that belongs to a sample.

        Members are not kept in memory. Raises TarError, EOFError, zlib.error.
        """
        from webdataset.tariterators import base_plus_ext

        for member in self:  # in Python 3.9, next() fails at the end of an empty tar
            self.members = []
            self.fileobj.left = MAX_HEADER_BYTES
            key, suffix = base_plus_ext(member.name)
            if key is not None and member.isreg() and not _META.match(member.name):
                yield key, suffix.lower(), member

    def content(self, member: tarfile.TarInfo) -> bytes:
        """Return the bytes of the member that `each` has just yielded."""
        self.fileobj.left += member.size
        return self.extractfile(member).read()


class _LimitedFile:
    """A file of which `left` more bytes may be read.

    Without a limit, tarfile would read a header of any size into memory.
    """

    def __init__(self, file: Any):
        self.file, self.left = file, MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        self.left -= size
        if self.left < 0:
            raise tarfile.ReadError(f"a header has more than {MAX_HEADER_BYTES:,} bytes")
        return self.file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def expand(source: str) -> list[str]:
    """Return the tars of a brace pattern such as shards/{00000..00099}.tar.

    Raises UserError for a malformed pattern, and if a tar on disk is missing. For a missing tar in
    a store, the error is raised later, when the tar is read.
    """
    from webdataset.shardlists import expand_urls

    if stores.is_store(source):
        stores.check_address(source)
    try:
        urls = expand_urls(source)
    except ValueError as error:
        raise UserError(f"{source}: not a pattern of tars: {error}") from None
    for url in filter(stores.is_store, urls):
        stores.check_address(url)
    missing = [url for url in urls if not stores.is_store(url) and not os.path.isfile(url)]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(urls)} tars are missing, the first is {missing[0]}"
        )
    return urls
