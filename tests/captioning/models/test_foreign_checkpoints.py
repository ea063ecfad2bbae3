"""Checkpoints of transformers and checkpoints away from home, in every program."""

import json
import shutil

import pytest
import torch

from BLIP.convert import save_hf
from captioning.config import load_config
from captioning.models.build import load_trained
from tests.programs import refused, run_program
from tests.tiny import CAPTIONERS, write_vocabulary


@pytest.fixture
def run(trained, tmp_path):
    return trained(tmp_path / "run")


@pytest.fixture
def folder(run, tmp_path):
    """The run's captioner as a folder of transformers that another program has written."""
    captioner = load_trained(str(run), None, torch.device("cpu"))[1]
    captioner.prompt = ""
    save_hf(captioner, tmp_path / "owner" / "name")
    config = json.loads((tmp_path / "owner/name/config.json").read_text())
    del config["prompt"]
    (tmp_path / "owner/name/config.json").write_text(json.dumps(config))
    return tmp_path / "owner" / "name"


def succeeds(*arguments):
    outcome = run_program(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def captions(checkpoint, photos, out, *settings):
    succeeds("captioning.caption", checkpoint, photos, "--out", out, *settings)
    return [json.loads(line)["caption"] for line in out.read_text().splitlines()]


def test_a_folder_of_transformers_is_a_checkpoint_in_every_program(
    run, folder, scenes, scenes_config, tmp_path
):
    photos = scenes / "images"
    # Without the prompt, as in transformers; a key sets it.
    expected = captions(run, photos, tmp_path / "a.jsonl", "prompt=", "max_length=20")
    assert captions(folder, photos, tmp_path / "b.jsonl", "max_length=20") == expected
    prompted = captions(folder, photos, tmp_path / "c.jsonl", "prompt=a picture of ")
    assert prompted == captions(run, photos, tmp_path / "d.jsonl", "max_length=20")
    photo, picture = min(photos.iterdir()), tmp_path / "gaze.png"
    gaze = ["captioning.attend", photo, "--checkpoint", folder, "--output", picture]
    assert succeeds(*gaze).out.strip() == expected[0]
    data = ("--config", scenes_config)
    calibrated = succeeds("captioning.calibrate", "--checkpoint", folder, *data).out
    assert calibrated == succeeds("captioning.calibrate", "--checkpoint", run, *data).out
    refused("captioning.calibrate", "--checkpoint", folder, part="give them with --config")
    succeeds("BLIP.convert", "to-hf", folder, tmp_path / "again")
    train = ["captioning.train", *data, "--output_dir", tmp_path / "b", f"pretrained={folder}"]
    for flags in (["--evaluate"], ["max_epoch=1"]):
        assert f"loaded {folder}: every key matched" in succeeds(*train, *flags).err


def test_a_name_of_the_hub_is_a_checkpoint(folder, scenes, hub_model, monkeypatch, tmp_path):
    shutil.copytree(folder, hub_model, dirs_exist_ok=True)
    photo = min((scenes / "images").iterdir())
    expected = captions(folder, photo, tmp_path / "a.jsonl")
    monkeypatch.chdir(hub_model)
    assert captions("owner/name", photo, tmp_path / "b.jsonl") == expected
    assert captions("hf://owner/name", photo, tmp_path / "c.jsonl") == expected
    refused(
        "captioning.caption", "owner/nobody", photo, "--out", "d.jsonl", part="owner/nobody, wh"
    )


@pytest.mark.parametrize("model", ["blip", "lstm"])
def test_a_checkpoint_away_from_home_has_its_vocabulary(
    scenes, scenes_config, monkeypatch, tmp_path, model
):
    """The tokenizer is given by a relative path, which is gone when the checkpoint is used."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    write_vocabulary(home / "vocab.txt")
    settings = [*CAPTIONERS[model], "tokenizer=vocab.txt", "lr_schedule=exponential"]
    settings += ["vocabulary=wordpiece"] if model == "lstm" else ["med_config=sizes.json"]
    sizes = load_config(scenes_config).med_config
    (home / "sizes.json").write_text(json.dumps({**sizes, "num_attention_heads": 2}))
    train = ["captioning.train", "--config", scenes_config, "--output_dir", "run", *settings]
    succeeds(*train, "max_epoch=1")
    photos = scenes / "images"
    expected = captions("run", photos, tmp_path / "a.jsonl")
    (home / "vocab.txt").rename(home / "gone.txt")
    (home / "sizes.json").rename(home / "gone.json")
    succeeds(*train, "max_epoch=2")
    shutil.move(home / "run" / "checkpoint_00.pth", tmp_path / "away.pth")
    monkeypatch.chdir(tmp_path)
    assert captions("away.pth", photos, tmp_path / "b.jsonl") == expected
    # An earlier version wrote no vocabulary.
    content = torch.load("away.pth")
    files = content.pop("files")["tokenizer"]
    assert files["vocab.txt"] == (home / "gone.txt").read_text()
    torch.save(content, "old.pth")
    part = "tokenizer: vocab.txt is not a BERT vocabulary"
    refused("captioning.caption", "old.pth", photos, "--out", "c.jsonl", part=part)
    (home / "gone.txt").rename(tmp_path / "vocab.txt")
    (home / "gone.json").rename(tmp_path / "sizes.json")
    assert captions("old.pth", photos, tmp_path / "c.jsonl") == expected
