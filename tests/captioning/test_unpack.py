"""A made-up `coco.pt`: its pixels and words as files, and what is refused."""

import numpy as np
import pytest
import torch

from baselines.vocabulary import Vocabulary
from captioning.data.annotations import read_annotations
from captioning.data.image import load_image
from tests.programs import refused, run_program

TOKENS = ["<NULL>", "<START>", "<END>", "<UNK>", "a", "dog", "red", "cat"]
SAID = {"train": ["a red dog", "a <unk> cat", "", "dog"] * 3, "val": ["a cat", "a red <unk>"]}


def content():
    noise, tokens = np.random.default_rng(7), [token.lower() for token in TOKENS]
    made = {"vocab": {"idx_to_token": TOKENS}}
    for part, captions in SAID.items():
        pixels = noise.integers(0, 256, (len(captions), 3, 32, 32), dtype=np.uint8)
        made[f"{part}_images"] = torch.from_numpy(pixels)
        rows = [[1, *map(tokens.index, caption.split()), 2, *[0] * 5] for caption in captions]
        made[f"{part}_captions"] = torch.tensor([row[:6] for row in rows])
    return made


@pytest.mark.parametrize("new_format", [True, False])
def test_images_with_a_caption_become_files(tmp_path, new_format):
    file, folder, made = tmp_path / "coco.pt", tmp_path / "out", content()
    made["train_captions"][0][4] = 0  # instead of <END>
    torch.save(made, file, _use_new_zipfile_serialization=new_format)
    code, _, told = run_program("captioning.unpack", file, folder)
    assert code == 0
    assert "9 images of train, 3 without a caption left out; 2 images of val: " in told
    assert "1 captions of train were cut: they have no <END>" in told and "of val were" not in told
    ids = []
    for part, captions in SAID.items():
        samples = read_annotations(folder / f"{part}.json")
        kept = [(n, caption) for n, caption in enumerate(captions) if caption]
        assert [sample.captions for sample in samples] == [(caption,) for _, caption in kept]
        for sample, (number, _) in zip(samples, kept):
            pixels = np.asarray(load_image(folder / sample.image))
            assert np.array_equal(pixels.transpose(2, 0, 1), content()[f"{part}_images"][number])
            # A name tells its id, so that --images of captioning.evaluate finds it in the folder.
            assert (folder / sample.image).stem == f"{sample.image_id:06d}"
            ids.append(sample.image_id)
    assert len(set(ids)) == 11  # of both parts
    words = Vocabulary.count([*SAID["train"], *SAID["val"]], 20)
    encoded = words.encode(["a <unk> cat", "a zebra cat"], 9)
    assert torch.equal(encoded[0], encoded[1]) and encoded[0, 2] == words.unknown


NOT_EXPECTED = "coco.pt: expected a dict of train_images and val_images, uint8 (N, 3"
CHANGES = [
    {"val_images": None},
    {"vocab": {"idx_to_token": ["a"] * 8}},
    {"val_images": torch.zeros(2, 3, 4, 4)},
    {"val_captions": torch.zeros(3, 6).long()},
    {"val_captions": torch.full((2, 6), 8)},
]


def test_other_content_is_one_line_that_says_what_is_expected(tmp_path):
    file, out = tmp_path / "coco.pt", tmp_path / "out"
    refused("captioning.unpack", file, out, part="coco.pt: No such file")
    for changes in CHANGES:
        torch.save({**content(), **changes}, file)
        refused("captioning.unpack", file, out, part=NOT_EXPECTED)
    torch.save({**content(), "code": Vocabulary}, file)
    refused("captioning.unpack", file, out, part="has objects that could run code")
    file.write_bytes(file.read_bytes()[:-3000])
    refused("captioning.unpack", file, out, part="coco.pt is damaged")
    assert not out.exists()
