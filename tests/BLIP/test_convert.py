"""Checkpoints to folders of transformers and back: nothing lost, and the folder captions."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from BLIP.convert import (
    captioner_of,
    hf_config,
    main,
    read_hf,
    save_hf,
    settings_of,
    to_hf_names,
)
from BLIP.med import read_med_config
from BLIP.weights.checkpoint import CheckpointError, load_weights, read_checkpoint
from captioning.data.image import evaluation_transform, load_image
from decoding import DecodingSettings
from smile import Objective

needs_blip = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)
TIED = {
    "text_decoder.cls.predictions.decoder.weight",
    "text_decoder.cls.predictions.decoder.bias",
}


def same(state, other):
    assert state.keys() == other.keys()
    for key, value in state.items():
        assert value.dtype == other[key].dtype and torch.equal(value, other[key]), key


@pytest.fixture
def folder(make_captioner, tmp_path):
    """A captioner and the folder of transformers that it was written to."""
    captioner = make_captioner()
    save_hf(captioner, tmp_path / "hf")
    return captioner, tmp_path / "hf"


def test_there_and_back_by_the_commands(make_captioner, vocabulary, tmp_path, capsys):
    captioner = make_captioner(image_size=64)
    first, folder, second = tmp_path / "first.pth", tmp_path / "hf", tmp_path / "second.pth"
    torch.save({"model": captioner.state_dict()}, first)
    sizes = settings_of(hf_config(captioner))
    flags = ["--vit", json.dumps(sizes["vit"]), "--med_config", json.dumps(sizes["med_config"])]
    assert main(["to-hf", str(first), str(folder), "--tokenizer", str(vocabulary), *flags]) == 0
    assert main(["from-hf", str(folder), str(second)]) == 0
    content = read_checkpoint(str(second))
    same(content["model"], captioner.state_dict())
    assert content["config"]["image_size"] == 64
    # The checkpoint knows its own sizes now, and the folder the vocabulary.
    again = captioner_of(str(second), tokenizer=str(folder))
    same(again.state_dict(), captioner.state_dict())
    assert again.visual_encoder.blocks[0].attn.num_heads == 4
    assert capsys.readouterr().out.count("wrote") == 2


def test_there_and_back_of_the_recorded_checkpoint(golden, tmp_path):
    sizes = dict(json.loads((golden / "expected.json").read_text())["vit"])
    size = sizes.pop("image_size")
    source = str(golden / "checkpoint.pth")
    captioner = captioner_of(source, str(golden / "vocab.txt"), sizes, golden / "med_config.json")
    save_hf(captioner, tmp_path)
    content = read_hf(tmp_path)
    assert content["config"]["image_size"] == size
    assert load_weights(captioner, content["model"], "hf").missing == []
    same(content["model"], read_checkpoint(source)["model"])


@needs_blip
@pytest.mark.parametrize("vit", ["base", "large"])
def test_every_name_and_shape_of_base_and_large(make_captioner, vit):
    with torch.device("meta"):
        captioner = make_captioner(vit=vit, image_size=384, med_config={})
        config = transformers.BlipConfig(**hf_config(captioner))
        expected = transformers.BlipForConditionalGeneration(config).state_dict()
    state = to_hf_names(captioner.state_dict())
    assert {k: v.shape for k, v in state.items()} == {
        key: value.shape for key, value in expected.items() if key not in TIED
    }
    assert len(captioner.state_dict()) == {"base": 474, "large": 618}[vit]
    settings = settings_of(hf_config(captioner))
    assert (settings["vit"], settings["image_size"]) == (vit, 384)
    assert read_med_config(settings["med_config"]) == read_med_config({})


@needs_blip
@pytest.mark.parametrize("vit", ["base", "large"])
@torch.no_grad()
def test_logits_of_full_width_both_ways(make_captioner, vit, tmp_path):
    from BLIP.vit import VIT_SIZES

    sizes = {**VIT_SIZES[vit], "depth": 2}
    captioner = make_captioner(vit=sizes, med_config={"num_hidden_layers": 2})
    save_hf(captioner, tmp_path / "hf")
    model, loaded = transformers.BlipForConditionalGeneration.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loaded.values()), loaded
    image = torch.randn(2, 3, 48, 48)
    tokens, mask = captioner.tokenizer.encode(["a picture of a red ball", "the dogs"], 40)
    ours = captioner.text_decoder.logits(tokens, mask, captioner.visual_encoder(image))
    theirs = model.eval()(pixel_values=image, input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(ours[mask == 1], theirs[mask == 1], atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "saved by transformers")
    back = read_hf(tmp_path / "saved by transformers")["model"]
    same(back, captioner.state_dict())


@needs_blip
def test_folder_captions_a_photo_with_its_processor(folder, shared_data):
    captioner, path = folder
    photo = load_image(sorted((shared_data / "photos/coco").glob("*.jpg"))[0])
    model = transformers.BlipForConditionalGeneration.from_pretrained(path).eval()
    processor = transformers.AutoProcessor.from_pretrained(path)
    assert isinstance(processor, transformers.BlipProcessor)
    inputs = processor(images=photo, text="a picture of", return_tensors="pt")
    image = evaluation_transform(48)(photo).unsqueeze(0)
    # Theirs resizes with torchvision, ours with Pillow: a level of 255 is 0.015.
    torch.testing.assert_close(inputs.pixel_values, image, atol=0.04, rtol=0)
    length = {"max_length": 20, "min_length": 5}
    generated = model.generate(**inputs, **length, num_beams=1, do_sample=False)
    caption = processor.decode(generated[0], skip_special_tokens=True)
    ours = captioner.generate(image, DecodingSettings(num_beams=1, **length))[0]
    assert len(ours.split()) > 2 and caption == f"a picture of {ours}"


@needs_blip
def test_tokenizer_of_the_folder_is_ours(folder):
    captioner, path = folder
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    ours = captioner.tokenizer
    for text in ("A picture of a man, and dogs", "a box with the ball."):
        assert theirs(text).input_ids[1:-1] == ours.ids(text)
    assert (len(theirs), theirs.bos_token_id) == (len(ours), ours.start)
    assert theirs.convert_tokens_to_ids("[ENC]") == ours.bert.token_to_id("[ENC]")


@needs_blip
@torch.no_grad()
def test_loss_of_the_folder_is_blips_where_padding_is_left_out(folder):
    """Labels are smoothed by 0.1; transformers scores padding unless labels say -100."""
    captioner, path = folder
    model = transformers.BlipForConditionalGeneration.from_pretrained(path).eval()
    image = torch.randn(2, 3, 48, 48)
    tokens, mask = captioner.tokenizer.encode(["a man with a red ball", "the dogs"], 40)
    inputs = {"pixel_values": image, "input_ids": tokens, "attention_mask": mask}
    labels = tokens.masked_fill(mask == 0, -100)
    captioner.text_decoder.objective = Objective("mle", label_smoothing=0.1)
    ours = captioner.text_decoder(tokens, mask, captioner.visual_encoder(image), labels).loss
    theirs = model(**inputs, labels=labels).loss
    torch.testing.assert_close(theirs, ours)
    assert not torch.isclose(model(**inputs, labels=tokens).loss, ours)


def test_what_cannot_be_converted_is_said_in_a_line(folder, tmp_path, capsys):
    _, path = folder
    assert main(["to-hf", str(tmp_path / "none.pth"), str(tmp_path / "hf2")]) == 2
    assert main(["from-hf", str(tmp_path / "nothing"), str(tmp_path / "x.pth")]) == 2
    (path / "config.json").write_text('{"model_type": "git"}')
    assert main(["from-hf", str(path), str(tmp_path / "x.pth")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("error: ") for line in lines)
    assert "'git'" in lines[2]


def test_folder_without_weights(folder):
    _, path = folder
    save_file(
        {"vision_model.embeddings.class_embedding": torch.ones(1)}, path / "model.safetensors"
    )
    with pytest.raises(CheckpointError, match="this is no captioner"):
        read_hf(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no model"):
        read_hf(path)


@needs_blip
@torch.no_grad()
def test_a_folder_that_transformers_made_gives_its_logits(make_captioner, vocabulary, tmp_path):
    """Whose default of layer_norm_eps, 1e-5, is not BLIP's."""
    captioner = make_captioner()
    config = hf_config(captioner)
    del config["vision_config"]["layer_norm_eps"]
    model = transformers.BlipForConditionalGeneration(transformers.BlipConfig(**config)).eval()
    model.save_pretrained(tmp_path / "hf")
    assert main(["from-hf", str(tmp_path / "hf"), str(tmp_path / "again.pth")]) == 0
    again = captioner_of(str(tmp_path / "again.pth"), tokenizer=str(vocabulary))
    assert again.visual_encoder.norm.eps == 1e-5
    image = torch.randn(2, 3, 48, 48) * 0.01  # so that the epsilon is felt
    tokens, mask = again.tokenizer.encode(["a red ball", "the dogs"], 40)
    ours = again.text_decoder.logits(tokens, mask, again.visual_encoder(image))
    theirs = model(pixel_values=image, input_ids=tokens, attention_mask=mask).logits
    torch.testing.assert_close(ours[mask == 1], theirs[mask == 1], atol=1e-5, rtol=0)


