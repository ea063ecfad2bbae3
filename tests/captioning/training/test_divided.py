"""A run on a data set without splits: trained, scored, and scored again from its file."""

import json

import pytest

from captioning.data import read_annotations
from tests.captioning.data.caption_formats import write_captions
from tests.programs import one_error_line

SPLIT = "split={val: 0.2, test: 0.25}"


@pytest.fixture(scope="module")
def divided(scenes, scenes_config, tmp_path_factory, run_program):
    """Return a function that trains on the scenes, all in one captions.txt; it returns the log."""
    folder = tmp_path_factory.mktemp("divided")
    files = [scenes / f"scenes_{split}.json" for split in ("train", "val", "test")]
    captions = {s.image: s.captions for file in files for s in read_annotations(file)}
    name = write_captions(folder, "captions.txt", captions)
    config = folder / "divided.yaml"
    given = {"train_file": name, "val_file": "", "test_file": "", "ann_root": folder}
    text = scenes_config.read_text().splitlines()
    text = [line for line in text if line.partition(":")[0] not in given]
    config.write_text("\n".join([*text, *(f"{key}: {value}" for key, value in given.items())]))

    def run(*arguments, output="run", code=0):
        given = ["--config", config, "--output_dir", folder / output, "--device", "cpu"]
        ended = run_program("captioning.train", *given, *arguments)
        assert ended.code == code, ended.err
        return ended.err

    run.folder, run.references = folder, folder / name
    return run


@pytest.fixture(scope="module")
def divided_run(divided):
    log = divided("max_epoch=1", SPLIT)
    assert "split of captions.txt: 20 train, 7 val, 9 test photos" in log
    return divided.folder / "run"


def test_a_run_and_the_program_that_scores_its_captions_agree(
    divided, divided_run, tmp_path, run_program, no_java
):
    divided("--evaluate", "--eval_split", "test", "metrics=[coco, length, diversity]", SPLIT)
    found, val = (divided_run / "result" / name for name in ("test.json", "val_epoch00.json"))
    results, others = ({r["image_id"] for r in json.loads(p.read_text())} for p in (found, val))
    assert len(results) == 9 and not results & others  # a quarter of 36
    given = [found, "--references", divided.references]
    code, _, log = run_program("captioning.evaluate", *given, "--output_dir", tmp_path)
    assert code == 0 and "27 of 36 images with references have no prediction" in log
    scores = [folder / "metrics.json" for folder in (divided_run / "result" / "test", tmp_path)]
    first, again = (json.loads(path.read_text())["metrics"] for path in scores)
    assert first == again and "CIDEr" in first


@pytest.mark.parametrize("other", ["--seed=7", "split={val: 0.2, test: 0.3}"])
def test_weights_are_not_tested_on_photos_that_they_have_learned(divided, divided_run, other):
    log = divided("--evaluate", SPLIT, other, code=2)
    one_error_line(log, "it would be tested on photos that it was trained on")
    pretrained = f"pretrained={divided_run / 'checkpoint_best.pth'}"
    divided(pretrained, SPLIT, other, output="b", code=2)
    divided("--evaluate", "split={val: 0.2, test: 0.25, seed: 42}", "seed=7")


def test_weights_that_learned_the_whole_file_are_tested_on_no_part_of_it(divided):
    whole = ["val_file=captions.txt", "test_file=captions.txt", "max_epoch=1"]
    divided(*whole, output="whole")
    log = divided("--evaluate", SPLIT, output="whole", code=2)
    one_error_line(log, "was trained on train_file with split unset")
