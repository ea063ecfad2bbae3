"""Checkpoints: every format, and the differences of the released files.

tests/captioning/bad_input/test_checkpoints.py has the files that are refused.
"""

import re

import pytest
import torch
from safetensors.torch import save_file

from BLIP.checkpoint import CheckpointError, load_weights, read_checkpoint

TIED = [f"text_decoder.cls.predictions.decoder.{name}" for name in ("weight", "bias")]


def written(path, content):
    torch.save(content, path)
    return str(path)


def test_a_file_of_every_form_gives_the_same_weights(make_captioner, tmp_path):
    source, target = make_captioner(), make_captioner()
    state = source.state_dict()
    save_file({k: v.clone() for k, v in state.items()}, tmp_path / "bare.safetensors")
    extra = {"optimizer": {"state": {}}, "config": {"vit": "base"}, "epoch": 3}
    for path in (
        written(tmp_path / "full.pth", {"model": state, **extra}),
        written(tmp_path / "bare.pth", dict(state)),
        str(tmp_path / "bare.safetensors"),
    ):
        for parameter in target.parameters():
            parameter.data.zero_()
        report = load_weights(target, read_checkpoint(path)["model"], path)
        assert report == ([], [], [])
        torch.testing.assert_close(target.state_dict(), state)
    assert read_checkpoint(str(tmp_path / "full.pth"))["epoch"] == 3


def test_what_the_released_files_lack_or_have_too_much_is_reported(make_captioner):
    captioner = make_captioner()
    state = dict(captioner.state_dict())
    for key in (*TIED, "text_decoder.bert.embeddings.position_ids"):
        del state[key]
    state["text_decoder.bert.embeddings.word_embeddings.weight"] += 1
    state["text_encoder.embeddings.word_embeddings.weight"] = torch.zeros(3)
    state["visual_encoder_m.cls_token"] = state["temp"] = torch.zeros(1)
    report = load_weights(captioner, state, "file")
    assert set(report.missing) == {*TIED, "text_decoder.bert.embeddings.position_ids"}
    assert len(report.unexpected) == 3 and report.reshaped == []
    assert "missing: 3" in str(report) and "unexpected: 3 (text_encoder." in str(report)
    head = captioner.text_decoder.cls["predictions"].decoder.weight
    assert head is captioner.text_decoder.bert["embeddings"].word_embeddings.weight


def test_half_precision_files_load_into_float32(make_captioner):
    captioner = make_captioner()
    state = {k: v.half() if v.is_floating_point() else v for k, v in captioner.state_dict().items()}
    load_weights(captioner, state, "file")
    assert {p.dtype for p in captioner.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("shape", "message"), [((1, 13, 32), "for 12 patches"), ((1, 5, 8), "pos_embed is (1, 10, 8)")]
)
def test_a_position_embedding_that_does_not_fit_is_refused(make_captioner, shape, message):
    captioner = make_captioner()
    state = {**captioner.state_dict(), "visual_encoder.pos_embed": torch.ones(shape)}
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load_weights(captioner, state, "file.pth")
