"""Checkpoints and annotations in an object store are read like those on disk."""

import json

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
from tests.programs import raises_line

RUN = "s3://bucket/runs/a"
CPU = torch.device("cpu")


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


def test_a_folder_of_transformers_and_an_index_of_shards_are_read_from_a_store(
    s3, scenes_config, tmp_path
):
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
    assert version == checkpoints.version_of(f"{folder}/")
    s3.files.pipe_file(f"{folder}/0.safetensors", b"other")
    assert checkpoints.version_of(folder) != version


@pytest.mark.slow
def test_annotations_of_a_store_are_those_of_the_disk(s3, scenes, scenes_config):
    for path in scenes.glob("*.json"):
        s3.files.put_file(str(path), f"bucket/ann/{path.name}")
    files = ["facts_file=scenes.json", "val_gt_file=scenes_val.json", "train_captions=scenes.json"]
    roots = (scenes, "s3://bucket/ann")
    here, there = (
        load_config(scenes_config, [*files, f"ann_root={root}", f"coco_gt_root={root}/"])
        for root in roots
    )
    samples = read_split(here, "val")
    assert read_split(there, "val") == samples
    assert references(there, "val", samples) == references(here, "val", samples) != {}
    for name in ("facts_file", "train_captions"):
        [one], [other] = (option_files(config, name) for config in (here, there))
        assert one.read_bytes() == other.read_bytes() and one != other
    s3.files.rm_file("bucket/ann/scenes_val.json")
    with raises_line(UserError, start="s3://bucket/ann/scenes_val.json: no such file or bucket"):
        read_split(there, "val")
