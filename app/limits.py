"""What the page refuses, so that one visitor cannot take all of the machine."""

from typing import NamedTuple


class Limits(NamedTuple):
    """upload_mb: of one file, of 2 ** 20 bytes as Gradio counts them; pixels: of one photo; photos:
    of a batch; queue: callers that wait for their turn, beyond which others are sent away."""

    upload_mb: float = 20.0
    pixels: int = 50_000_000
    photos: int = 100
    queue: int = 20

    @property
    def upload_bytes(self) -> int:
        return int(self.upload_mb * 2**20)
