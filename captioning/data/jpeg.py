"""Detects JPEGs that would take very long to decode."""

import re
from typing import BinaryIO

# A JPEG can have one scan per ten bytes, and a decoder processes all pixels for each scan, so that
# a small file could take very long. Encoders write about ten scans; libtiff also allows 100.
# Metadata is split into segments of up to 64 kB, so that 60 MB of metadata are about 1000 segments.
MAX_SCANS, MAX_SEGMENTS = 100, 10_000
_CHUNK_BYTES = 1 << 14  # read at once to look for the next marker
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # excludes stuffed zeros and restart markers
# Marker codes: SOF0 and SOF1, SOS, EOI, and TEM, which has no length field.
_SEQUENTIAL_FRAME, _START_OF_SCAN, _END_OF_IMAGE, _WITHOUT_LENGTH = (0xC0, 0xC1), 0xDA, 0xD9, 0x01


def has_many_scans(file: BinaryIO) -> bool:
    """Return whether the first JPEG in a file exceeds MAX_SCANS or MAX_SEGMENTS.

    Looks only at markers and headers, and decodes no pixels.
    """
    position, scans, segments, components = 2, 0, 0, None  # every JPEG begins with two bytes, SOI
    while scans <= MAX_SCANS and segments <= MAX_SEGMENTS:
        file.seek(position)
        chunk = file.read(_CHUNK_BYTES)
        match = _MARKER.search(chunk)
        if match is None:
            if len(chunk) < _CHUNK_BYTES:
                return False  # the file is truncated
            position += _CHUNK_BYTES - 1  # the last byte may be the first of a marker
            continue
        marker, position = chunk[match.end() - 1], position + match.end()
        segments += 1
        if marker == _END_OF_IMAGE:
            return False
        if marker == _WITHOUT_LENGTH:
            continue
        file.seek(position)
        header = file.read(8)
        if marker in _SEQUENTIAL_FRAME:
            components = header[7:8]
        elif marker == _START_OF_SCAN:
            scans += 1
            # In a sequential JPEG, a scan of all components is the only scan.
            if scans == 1 and header[2:3] == components:
                return False
        position += max(int.from_bytes(header[:2], "big"), 2)
    return True
