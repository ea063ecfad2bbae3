"""Each topic in its smallest form, and that its contenders do the same work."""

import shutil

import numpy as np
import pytest
import torch

from benchmarks import captioning, decoding, int8, loader, objective, one_photo, training
from benchmarks.captioners import NaiveCaptioner, our_captioner, their_captioner
from benchmarks.objective import MAIN, OBJECTIVES, OURS, TINY, Problem, libraries
from benchmarks.training import CPU_BATCH, THEIRS, Training, captions, images
from BLIP.kernels.int8_linear import has_int8
from decoding import DecodingSettings


def test_the_peer_has_the_same_loss(needs_peer):
    ours = our_captioner(tiny=True).eval()
    theirs = their_captioner(ours).eval()
    image = torch.randn(2, 3, 48, 48)
    texts = ["w9 w10 w9", "w11"]
    tokens, mask = ours.tokenizer.encode([ours.prompt + text for text in texts], 40)
    labels = tokens.masked_fill(mask == 0, -100)
    labels[:, : len(ours.prompt_ids)] = -100
    output = theirs(pixel_values=image, input_ids=tokens, attention_mask=mask, labels=labels)
    torch.testing.assert_close(ours(image, [[text] for text in texts]).loss, output.loss)


def test_the_measured_captioner_is_blip_base():
    with torch.device("meta"):
        ours = our_captioner(tiny=False)
    assert len(ours.tokenizer) == 30524
    assert len(ours.state_dict()) == 474
    assert ours.visual_encoder.pos_embed.shape == (1, 577, 768)


def test_naive_captioner_makes_the_same_captions():
    captioner = our_captioner(tiny=True).eval()
    for parameter in captioner.text_decoder.parameters():
        parameter.data.mul_(10)  # so that captions depend on the image
    images = 3 * torch.randn(4, 3, 48, 48)
    settings = DecodingSettings(num_beams=3, num_return=3, max_length=12, min_length=5)
    expected = captioner.generate_details(images, settings)
    naive = NaiveCaptioner(captioner).generate_details(images, settings)
    assert len({tuple(rows.flatten().tolist()) for rows in expected.token_ids}) > 1
    assert naive.token_ids.tolist() == expected.token_ids.tolist()
    torch.testing.assert_close(naive.scores, expected.scores, atol=1e-4, rtol=1e-4)


def test_captioning(needs_peer, quick_rows):
    rows = quick_rows(captioning)
    assert len(rows) == 10
    for row in rows.values():
        assert {"ours", "as it is", "transformers", "encoder"} <= set(row["contenders"])
        assert row["peer"] in ("transformers", "original")
        if row["precision"] == "fp32":
            assert set(row["agreement"].values()) == {1}
    assert sum("original" in row["contenders"] for row in rows.values()) == 4


def test_a_compiled_copy_takes_part_on_a_gpu(needs_peer, quick_compiler):
    captioners = captioning.Captioners(True, torch.device("cpu"))
    row = captioners.measure(1, "fp32", 3, 6, captioning.NEVER_ENDS, compiled=True)
    assert "compiled" in row["contenders"] and quick_compiler.frame_count == 2
    assert row["agreement"]["compiled"] == 1


@pytest.mark.skipif(not has_int8(torch.device("cpu")), reason="torch has no kernels for 8 bits")
def test_int8(quick_rows):
    rows = quick_rows(int8)
    kinds = ("encoder", "length 6", "length 8")
    assert list(rows) == [f"batch {batch}, {kind}" for batch in (2, 3) for kind in kinds]
    for row in rows.values():
        assert row["peer"] == "fp32" and set(row["contenders"]) == {"int8", "fp32"}


def test_decoding(quick_rows):
    rows = quick_rows(decoding)
    assert list(rows) == [
        f"batch {batch}, length {length}" for batch in (2, 3) for length in (6, 8)
    ]
    for row in rows.values():
        assert row["peer"] == "plain" and set(row["contenders"]) == {*decoding.METHODS, "mmi"}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_contenders_compute_the_same_objective(name):
    problem, spec = Problem(TINY), OBJECTIVES[name]
    ours, naive = (
        [x.clone() for x in problem.work(contender, spec)()]
        for contender in ("from hidden states", "naive")
    )
    assert len(ours) == 4 and ours[2].shape == (TINY.V, TINY.D)
    torch.testing.assert_close(ours, naive)


