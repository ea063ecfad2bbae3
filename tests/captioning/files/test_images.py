"""Which files are images, by their names, agrees with what is read; folders and links in them."""

import os
from unittest.mock import Mock

import pytest
from PIL import Image

from captioning.data.image import load_image
from captioning.files.images import FORMATS, SUFFIXES, images_in
from captioning.runtime.errors import UserError


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_a_file_of_each_suffix_is_found_and_read(tmp_path, suffix):
    Image.init()  # fills Image.SAVE
    name = next(name for name, suffixes in FORMATS.items() if suffix in suffixes)
    if name not in Image.SAVE:
        pytest.skip(f"this Pillow writes no {name}")
    path = tmp_path / f"photo{suffix.upper()}"
    Image.new("RGB", (9, 8), "red").save(path, format=name)
    assert list(images_in(str(tmp_path))) == [str(path)]
    assert load_image(path).size == (9, 8)


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(os, "scandir", Mock(side_effect=refused))
    with pytest.raises(UserError, match=r"cannot read the folder .*: Permission denied"):
        list(images_in(str(tmp_path)))
