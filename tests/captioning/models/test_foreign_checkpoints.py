"""Checkpoints of transformers, away from home and in an object store, in every program."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.checkpoints import load_checkpoints
from BLIP.convert import save_hf
from captioning.config import load_config
from captioning.data.sources import read_split, references
from captioning.metrics.options import option_files
from captioning.models import checkpoints
from captioning.models.build import captioner_from, load_trained
from captioning.runtime.errors import UserError
from tests.programs import raises_line, refused, run_program
from tests.tiny import CAPTIONERS, write_vocabulary

RUN = "s3://bucket/runs/a"
CPU = torch.device("cpu")


@pytest.fixture
def run(trained, tmp_path):
    return trained(tmp_path / "run")


@pytest.fixture
def folder(run, tmp_path):
    """The run's captioner as a folder of transformers that another program has written."""
    captioner = load_trained(str(run), None, CPU)[1]
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
    nobody = ("owner/nobody", photo, "--out", "d.jsonl")
    refused("captioning.caption", *nobody, part="owner/nobody, wh")


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


def test_a_file_and_the_best_or_newest_of_a_run_are_read_from_a_store(s3, scenes_config, tmp_path):
    config, path = load_config(scenes_config), str(tmp_path / "trained.pth")
    weights = captioner_from(config, None)[0].state_dict()
    torch.save({"model": weights, "config": config.model_dump()}, path)
    for name in ("checkpoint_02.pth", "checkpoint_10_step00000099.pth", "checkpoint_10.pth"):
        s3.files.pipe_file(f"{RUN}/{name}", b"no checkpoint")
    s3.files.pipe_file(f"{RUN}/result/val.json", b"[]")
    assert checkpoints.resolve(f"{RUN}/") == f"{RUN}/checkpoint_10.pth"
    s3.files.put_file(path, f"{RUN}/checkpoint_best.pth")
    best = checkpoints.resolve(RUN)
    assert best == f"{RUN}/checkpoint_best.pth" == checkpoints.resolve(best)
    found, captioner = load_trained(best, None, CPU)
    assert found == config
    started, told = captioner_from(load_config(scenes_config, [f"pretrained={best}"]), best)
    assert told.startswith(f"loaded {best}")
    for each in (captioner, started):
        torch.testing.assert_close(each.state_dict(), weights, rtol=0, atol=0)
    (found,) = load_checkpoints([RUN], None, CPU)
    assert found.source == best
    version = checkpoints.version_of(best)
    s3.files.put_file(path, best)
    assert checkpoints.version_of(best) == version
    s3.files.pipe_file(best, b"other")
    assert checkpoints.version_of(best) != version


def test_a_missing_or_refused_checkpoint_of_a_store_is_one_line(s3):
    s3.files.pipe_file("bucket/empty/notes.txt", b"no run")
    lines = {
        "s3://bucket/none.pth": "s3://bucket/none.pth: no such file or bucket",
        "s3://bucket/empty": "s3://bucket/empty contains no checkpoint of a run: give a file",
        "s3://key:S3CR3T@bucket/a": "s3://bucket/a: an address with a user or a query",
        "s3://bucket/refused.pth": "s3://bucket/refused.pth: not allowed: give credentials",
    }
    for name, line in lines.items():
        s3.faults += ["refused"] * (100 if "refused" in name else 0)
        with raises_line(UserError, start=line):
            load_trained(checkpoints.resolve(name), None, CPU)


def test_a_folder_and_an_index_of_shards_are_read_from_a_store(s3, scenes_config, tmp_path):
    captioner = captioner_from(load_config(scenes_config), None)[0]
    save_hf(captioner, tmp_path / "model")
    state = load_file(tmp_path / "model" / "model.safetensors")
    shards = {key: f"{number % 2}.safetensors" for number, key in enumerate(state)}
    for shard in set(shards.values()):
        part = {key: state[key] for key in state if shards[key] == shard}
        save_file(part, tmp_path / "model" / shard)
    index = json.dumps({"weight_map": shards})
    (tmp_path / "model" / "model.safetensors.index.json").write_text(index)
    folder = "s3://bucket/model"
    s3.files.put(str(tmp_path / "model"), folder, recursive=True)
    s3.files.pipe_file(f"{folder}/logs/events", b"of a trainer")
    for name in (folder, f"{folder}/", f"{folder}/model.safetensors.index.json"):
        found = load_trained(name, None, CPU)[1]
        torch.testing.assert_close(found.state_dict(), captioner.state_dict(), rtol=0, atol=0)
    version = checkpoints.version_of(folder)
    s3.files.pipe_file(f"{folder}/0.safetensors", b"other")
    assert checkpoints.version_of(folder) != version


def test_annotations_of_a_store_are_those_of_the_disk(s3, scenes, scenes_config):
    for path in scenes.glob("*.json"):
        s3.files.put_file(str(path), f"bucket/ann/{path.name}")
    files, found = ["val_gt_file=scenes_val.json", "facts_file=scenes.json"], []
    for root in (scenes, "s3://bucket/ann"):
        config = load_config(scenes_config, [*files, f"ann_root={root}", f"coco_gt_root={root}/"])
        samples, [facts] = read_split(config, "val"), option_files(config, "facts_file")
        found.append((samples, references(config, "val", samples), facts.read_bytes()))
    assert found[0] == found[1] and len(samples) == 5
    s3.files.rm_file("bucket/ann/scenes_val.json")
    with raises_line(UserError, start="s3://bucket/ann/scenes_val.json: no such file or bucket"):
        read_split(config, "val")
