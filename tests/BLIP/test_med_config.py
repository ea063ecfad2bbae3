"""The sizes of decoder and encoder; bad_input/test_config.py has types and ranges."""

import pytest

from BLIP.sizes import MedConfig, read_med_config
from BLIP.vit import ImageEncoder
from tests.programs import raises_line


def test_the_shipped_file_is_bert_base(repository):
    assert read_med_config(repository / "configs" / "med_config.json") == MedConfig()


def test_invalid_sizes_are_one_line(tmp_path):
    path = tmp_path / "med.json"
    path.write_text("[]")
    for source, message in (
        ({"hiden_size": 3}, "unknown key 'hiden_size'; known keys are hidden_size, num_"),
        ({"hidden_size": 50, "num_attention_heads": 4}, "must be a multiple of num_attention_he"),
        ("/no/such/file.json", "cannot read /no/such/file.json"),
        (path, "med.json is not a JSON object"),
    ):
        with raises_line(ValueError, message, start="med_config"):
            read_med_config(source)


def test_an_image_size_that_is_no_multiple_of_the_patch_is_refused():
    with pytest.raises(ValueError, match="image_size is 100; it must be a multiple of 16"):
        ImageEncoder("base", 100)
