"""Checkpoints to folders of transformers and back: nothing is lost; cards; errors are one line."""

import json

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file

from BLIP.checkpoint import read_checkpoint, settings_of
from BLIP.convert import hf_config, save_hf
from BLIP.from_checkpoint import captioner_of
from tests.programs import refused, run_program, unchanged


def test_there_and_back_by_the_commands(make_captioner, itm_checkpoint, vocabulary, tmp_path):
    captioner = make_captioner(image_size=64, prompt="a large ")
    first, folder, second = tmp_path / "first.pth", tmp_path / "hf", tmp_path / "second.pth"
    settings = settings_of(hf_config(captioner))
    # A file that also has BLIP's filter is converted as a captioner.
    state = {**torch.load(itm_checkpoint)["model"], **captioner.state_dict()}
    torch.save({"model": state, "config": {"prompt": "a large "}}, first)
    flags = [f"--{key}={json.dumps(settings[key])}" for key in ("vit", "med_config")]
    to_hf = ["to-hf", first, folder, "--tokenizer", vocabulary, *flags]
    for command in (to_hf, ["from-hf", folder, second]):
        code, out, _ = run_program("BLIP.convert", *command)
        assert code == 0 and out.count("wrote") == 1
    equal = {"rtol": 0, "atol": 0}
    state = read_checkpoint(str(second))["model"]
    torch.testing.assert_close(state, dict(captioner.state_dict()), **equal)
    # The checkpoint knows its own sizes, prompt and vocabulary now.
    folder.rename(tmp_path / "moved")
    again = captioner_of(str(second))
    torch.testing.assert_close(again.state_dict(), captioner.state_dict(), **equal)
    assert again.visual_encoder.blocks[0].attn.num_heads == 4
    assert again.prompt_ids.tolist() == captioner.prompt_ids.tolist()


def without_config(folder):
    (folder / "config.json").unlink()


def of_git(folder):
    (folder / "config.json").write_text('{"model_type": "git"}')


def with_one_tensor(folder):
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")


# the change of a folder, flags, what is said
FAILURES = [
    (without_config, (), "config.json"),
    (of_git, (), "the model_type in config.json is git, not blip"),
    (with_one_tensor, (), "hf has no image encoder of BLIP"),
    (None, (), "kept.pth: No space left"),
    (None, ("--vit", "huge"), "vit is 'huge'; it must be base, large or a mapping of sizes"),
    (None, ("--tokenizer", "\x1b]0;title\x07"), r"tokenizer: \x1b]0;title\x07 is not a BERT"),
]


@pytest.mark.parametrize(("change", "flags", "message"), FAILURES)
def test_a_failed_conversion_is_one_line_and_leaves_the_target(
    make_captioner, tmp_path, monkeypatch, change, flags, message
):
    def full_disk(_, path):
        path.write_bytes(b"half")
        raise RuntimeError("No space left")

    save_hf(make_captioner(), tmp_path / "hf")
    if change:
        change(tmp_path / "hf")
    (tmp_path / "kept.pth").write_bytes(b"kept")
    monkeypatch.setattr(torch, "save", full_disk)
    with unchanged(tmp_path):
        command = ["from-hf", tmp_path / "hf", tmp_path / "kept.pth", *flags]
        assert "\x1b" not in refused("BLIP.convert", *command, part=message)


def test_the_hub_reads_licence_objective_and_scores(make_captioner, vocabulary, tmp_path):
    captioner, path = make_captioner(), tmp_path / "run" / "checkpoint_best.pth"
    result = path.parent / "result" / "test"
    result.mkdir(parents=True)
    config = {**settings_of(hf_config(captioner)), "tokenizer": str(vocabulary)}
    config.update(objective={"mle": 0.01, "smile": 0.99}, train_file="a/t.json")
    torch.save({"model": captioner.state_dict(), "config": config}, path)
    scores = {"CIDEr": {"value": 0.9, "low": 0.8, "high": 1.0, "n": 5}}
    (result / "metrics.json").write_text(json.dumps({"metrics": scores}))
    (result / "run.json").write_text(json.dumps({"checkpoint": str(path)}))
    command = ["BLIP.convert", "to-hf", path, tmp_path / "hf"]
    assert run_program(*command, "--license", "bsd-3-clause").code == 0
    card = ModelCard.load(tmp_path / "hf" / "README.md")
    assert (card.data.license, card.data.pipeline_tag) == ("bsd-3-clause", "image-to-text")
    described = json.loads(card.text.split("```json")[1].split("```")[0])
    expected = {"train_file": "a/t.json", "objective": config["objective"], "test": scores}
    assert described == expected
    # An author's card stays, and scores of another checkpoint are not this one's.
    (tmp_path / "hf" / "README.md").write_text("mine")
    assert run_program(*command).code == 0
    assert (tmp_path / "hf" / "README.md").read_text() == "mine"
    (result / "run.json").write_text('{"checkpoint": "other.pth"}')
    assert run_program(*command[:-1], tmp_path / "again").code == 0
    assert "CIDEr" not in (tmp_path / "again" / "README.md").read_text()
