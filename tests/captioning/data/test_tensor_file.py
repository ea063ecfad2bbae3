"""A made-up `coco.pt`: its pixels and words as files, what is refused, and a run on it."""

import re

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
    made = {"vocab": {"idx_to_token": TOKENS, "token_to_idx": {t: n for n, t in enumerate(TOKENS)}}}
    for part, captions in SAID.items():
        pixels = noise.integers(0, 256, (len(captions), 3, side, side), dtype=np.uint8)
        made[f"{part}_images"] = torch.from_numpy(pixels)
        made[f"{part}_captions"] = torch.tensor([ids_of(caption) for caption in captions])
    return made


@pytest.fixture
def file(tmp_path):
    torch.save(content(), tmp_path / "coco.pt")
    return tmp_path / "coco.pt"


def test_pixels_and_captions_are_those_of_the_file_but_images_without_a_caption_are_left_out(
    file, tmp_path
):
    folder = tmp_path / "out"
    code, _, told = run_program("captioning.unpack", file, folder)
    assert code == 0
    assert "14 images of train, 2 without a caption left out; 3 images of val: " in told
    made, ids = content(), []
    for part, captions in SAID.items():
        samples = read_annotations(folder / f"{part}.json")
        kept = [(n, caption) for n, caption in enumerate(captions) if caption]
        assert [sample.captions for sample in samples] == [(caption,) for _, caption in kept]
        for sample, (number, _) in zip(samples, kept):
            pixels = np.asarray(load_image(folder / sample.image))
            assert np.array_equal(pixels.transpose(2, 0, 1), made[f"{part}_images"][number])
            ids.append(sample.image_id)
    assert len(set(ids)) == 17  # of both parts
    # A name tells its id, so that --images of captioning.evaluate finds it in the folder.
    assert (folder / samples[0].image).stem == f"{samples[0].image_id:06d}"


def test_unknown_words_of_the_file_are_unknown_to_a_vocabulary_too(file, tmp_path):
    """From a file in torch's old format, which the other tests do not use."""
    torch.save(content(), file, _use_new_zipfile_serialization=False)
    assert run_program("captioning.unpack", file, tmp_path / "out").code == 0
    samples = read_annotations(tmp_path / "out" / "train.json")
    words = Vocabulary.count([text for sample in samples for text in sample.captions], 20)
    assert sorted(words.words) == ["a", "cat", "dog", "red"]
    ids, _ = words.encode(["a <unk> cat", "a zebra cat"], 9)
    assert torch.equal(ids[0], ids[1]) and ids[0, 2] == words.unknown


VOCAB = "vocab must have idx_to_token"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"val_images": None}, "expected the keys train_images, .* found vocab, train_images, tra"),
        ({"vocab": {"idx_to_token": TOKENS}}, VOCAB),
        ({"vocab": {"idx_to_token": ["a"], "token_to_idx": {"a": 0}}}, "vocab has no <START>"),
        (
            {"val_images": torch.zeros(3, 3, 4, 4)},
            r"val_images must be uint8 \(N, 3, H, W\); found float32 \(3, 3, 4, 4\)",
        ),
        ({"val_images": [1]}, "val_images must be uint8 .*; found list"),
        ({"val_captions": torch.zeros(3)}, r"val_captions must be integers \(N, L\)"),
        ({"val_captions": torch.zeros(2, 6).long()}, "val has 3 images and 2 captions"),
        ({"val_captions": torch.full((3, 6), 8)}, "val_captions has ids beyond the 8 words"),
        ({"code": unpack.Split}, "has objects that could run code"),
    ],
)
def test_content_of_another_kind_is_named_in_one_line(tmp_path, changes, line):
    made = {key: value for key, value in {**content(), **changes}.items() if value is not None}
    torch.save(made, tmp_path / "coco.pt")
    command = ["captioning.unpack", tmp_path / "coco.pt", tmp_path / "out"]
    assert re.search(line, refused(*command, part=f"error: {tmp_path / 'coco.pt'}"))
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_missing_or_cut_off_is_one_line(file, tmp_path):
    missing, out = tmp_path / "none.pt", tmp_path / "out"
    refused("captioning.unpack", missing, out, part="none.pt: no such file")
    file.write_bytes(file.read_bytes()[:-3000])
    refused("captioning.unpack", file, out, part="coco.pt is damaged")
