"""A run on a data set without splits: trained, scored, and scored again from its file."""

import json

import pytest

from captioning.data.annotations import read_annotations
from tests.captioning.data.caption_formats import write_captions
from tests.programs import one_error_line, run_program

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
    test, val = (
        {result["image_id"] for result in json.loads((made / name).read_text())}
        for name in ("test.json", "val_epoch00.json")
    )
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
