"""Images that have captions already, in a file or folder of any format that training reads."""

from captioning.data.annotations import read_annotations
from captioning.data.caption_files import named_in
from captioning.files.cache import local
from captioning.runtime.errors import UserError


class ExistingCaptions:
    """The images that `path` names. Raises UserError where it cannot be read."""

    def __init__(self, path: str):
        self.path = path
        self.names = {sample.image for sample in read_annotations(local(path))}
        self.images: dict[str, str] = {}  # images of this run that were found, by name

    def has(self, image: str) -> bool:
        """Whether a name is the end of the image's path. UserError if two images share a name."""
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
        """Raise UserError where no image of the run was found."""
        if not self.images:
            name = min(self.names)
            raise UserError(f"--captions: {self.path} names {name}, and no image of {source}")
