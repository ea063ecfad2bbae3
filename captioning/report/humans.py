"""Human captions, scored as if one person had captioned the split."""

from collections.abc import Mapping, Sequence

from captioning.data.caption_files import Captions, ImageId, References


def held_out(references: Mapping[ImageId, Sequence[str]]) -> tuple[Captions, References]:
    """One caption of each image, and the other captions of the images that have others.

    Image i gives up caption i mod k of its k, so that every annotator has their turn.
    """
    captions: Captions = {}
    others: References = {}
    for i, (image_id, group) in enumerate(references.items()):
        chosen = i % len(group)
        captions[image_id] = group[chosen]
        rest = [caption for j, caption in enumerate(group) if j != chosen]
        if rest:
            others[image_id] = rest
    return captions, others
