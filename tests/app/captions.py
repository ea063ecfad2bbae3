"""A caption of the page's service, without a server."""

import tempfile
from pathlib import Path


def caption_of(service, photo, checkpoint, options):
    """Return the caption of an image by one checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "photo.png")
        photo.save(path)
        return service.caption_file(path, path.name, [checkpoint.label], options)[1][0]
