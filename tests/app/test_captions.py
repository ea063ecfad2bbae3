"""Captions of visitors' photos with their settings, and what is shown and stored of them."""

import base64
import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from app import view
from app.captions import Answer, read_photo
from app.options import default_settings
from captioning.data.image import evaluation_transform
from captioning.models.score_tokens import ScoredCaption
from captioning.runtime.errors import UserError


@pytest.fixture
def ask(service, files):
    """Return a function from settings to the answer about photo.jpg by the first checkpoint."""

    def answer(name="photo.jpg", **settings):
        own = {**default_settings(service.checkpoints[0].config), "checkpoints": ["MLE"]}
        return service.answer([(str(files / name), {**own, **settings})])[0]

    return answer


GREEDY = {"num_beams": 1, "repetition_penalty": 1.5, "length_penalty": 2.0}
SAMPLE = {"sample": True, "temperature": 3.0, "top_p": 0.5, "top_k": 9}


@pytest.mark.parametrize("given", [{}, GREEDY, SAMPLE, {"prompt": "a large star "}], ids=str)
def test_a_caption_is_the_captioners_own(service, files, ask, monkeypatch, given):
    """A prompt holds for one caption."""
    (record,) = ask(**given, seed=6).record()
    checkpoint = service.checkpoints[0]
    captioner, prompt = checkpoint.captioner, given.get("prompt", "a picture of ")
    assert captioner.prompt == "a picture of "
    monkeypatch.setattr(captioner, "prompt", prompt)
    monkeypatch.setattr(captioner, "prompt_ids", captioner.tokenizer.encode_prompt(prompt))
    changes = {name: value for name, value in given.items() if name != "prompt"}
    settings = replace(checkpoint.config.decoding_settings(), **changes)
    transform = evaluation_transform(checkpoint.config.image_size)
    image = transform(read_photo(files / "photo.jpg")).unsqueeze(0)
    torch.manual_seed(6)
    expected = captioner.generate_details(image, settings)
    assert record["image"] == "photo.jpg" and record["label"] == "MLE"
    assert record["caption"] == expected.captions[0][0]
    assert record["score"] == pytest.approx(expected.scores.item(), abs=1e-6)
    assert " ".join(word["word"] for word in record["words"]) == record["caption"]
    assert all(0 < word["probability"] <= 1 for word in record["words"])
    assert {**given, "prompt": prompt, "seed": 6}.items() <= record["settings"].items()
    assert record["cut"] == (len(record["words"]) == 16 - len(captioner.prompt_ids))


def test_an_error_is_one_line_of_its_own_call(service, files, ask, monkeypatch):
    """Photos are named by their file, and the next call is answered."""
    monkeypatch.setattr(service.checkpoints[0].captioner, "max_positions", 20)
    for line, given in {
        "MLE: prompt 'a zebra' has a word that the vocabulary lacks": {"prompt": "a zebra"},
        "MLE: prompt of 4 tokens, which leaves no room": {"max_length": 4, "min_length": 1},
        "MLE: max_length is 21; it has room for 20 tokens": {"max_length": 21},
        "MLE: min_length is 41, above max_length, 16": {"min_length": 41},
        "temperature: found nan": {"temperature": float("nan")},
        "unknown key 'beams'; did you mean 'num_beams'?": {"beams": 3},
        "choose one or more of MLE, SMILE, MLE+SMILE": {"checkpoints": ["GPT"]},
        "notes.jpg: not a readable image (none of": {"name": "notes.jpg"},
    }.items():
        found = ask(**given).record()["error"]
        assert line in found and "\n" not in found and str(files) not in found
    assert "caption" in ask().record()[0]


def test_calls_share_a_batch_and_a_bad_one_fails_alone(service, files, monkeypatch):
    """Samples are computed alone, so that a seed gives the same caption again."""
    captioner, sizes = service.checkpoints[0].captioner, []
    encode = captioner.encode
    monkeypatch.setattr(captioner, "encode", lambda x: sizes.append(len(x)) or encode(x))
    good, other, cut = (str(files / name) for name in ("photo.jpg", "other.png", "cut.jpg"))
    beams = {"num_beams": 2, "max_length": 16, "checkpoints": ["SMILE", "MLE"]}
    sample = {"sample": True, "max_length": 16, "temperature": 3, "seed": 4, "prompt": ""}
    calls = [(good, beams), (cut, beams), (good, sample), (other, beams), (None, beams)]
    calls += [(other, sample), (good, {**beams, "num_beams": 99}), (good, {"prompt": "a zebra"})]
    together = [answer.record() for answer in service.answer(calls)]
    assert sizes == [2, 1, 1]
    assert [r["label"] for r in together[0]] == ["MLE", "SMILE"] and len(together[2]) == 3
    for found, call in zip(together, calls):
        alone = service.answer([call])[0].record()
        if isinstance(alone, list):  # a batch may change the last digits
            for record, expected in zip(found, alone):
                expected["score"] = pytest.approx(expected["score"], abs=1e-4)
                expected["words"] = record["words"]
        assert found == alone


