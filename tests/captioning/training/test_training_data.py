"""Runs on data without splits, on tar shards, and with dropped images."""

import json
from dataclasses import replace

import pytest
import torch

from captioning.data.annotations import read_annotations
from captioning.data.loader import on_device
from captioning.models.build import captioner_from, trained_config
from captioning.runtime.errors import UserError
from captioning.training import fine_tuning
from captioning.training.batches import training_batches
from tests.captioning.data.caption_formats import write_captions
from tests.captioning.tar_files import write_members
from tests.programs import one_error_line, raises_line, run_program

SPLIT = "split={val: 0.2, test: 0.25}"


@pytest.fixture(scope="module")
def divided(scenes, scenes_config, tmp_path_factory):
    """Return a function that trains on the scenes, all in one captions.txt; it returns the log.

    Its folder `run` has a run with SPLIT.
    """
    folder = tmp_path_factory.mktemp("divided")
    files = [scenes / f"scenes_{split}.json" for split in ("train", "val", "test")]
    captions = {s.image: s.captions for file in files for s in read_annotations(file)}
    name = write_captions(folder, "captions.txt", captions)
    files = [f"train_file={name}", "val_file=", "test_file=", f"ann_root={folder}"]

    def run(*arguments, output="run", code=0):
        given = ["--config", scenes_config, "--output_dir", folder / output, "--device", "cpu"]
        ended = run_program("captioning.train", *given, *files, "max_epoch=1", *arguments)
        assert ended.code == code, ended.err
        return ended.err

    run.folder, run.references = folder, folder / name
    told = run(SPLIT)
    for count, part in ((20, "train"), (7, "val"), (9, "test")):
        assert f"{part} {count} images" in told
    return run


def test_a_run_and_the_program_that_scores_its_captions_agree(divided, tmp_path, no_java):
    divided("--evaluate", "--eval_split", "test", "metrics=[coco, length, diversity]", SPLIT)
    made = divided.folder / "run/result"
    results = (json.loads((made / name).read_text()) for name in ("test.json", "val_epoch00.json"))
    test, val = ({result["image_id"] for result in each} for each in results)
    assert len(test) == 9 and not test & val  # a quarter of 36
    given = [made / "test.json", "--references", divided.references, "--output_dir", tmp_path]
    code, _, log = run_program("captioning.evaluate", *given)
    assert code == 0 and "27 of 36 images with references have no prediction" in log
    scores = [folder / "metrics.json" for folder in (made / "test", tmp_path)]
    first, again = (json.loads(path.read_text())["metrics"] for path in scores)
    assert first == again and "CIDEr" in first


def test_weights_are_not_tested_on_photos_that_they_have_learned(divided):
    line = "it would be tested on photos that it was trained on"
    pretrained = f"pretrained={divided.folder}/run/checkpoint_best.pth"
    for other in ("--seed=7", "split={val: 0.2, test: 0.3}"):
        one_error_line(divided("--evaluate", SPLIT, other, code=2), line)
        one_error_line(divided(pretrained, SPLIT, other, output="b", code=2), line)
    divided("--evaluate", "split={val: 0.2, test: 0.25, seed: 42}", "seed=7")
    divided("val_file=captions.txt", "test_file=captions.txt", output="whole")
    log = divided("--evaluate", SPLIT, output="whole", code=2)
    one_error_line(log, "was trained on train_file with split unset")


def test_the_share_is_dropped_and_all_other_draws_stay(run):
    config = run("drop_image=0.3").config
    preprocessing = fine_tuning.preprocessing_of(config)
    loader = training_batches(config, fine_tuning.read_split(config, "train"), preprocessing)
    loader.close()
    settings = {"transform": lambda image: torch.rand(2), "is_deterministic": False}
    dataset = replace(loader.dataset.dataset, **settings)
    plain, dropped = replace(dataset, drop_image=0.0), []
    for epoch in range(60):
        for index in range(24):
            item, without = dataset[epoch, index], plain[epoch, index]
            dropped.append(item.pop("dropped"))
            assert torch.equal(item.pop("image"), without.pop("image"))
            assert item == without
    assert sum(dropped) / len(dropped) == pytest.approx(0.3, abs=0.04)
    assert len({tuple(dropped[n : n + 24]) for n in range(0, len(dropped), 24)}) == 60


