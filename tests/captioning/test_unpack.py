"""A made-up `coco.pt`: its pixels and words as files, and what is refused."""

import numpy as np
import pytest
import torch

from baselines import Vocabulary
from captioning import unpack
from captioning.data import load_image, read_annotations
from tests.programs import refused, run_program

TOKENS = ["<NULL>", "<START>", "<END>", "<UNK>", "a", "dog", "red", "cat"]
SAID = {
    "train": ["a red dog", "a <unk> cat", "dog", "", "a cat", "red", "a dog", "a red cat"] * 2,
    "val": ["a cat", "a red <unk>", "dog"],
}


def ids_of(caption):
    numbers = {token.lower(): number for number, token in enumerate(TOKENS)}
    row = [1, *(numbers[word] for word in caption.split()), 2]
    return row + [0] * (6 - len(row))


def content(side=32):
    noise = np.random.default_rng(7)
    made = {"vocab": {"idx_to_token": TOKENS}}
    for part, captions in SAID.items():
        pixels = noise.integers(0, 256, (len(captions), 3, side, side), dtype=np.uint8)
        made[f"{part}_images"] = torch.from_numpy(pixels)
        made[f"{part}_captions"] = torch.tensor([ids_of(caption) for caption in captions])
    return made


@pytest.mark.parametrize("new_format", [True, False])
def test_images_with_a_caption_become_files_and_unknown_words_stay_unknown(tmp_path, new_format):
    file, folder = tmp_path / "coco.pt", tmp_path / "out"
    torch.save(content(), file, _use_new_zipfile_serialization=new_format)
    code, _, told = run_program("captioning.unpack", file, folder)
    assert code == 0
    assert "14 images of train, 2 without a caption left out; 3 images of val: " in told
    made, ids, texts = content(), [], []
    for part, captions in SAID.items():
        samples = read_annotations(folder / f"{part}.json")
        kept = [(n, caption) for n, caption in enumerate(captions) if caption]
        assert [sample.captions for sample in samples] == [(caption,) for _, caption in kept]
        for sample, (number, caption) in zip(samples, kept):
            pixels = np.asarray(load_image(folder / sample.image))
            assert np.array_equal(pixels.transpose(2, 0, 1), made[f"{part}_images"][number])
            ids.append(sample.image_id)
            texts.append(caption)
    assert len(set(ids)) == 17  # of both parts
    # A name tells its id, so that --images of captioning.evaluate finds it in the folder.
    assert (folder / samples[0].image).stem == f"{samples[0].image_id:06d}"
    words = Vocabulary.count(texts, 20)
    ids, _ = words.encode(["a <unk> cat", "a zebra cat"], 9)
    assert torch.equal(ids[0], ids[1]) and ids[0, 2] == words.unknown


@pytest.mark.parametrize(
    "changes",
    [
        {"val_images": None},
        {"vocab": {}},
        {"vocab": {"idx_to_token": ["a"] * 8}},
        {"val_images": torch.zeros(3, 3, 4, 4)},
        {"val_images": [1]},
        {"val_captions": torch.zeros(3)},
        {"val_captions": torch.zeros(2, 6).long()},
        {"val_captions": torch.full((3, 6), 8)},
        {"val_captions": torch.full((3, 6), -1)},
    ],
)
def test_other_content_is_one_line_that_says_what_is_expected(tmp_path, changes):
    made = {key: value for key, value in {**content(), **changes}.items() if value is not None}
    torch.save(made, tmp_path / "coco.pt")
    command = ["captioning.unpack", tmp_path / "coco.pt", tmp_path / "out"]
    refused(*command, part="coco.pt: expected a dict of train_images and val_images, uint8 (N, 3")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_missing_or_cut_off_or_could_run_code_is_one_line(tmp_path):
    file, out = tmp_path / "coco.pt", tmp_path / "out"
    refused("captioning.unpack", file, out, part="coco.pt: no such file")
    torch.save({**content(), "code": unpack.Split}, file)
    refused("captioning.unpack", file, out, part="has objects that could run code")
    file.write_bytes(file.read_bytes()[:-3000])
    refused("captioning.unpack", file, out, part="coco.pt is damaged")