def test_one_photo_is_decoded_at_a_time(service, ask, monkeypatch):
    def read(*arguments):
        assert service._lock.locked()
        return read_photo(*arguments)

    monkeypatch.setattr("app.captions.read_photo", read)
    assert ask().captions and not service._lock.locked()


def test_a_photo_is_seen_upright_on_white_and_its_pixels_are_counted_first(files, tmp_path):
    lying = Image.new("RGBA", (30, 20))  # transparent
    lying.paste("black", (0, 0, 15, 20))  # on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: the left side is the top
    lying.save(tmp_path / "turned.png", exif=exif)
    upright = read_photo(tmp_path / "turned.png")
    assert upright.size == (20, 30)
    assert upright.getpixel((10, 2)) == (0, 0, 0) and upright.getpixel((10, 28)) == (255,) * 3
    with pytest.raises(UserError, match=r"^huge.png: 6000 x 4000 pixels; this page .* 1 million"):
        read_photo(files / "huge.png", 1_000_000)


def test_an_attention_map_is_bright_at_its_maximum_and_transparent_at_zero():
    side, weights = view.MAP_SIDE, torch.zeros(2, 4, 4)
    weights[0, 0, 3] = weights[1, 2, 1] = 1
    details = ScoredCaption("", 0, [], torch.zeros(2), weights)
    for place, source in zip([(0, 3), (2, 1)], view.attention_pictures(details)):
        data = base64.b64decode(source.split("base64,")[1])
        picture = np.asarray(Image.open(io.BytesIO(data)))  # (side, side, RGBA)
        row, column = np.unravel_index(picture[..., 3].argmax(), (side, side))
        assert (row * 4 // side, column * 4 // side) == place
        assert picture[row, column, :3].mean() > 200
        assert picture[side - 1 - row, side - 1 - column, 3] == 0


def test_a_card_marks_cut_captions_and_missing_maps_and_names_and_reasons_are_text(ask):
    answer, name = ask(), '"><script>alert(1)</script>.jpg'
    (caption,) = answer.captions
    answer.name = name

    def shown(template, answer):
        return view.render(template, answer=answer, answers=[answer])

    for template, mark in (("results.html", "; cut at the longest"), ("batch.html", "(cut)")):
        for is_cut in (True, False):
            caption.record["cut"] = is_cut
            assert (mark in shown(template, answer)) == is_cut
        for html in (shown(template, answer), shown(template, Answer("", error=UserError(name)))):
            assert "alert" in html and "<script" not in html
    answer.captions = [caption._replace(details=caption.details._replace(attention_map=None))]
    html = shown("results.html", answer)
    assert "it has no attention map" in html and "data-attention" not in html


def test_a_zip_has_the_captions_of_good_photos_and_the_reasons_of_bad_ones(
    service, files, tmp_path
):
    settings = {"max_length": 12, "min_length": 8, "checkpoints": ["SMILE", "MLE+SMILE 0.5:0.5"]}
    names = ["photo.jpg", "cut.jpg", "photo.jpg", "other.png"]
    answers = service.answer([(str(files / name), settings) for name in names])
    view.write_zip(answers, tmp_path / "captions.zip")
    with zipfile.ZipFile(tmp_path / "captions.zip") as archive:
        content = {name: archive.read(name).decode() for name in archive.namelist()}
    records = [json.loads(line) for line in content.pop("captions.jsonl").splitlines()]
    failed = json.loads(content.pop("failed.jsonl"))
    assert failed["image"] == "cut.jpg" and "truncated" in failed["reason"]
    assert records == [record for i in (0, 2, 3) for record in answers[i].record()]
    stems = ["photo (1)", "photo (3)", "other"]
    paths = [f"{folder}/{s}.txt" for s in stems for folder in ("SMILE", "MLE+SMILE 0.5_0.5")]
    assert content == {path: r["caption"] + "\n" for path, r in zip(paths, records)}
