"""Checkpoints: read safely, loaded completely, refused with one line."""

import collections
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from BLIP.weights.checkpoint import CheckpointError, load_weights, read_checkpoint
from BLIP.weights.safe_load import LeftOut

TIED = (
    "text_decoder.cls.predictions.decoder.weight",
    "text_decoder.cls.predictions.decoder.bias",
)


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


def test_another_image_size_resizes_the_position_embedding(make_captioner):
    small, large = make_captioner(), make_captioner(image_size=96)
    report = load_weights(large, small.state_dict(), "file")
    assert report.reshaped == ["visual_encoder.pos_embed"]
    embedding = large.visual_encoder.pos_embed
    assert embedding.shape == (1, 37, 32)
    torch.testing.assert_close(embedding[:, 0], small.visual_encoder.pos_embed[:, 0])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: s.pop("visual_encoder.norm.weight"), "1 keys missing (visual_encoder.norm.weig"),
        (lambda s: s.update({"visual_encoder.oops": torch.ones(1)}), "1 unexpected (visual_encode"),
        (lambda s: s.update({"visual_encoder.cls_token": torch.ones(1, 1, 7)}), "cls_token is (1"),
        (
            lambda s: s.update({"visual_encoder.pos_embed": torch.ones(1, 13, 32)}),
            "cannot be resiz",
        ),
        (lambda s: s.update({"visual_encoder.pos_embed": torch.ones(1, 5, 8)}), "pos_embed is (1"),
    ],
)
def test_a_file_of_another_model_is_refused_whole(make_captioner, damage, message):
    captioner = make_captioner()
    before = {k: v.clone() for k, v in captioner.state_dict().items()}
    state = {k: v + 1 for k, v in before.items()}
    damage(state)
    with pytest.raises(CheckpointError) as error:
        load_weights(captioner, state, "file.pth")
    assert message in str(error.value) and str(error.value).startswith("file.pth")
    assert "\n" not in str(error.value)
    torch.testing.assert_close(captioner.state_dict(), before)


class Attack:
    """A pickle that runs code when it is read."""

    def __reduce__(self):
        return os.mkdir, ("attacked",)


def test_code_in_a_file_does_not_run(make_captioner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "a.pth", {"model": make_captioner().state_dict(), "config": Attack()})
    with pytest.raises(CheckpointError, match="set trust_checkpoint: true"):
        read_checkpoint(path)
    assert not (tmp_path / "attacked").exists()


def test_of_a_trusted_file_the_objects_are_left_out(make_captioner, tmp_path):
    config = collections.OrderedDict(vit=pytest.approx)
    path = written(tmp_path / "a.pth", {"model": make_captioner().state_dict(), "config": config})
    with pytest.raises(CheckpointError, match="trust_checkpoint"):
        read_checkpoint(path)
    content = read_checkpoint(path, trust_checkpoint=True)
    assert content["config"]["vit"] is LeftOut
    assert load_weights(make_captioner(), content["model"], path) == ([], [], [])


def test_damaged_files_are_one_line_each(make_captioner, tmp_path):
    whole = tmp_path / "whole.pth"
    torch.save({"model": make_captioner().state_dict()}, whole)
    content = whole.read_bytes()
    save_file({"x": torch.ones(3)}, tmp_path / "whole.safetensors")
    cases = {
        "cut.pth": content[: len(content) // 2],
        "empty.pth": b"",
        "text.pth": b"<html>404</html>",
        "list.pth": pickle.dumps([1]),
        "cut.safetensors": (tmp_path / "whole.safetensors").read_bytes()[:20],
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CheckpointError) as error:
            read_checkpoint(str(tmp_path / name))
        assert name in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(CheckpointError, match="does not exist"):
        read_checkpoint(str(tmp_path / "absent.pth"))
    with pytest.raises(CheckpointError, match="holds no state dict"):
        read_checkpoint(written(tmp_path / "no.pth", {"weights": 3}))
