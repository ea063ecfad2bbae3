"""Images that already have captions, listed in a file or folder in any training format."""

from captioning.data.annotations import read_annotations
from captioning.data.caption_files import named_in
from captioning.files.cache import local
from captioning.runtime.errors import UserError


class ExistingCaptions:
    """The images listed in `path`. Raises UserError if `path` cannot be read."""

    def __init__(self, path: str):
        self.path = path
        self.names = {sample.image for sample in read_annotations(local(path))}
        self.images: dict[str, str] = {}  # listed name to the image of this run that has it

    def has(self, image: str) -> bool:
        """Return whether the image's path ends in a listed name.

        Raises UserError if two images match a name.
        """
        name = named_in(image, self.names)
        if name is None:
            return False
        other = self.images.setdefault(name, image)
        if other != image:
            raise UserError(
                f"--captions: {name} in {self.path} may be {other} or {image}: "
                "use longer names there"
            )
        return True

    def check_used(self, source: str) -> None:
        """Raise UserError if no image of the run is listed."""
        if not self.images:
            name = min(self.names)
            raise UserError(f"--captions: {self.path} names {name}, and no image of {source}")
