"""Captions that images have already, of a file or folder in any format that training reads."""

from typing import Optional

from captioning.data.annotations import read_annotations
from captioning.data.caption_files import named_in
from captioning.files.local_copies import local
from captioning.runtime.errors import UserError


class ExistingCaptions:
    """Those of one call, by the names of the images in `path`. Raises UserError."""

    def __init__(self, path: str):
        self.path = path
        self.captions = {s.image: list(s.captions) for s in read_annotations(local(path))}
        self.images: dict[str, str] = {}  # those that were asked for, by name

    def of(self, image: str) -> Optional[list[str]]:
        """The captions of the name that a path ends in, which has to be of one image alone."""
        name = named_in(image, self.captions)
        if name is None:
            return None
        other = self.images.setdefault(name, image)
        if other != image:
            raise UserError(
                f"--captions: {name} in {self.path} may be {other} or {image}: write there which"
            )
        return self.captions[name]

    def check_used(self, source: str) -> None:
        """Raise UserError where it has named none of the images."""
        if not self.images:
            first = next(iter(self.captions))
            raise UserError(f"--captions: {self.path} names {first}, and no image of {source}")