@pytest.mark.parametrize("name", libraries())
def test_other_libraries_compute_our_mle(name):
    if name.startswith("cut-cross-entropy") and shutil.which("c++") is None:
        pytest.skip("cut-cross-entropy is compiled, and there is no C++ compiler")
    theirs, ours = ([x.clone() for x in Problem(TINY).work(n, None)()] for n in (name, "our MLE"))
    torch.testing.assert_close(theirs, ours)


def test_objective(quick_rows):
    rows = quick_rows(objective)
    beside = rows.pop("beside other libraries")
    assert set(beside["contenders"]) == {*OURS, *libraries()} and beside["peer"] in libraries()
    assert list(rows) == list(MAIN)
    for row, peer in zip(rows.values(), ("naive", "cross-entropy")):
        assert row["peer"] == peer and row["sizes"] == TINY._asdict()
        assert {"from hidden states", "naive", peer} == set(row["contenders"])
        assert all("peak_bytes" in entry for entry in row["contenders"].values())


def test_both_train_the_same_parameters_by_the_same_loss(needs_peer):
    both = Training(tiny=True, peer=True)
    both.ours.eval()
    both.theirs.eval()
    image, texts = images(both.ours, CPU_BATCH), captions(True, CPU_BATCH, 1)
    for _ in range(2):
        losses = [both.loss(contender, image, texts) for contender in (training.OURS, THEIRS)]
        torch.testing.assert_close(*losses)
        both.step(THEIRS, autocast=False)()
        both.step(training.OURS, autocast=False)()
    weight = both.ours.text_decoder.bert["embeddings"].word_embeddings.weight
    assert any(weight is parameter for parameter in both.theirs.parameters())
    assert all(state["step"] == 4 for state in both.our_optimizer.state.values())


def test_captions_have_their_lengths():
    ours, texts = our_captioner(tiny=True), captions(True, 4, 2)
    flat = [ours.prompt + text for group in texts for text in group]
    _, mask = ours.tokenizer.encode(flat, ours.max_tokens)
    assert mask.sum(1).tolist() == [20, 27, 33, 40, 20, 27, 33, 40]


def test_loader(quick_rows):
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    files, tars = quick_rows(loader).values()
    assert set(files["contenders"]) == {"ours", "original", "decoding alone"}
    assert set(tars["contenders"]) == {"ours", "webdataset"}
    assert (files["peer"], tars["peer"]) == ("original", "webdataset")
    assert files["items"] == tars["items"] == 16


def test_photos_differ_and_are_of_the_size(tmp_path):
    paths = loader.draw_photos(tmp_path, (80, 60), 8, differing=4)
    pixels = [np.asarray(loader.Photos(paths, lambda image: image.copy())[n]) for n in (0, 1, 4)]
    assert [p.shape for p in pixels] == [(60, 80, 3)] * 3
    assert (pixels[0] != pixels[1]).any() and (pixels[0] == pixels[2]).all()


def test_both_programs_caption_the_photo_alike(needs_peer, tmp_path):
    one_photo.write_files(tmp_path, tiny=True)
    commands = one_photo.commands(tmp_path, torch.device("cpu"))
    one_photo.run(commands["ours"])
    ours = (tmp_path / "captions.jsonl").read_text()
    caption = one_photo.run(commands["transformers"]).strip().removeprefix("a picture of ")
    assert len(caption.split()) > 5 and f'"caption": "{caption}"' in ours


def test_one_photo(needs_peer, quick_rows, monkeypatch):
    monkeypatch.setattr(one_photo, "run", lambda command: command)
    (row,) = quick_rows(one_photo).values()
    assert set(row["contenders"]) == {"ours", "transformers"} and row["peer"] == "transformers"


def test_our_mle_of_a_vision_language_model_is_its_own_loss(tmp_path):
    pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")
    from benchmarks.vlm import OWN, TINY, step, write

    folder, cpu = str(tmp_path), torch.device("cpu")
    write(folder, TINY.V)
    own, ours, smile = (step(name, TINY, folder, cpu)() for name in (OWN, "MLE", "SMILE"))
    assert own == pytest.approx(ours) and own != pytest.approx(smile)
