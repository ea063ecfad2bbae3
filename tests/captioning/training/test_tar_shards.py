"""Runs that train on tar shards: resumed, with dropped images, and refused settings."""

import pytest
import torch

from captioning.config import load_config
from captioning.data import read_annotations
from captioning.models.build import training_captions
from captioning.runtime.errors import UserError
from captioning.training.fine_tuning import fine_tune
from tests.captioning.tar_files import write_members

CPU = torch.device("cpu")


@pytest.fixture
def tars(scenes, tmp_path, monkeypatch):
    """Return a pattern of three tars with the 24 training scenes and their captions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    samples = read_annotations(scenes / "scenes_train.json")
    for number in range(3):
        members = []
        for place, sample in enumerate(samples[number::3]):
            members.append((f"{place:03d}.png", (scenes / sample.image).read_bytes()))
            members.append((f"{place:03d}.txt", "\n".join(sample.captions).encode()))
        write_members(tmp_path / f"{number}.tar", members)
    return f"{tmp_path}/{{0..2}}.tar"


@pytest.fixture
def run(run, tars):
    """Return a function that makes a run on the tars, in a folder of the test."""
    given = ["max_epoch=2", "shuffle_buffer=8"]
    return lambda *overrides, **named: run(*given, *overrides, **{"train_file": tars, **named})


@pytest.mark.slow
def test_a_run_that_was_stopped_within_an_epoch_ends_as_the_undisturbed_one(done, resumed, scored):
    whole = done(folder="whole")
    found, expected = (r.captioner.state_dict() for r in (resumed(), whole))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_images_of_tars_are_dropped_and_averaged_like_others(run):
    given = ["drop_image=0.4", "null_image=mean"]
    of_tars, of_files = run(*given), run(*given, train_file="scenes_train.json", folder="files")
    means = [tuning.set_up().captioner.null_image.image for tuning in (of_tars, of_files)]
    torch.testing.assert_close(*means)
    dropped = [value for batch in of_tars.batches() for value in batch["dropped"]]
    assert len(dropped) == 24 and 0 < sum(dropped) < 24


def test_the_words_of_a_vocabulary_come_from_tars_as_from_annotations(scenes_config, tars):
    of_tars = load_config(scenes_config, [], {"train_file": tars})
    of_file = load_config(scenes_config)
    assert sorted(training_captions(of_tars)) == sorted(training_captions(of_file))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train_file=[a.tar, b.json]", "train_file: a.tar: only train_file can be tars"),
        ("val_file=a.tar", "val_file: a.tar: only train_file can be tars"),
        ("train_file=a.tar.gz", r"a.tar.gz is compressed, which"),
        ("train_file=['TMP/0.tar', 'TMP/{0..1}.tar']", "0.tar is named twice"),
        ("train_file='TMP/{0..3}.tar'", "1 of 4 tars are missing, the first is .*3.tar"),
        ("train_file='TMP/{0..3.tar'", "not a pattern of tars"),
        ("output_dir=s3://key:S3CR3T@bucket/run", "s3://bucket/run: an address with a user"),
        ("batch_size=999", "takes 999 training items"),
        ("bucket_batches=true", "bucket_batches needs annotations, and train_file names tars"),
        ("reward={cider: 1.0}", "reward needs annotations, and train_file names tars"),
        ("train_file=s3://key:S3CR3T@bucket/a.tar", "^s3://bucket/a.tar: an address with a user"),
        ("train_file='https://host/a.tar?sig=S3CR3T'", "^https://host/a.tar: an address"),
    ],
)
def test_what_cannot_be_is_one_line(scenes_config, tars, tmp_path, override, line):
    (tmp_path / "a.tar.gz").touch()
    settings = [f"ann_root={tmp_path}", override.replace("TMP", str(tmp_path))]
    (tmp_path / "scenes_val.json").write_text('[{"image": "a.png", "caption": "a"}]')
    flags = {} if override.startswith("output_dir") else {"output_dir": str(tmp_path / "run")}
    if not override.startswith("train_file"):
        settings.append(f"train_file={tars}")
    with pytest.raises(UserError, match=line) as error:
        fine_tune(load_config(scenes_config, settings, flags), CPU)
    assert "S3CR3T" not in str(error.value) and "\n" not in str(error.value)