def test_a_step_sees_zeros_instead_of_dropped_images(run):
    tuning = run("drop_image=0.5").set_up()
    seen = []
    tuning.captioner.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = next(on_device(tuning.batches(), torch.device("cpu")))
    tuning.step(iter([batch]), 0)
    is_zero = (seen[0] == 0).flatten(1).all(1)
    assert is_zero.tolist() == batch["dropped"] and 0 < sum(batch["dropped"]) < len(is_zero)
    assert torch.equal(seen[0][~is_zero], batch["image"][~is_zero])


def test_a_checkpoint_with_a_former_null_image_captions_but_does_not_guide(run, tmp_path):
    captioner, path = run().set_up().captioner, str(tmp_path / "former.pth")
    config = {**run().config.model_dump(), "drop_image": 0.2, "null_image": "mean"}
    state = {**captioner.state_dict(), "null_image.image": torch.ones(3)}
    torch.save({"model": state, "config": config}, path)
    found, line = captioner_from(trained_config(path, None), path)
    assert "ignored 1 keys (null_image.image" in line
    torch.testing.assert_close(found.state_dict(), captioner.state_dict(), rtol=0, atol=0)
    for change in ({"guidance_scale": 2.0}, {"rerank": "mmi"}):
        with raises_line(UserError, "was trained with null_image mean, which commit 4674"):
            captioner_from(trained_config(path, None, change), path)


@pytest.fixture
def run_on_tars(run, scenes, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    samples = read_annotations(scenes / "scenes_train.json")
    for number in range(3):
        members = []
        for place, sample in enumerate(samples[number::3]):
            members.append((f"{place:03d}.png", (scenes / sample.image).read_bytes()))
            members.append((f"{place:03d}.txt", "\n".join(sample.captions).encode()))
        write_members(tmp_path / f"{number}.tar", members)
    given, tars = ["max_epoch=2", "shuffle_buffer=8"], f"{tmp_path}/{{0..2}}.tar"
    return lambda *overrides, **named: run(*given, *overrides, **{"train_file": tars, **named})


@pytest.mark.slow
def test_a_stopped_run_on_tars_ends_as_the_undisturbed_one(run_on_tars, scored):
    broken = run_on_tars("drop_image=0.4", "checkpoint_every=1")

    def fail(step, batches, number):
        if number == 4:  # the second of the second epoch
            raise KeyboardInterrupt

    broken.before_step = fail
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    again = run_on_tars("drop_image=0.4", "num_workers=2")
    assert again.set_up().number == 4
    runs = (again.run(), run_on_tars("drop_image=0.4", folder="whole").run())
    found, expected = (tuning.captioner.state_dict() for tuning in runs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"val_file": "a.tar"}, "val_file: a.tar: only train_file can be tars"),
        ({"train_file": "a.tar.gz"}, "a.tar.gz is compressed, which"),
        ({"output_dir": "s3://key:S3CR3T@bucket/run"}, "s3://bucket/run: an address with a user"),
        ({"train_file": "https://host/a.tar?sig=S3CR3T"}, "https://host/a.tar: an address"),
        ({"batch_size": 999}, "takes 999 training items"),
        ({"bucket_batches": True}, "bucket_batches needs annotations, and train_file names tars"),
        ({"reward": {"cider": 1.0}}, "reward needs annotations, and train_file names tars"),
    ],
    ids=str,
)
def test_what_tars_cannot_have_is_one_line(run_on_tars, tmp_path, flags, line):
    (tmp_path / "a.tar.gz").touch()
    (tmp_path / "scenes_val.json").write_text('[{"image": "a.png", "caption": "a"}]')
    with raises_line(UserError, line) as error:
        run_on_tars(f"ann_root={tmp_path}", **flags).run()
    assert "S3CR3T" not in str(error.value)
