"""BLIP's filter: transformers' numbers, the released files, and its scorer."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from BLIP.itm import load_itm
from captioning.data.image import evaluation_transform
from captioning.metrics.itm import ItmScorer
from tests.programs import run_program

LONG = " ".join(["a large red ball and the small dog"] * 6)  # more than 35 tokens
EQUAL = {"rtol": 0, "atol": 0}
GROUPS = [["a red ball", "the dogs"], [LONG, "cat"], ["", "a man with a box"]]


@pytest.fixture
def model(itm_checkpoint):
    return load_itm(str(itm_checkpoint))[0]


def test_a_released_file_has_its_vocabulary_beside_it_and_more_weights_than_needed(
    itm_checkpoint, vocabulary, tmp_path
):
    """Momentum copies, queues and the decoder of pre-training; position ids may be missing."""
    content = torch.load(itm_checkpoint)
    state = content["model"]
    state["text_decoder.cls.predictions.bias"] = torch.zeros(3)
    positions = state.pop("text_encoder.embeddings.position_ids")
    torch.save({"model": state, "config": content["config"]}, tmp_path / "released.pth")
    (tmp_path / "vocab.txt").write_bytes(vocabulary.read_bytes())
    model, report = load_itm(str(tmp_path / "released.pth"))
    state["text_encoder.embeddings.position_ids"] = positions
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    count = len(state.keys() - model.state_dict().keys())
    assert report.startswith(f"ignored {count} keys (") and not model.training
    _, report = load_itm(str(tmp_path / "released.pth"), image_size=96)
    assert report.endswith("resized visual_encoder.pos_embed")
    assert len(model.tokenizer) == len(load_itm(str(itm_checkpoint))[0].tokenizer)


@torch.no_grad()
def test_there_and_back_by_the_commands_and_both_heads(itm_checkpoint, model, tmp_path):
    folder, again = tmp_path / "hf", tmp_path / "hf" / "again.pth"
    for command in (["to-hf", itm_checkpoint, folder], ["from-hf", folder, again]):
        code, out, _ = run_program("BLIP.convert", *command)
        assert code == 0 and out.count("wrote") == 1
    found, report = load_itm(str(again))
    torch.testing.assert_close(found.state_dict(), model.state_dict(), **EQUAL)
    assert report == "every key matched"
    assert found.visual_encoder.blocks[0].attn.num_heads == 4
    if not hasattr(transformers, "BlipForImageTextRetrieval"):
        pytest.skip(f"transformers {transformers.__version__} has no BLIP")
    theirs, problems = transformers.BlipForImageTextRetrieval.from_pretrained(
        folder, output_loading_info=True
    )
    assert not problems["missing_keys"] and not problems["unexpected_keys"]
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_itm(str(tmp_path / "theirs"), tokenizer=str(folder))[0]
    torch.testing.assert_close(again.state_dict(), model.state_dict(), **EQUAL)
    image = torch.randn(3, 3, 48, 48)
    encoded = model.encode(image)
    found = model.match(encoded, GROUPS), model.similarity(encoded, GROUPS)
    tokens = model.tokenizer.encode([caption for group in GROUPS for caption in group], 35)
    inputs = {"attention_mask": tokens != model.tokenizer.pad}
    inputs["pixel_values"] = image.repeat_interleave(2, dim=0)
    for ours, first, has_match in zip(found, ("[ENC]", "[CLS]"), (True, False)):
        tokens[:, 0] = model.tokenizer.bert.token_to_id(first)
        scores = theirs.eval()(input_ids=tokens, use_itm_head=has_match, **inputs).itm_score
        expected = scores.softmax(1)[:, 1] if has_match else scores.diagonal()
        torch.testing.assert_close(ours.flatten(), expected, atol=1e-5, rtol=0)
        assert ours.max() - ours.min() > 0.05


def test_a_scorer_resizes_images_and_scores_in_two_precisions(itm_checkpoint, monkeypatch):
    pixels = np.random.default_rng(5).integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    images = [Image.fromarray(each).resize((70, 79), Image.BICUBIC) for each in pixels]
    larger, prepared = (torch.stack([*map(evaluation_transform(n), images)]) for n in (64, 48))
    scorer = ItmScorer(str(itm_checkpoint))
    assert scorer.report.startswith(f"loaded {itm_checkpoint}: ignored ")
    expected = scorer.scores(prepared, GROUPS)
    half = ItmScorer(str(itm_checkpoint), dtype=torch.bfloat16).scores(prepared, GROUPS)
    assert half.dtype == torch.float32 and not torch.equal(half, expected)
    torch.testing.assert_close(half, expected, atol=0.05, rtol=0)
    monkeypatch.setattr(scorer.model, "encode", lambda image: image)
    torch.testing.assert_close(scorer.encode(larger), prepared, atol=0.1, rtol=0)
