"""A visitor's file: a photo within the limits, turned upright, or one line."""

import pytest
from PIL import Image

from app.photos import Limits, read_photo
from captioning.runtime.errors import UserError

LIMITS = Limits(pixels=1_000_000)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("notes.jpg", "not a readable image"),
        ("cut.jpg", "not a readable image .*truncated"),
        ("huge.png", "6000 x 4000 pixels; this page takes up to 1 million"),
    ],
)
def test_errors_have_the_visitors_file_name(files, name, message):
    with pytest.raises(UserError, match=f"^my file: .*{message}") as caught:
        read_photo(files / name, "my file", LIMITS)
    assert str(files) not in str(caught.value) and "\n" not in str(caught.value)


def test_a_photo_is_turned_upright(tmp_path):
    lying = Image.new("RGB", (30, 20), "white")
    lying.paste("black", (0, 0, 15, 20))  # black on the left
    lying.save(tmp_path / "plain.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: the left side is the top
    lying.save(tmp_path / "turned.png", exif=exif)
    assert read_photo(tmp_path / "plain.png", "a", LIMITS).tobytes() == lying.tobytes()
    upright = read_photo(tmp_path / "turned.png", "a", LIMITS)
    assert upright.size == (20, 30)
    assert upright.getpixel((10, 2)) == (0, 0, 0) and upright.getpixel((10, 28)) == (255,) * 3
