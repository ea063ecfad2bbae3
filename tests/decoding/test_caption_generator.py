"""What captioners share."""

import pytest

from decoding.caption_generator import captions_per_image


def test_every_image_has_as_many_captions():
    assert captions_per_image([["a", "b"], ["c", "d"], ["e", "f"]], 3) == 2
    for wrong, images in (([], 0), ([["a"], []], 2), ([[], []], 2), ([["a"]], 2)):
        with pytest.raises(ValueError, match=f"captions for {images} images; give each"):
            captions_per_image(wrong, images)
