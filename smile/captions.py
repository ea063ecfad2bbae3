"""What a captioner's `forward` begins with: how many captions each image of its batch has."""

from collections.abc import Sequence


def captions_an_image(captions: Sequence[Sequence[str]], images: int) -> int:
    """k of a batch of `images` groups of k captions. Raises ValueError where they do not match."""
    counts = [len(group) for group in captions]
    if not counts or 0 in counts or counts != counts[:1] * images:
        raise ValueError(f"{counts} captions for {images} images; each needs as many, at least one")
    return counts[0]
