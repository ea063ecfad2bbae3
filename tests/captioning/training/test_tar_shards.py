"""Runs that train on tar shards: resumed, with dropped images, and refused settings."""

import pytest
import torch

from captioning.data.annotations import read_annotations
from captioning.runtime.errors import UserError
from tests.captioning.tar_files import write_members
from tests.programs import raises_line


@pytest.fixture
def run(run, scenes, tmp_path, monkeypatch):
    """Return a function that makes a run on three tars with the 24 training scenes."""
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
def test_a_run_that_was_stopped_within_an_epoch_ends_as_the_undisturbed_one(run, scored):
    """Dropped images, too."""
    broken = run("drop_image=0.4", "checkpoint_every=1")

    def fail(step, batches, number):
        if number == 4:  # the second of the second epoch
            raise KeyboardInterrupt

    broken.before_step = fail
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    again = run("drop_image=0.4", "num_workers=2")
    assert again.set_up().number == 4
    runs = (again.run(), run("drop_image=0.4", folder="whole").run())
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
def test_what_cannot_be_is_one_line(run, tmp_path, flags, line):
    (tmp_path / "a.tar.gz").touch()
    (tmp_path / "scenes_val.json").write_text('[{"image": "a.png", "caption": "a"}]')
    with raises_line(UserError, line) as error:
        run(f"ann_root={tmp_path}", **flags).run()
    assert "S3CR3T" not in str(error.value)