def test_a_folder_that_is_not_whole_leaves_what_is_there(folder, tmp_path, capsys):
    _, path = folder
    target = tmp_path / "kept.pth"
    target.write_bytes(b"kept")
    state = load_file(path / "model.safetensors")
    missing = next(key for key in state if "layers.1" in key or "layer.1" in key)
    config = json.loads((path / "config.json").read_text())
    text = config["text_config"]
    for wrong in ([config], {**config, "text_config": None}):
        (path / "config.json").write_text(json.dumps(wrong))
        assert main(["from-hf", str(path), str(target)]) == 2
    wider = {**config, "text_config": {**text, "intermediate_size": 7}}
    (path / "config.json").write_text(json.dumps(wider))
    assert main(["from-hf", str(path), str(target)]) == 2
    (path / "config.json").write_text(json.dumps(config))
    save_file({k: v for k, v in state.items() if k != missing}, path / "model.safetensors")
    assert main(["from-hf", str(path), str(target)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and all(line.startswith("error: ") for line in lines)
    assert "in the file and (7,) in the model" in lines[2] and "1 keys missing" in lines[3]
    assert target.read_bytes() == b"kept"


def test_a_write_that_fails_leaves_what_is_there(folder, tmp_path, monkeypatch, capsys):
    _, path = folder
    target = tmp_path / "kept.pth"
    target.write_bytes(b"kept")

    def full_disk(_, atomic_write):
        atomic_write.write_bytes(b"half")
        raise RuntimeError("PytorchStreamWriter failed writing file")

    monkeypatch.setattr(torch, "save", full_disk)
    assert main(["from-hf", str(path), str(target)]) == 2
    assert "PytorchStreamWriter failed" in capsys.readouterr().err
    assert target.read_bytes() == b"kept" and {p.name for p in tmp_path.iterdir()} >= {"kept.pth"}
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".kept")]
    monkeypatch.undo()
    assert main(["from-hf", str(path), str(tmp_path / "nowhere" / "x.pth")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("vit", ["huge", '{"foo": 1}'])
def test_sizes_that_are_none(folder, vit, tmp_path, capsys):
    captioner, _ = folder
    torch.save({"model": captioner.state_dict()}, tmp_path / "a.pth")
    assert main(["to-hf", str(tmp_path / "a.pth"), str(tmp_path / "b"), "--vit", vit]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_an_error_shows_no_control_characters(tmp_path, capsys):
    assert main(["to-hf", str(tmp_path / "\x1b]0;title\x07.pth"), str(tmp_path / "folder")]) == 2
    said = capsys.readouterr().err
    assert r"\x1b]0;title\x07.pth does not exist" in said and "\x1b" not in said
