"""Training for guidance: which images are dropped, and the null in a run's checkpoints."""

from dataclasses import replace

import pytest
import torch

from captioning.data import evaluation_transform, load_image
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from captioning.training import fine_tuning
from captioning.training.batches import mean_image, training_batches


@pytest.fixture
def dataset(run):
    """Return the training data of a run, with numbers for images."""
    config = run("drop_image=0.3").config
    preprocessing = fine_tuning.preprocessing_of(config)
    loader = training_batches(config, fine_tuning.read_split(config, "train"), preprocessing)
    loader.close()
    settings = {"transform": lambda image: torch.rand(2), "is_deterministic": False}
    return replace(loader.dataset.dataset, **settings)


def test_the_share_is_dropped_and_all_other_draws_stay(dataset):
    plain = replace(dataset, drop_image=0.0)
    dropped = []
    for epoch in range(60):
        for index in range(len(dataset)):
            item, without = dataset[epoch, index], plain[epoch, index]
            dropped.append(item.pop("dropped"))
            assert torch.equal(item.pop("image"), without.pop("image"))
            assert item == without
    assert len(dropped) == 60 * 24
    assert abs(sum(dropped) / len(dropped) - 0.3) < 0.04
    assert len({tuple(dropped[n : n + 24]) for n in range(0, len(dropped), 24)}) == 60


def test_the_mean_is_of_the_training_images_as_they_are_evaluated(run, scenes):
    """Also without dropped images, so that its likelihood is defined."""
    tuning = run("null_image=mean", "skip_bad_images=true").set_up()
    transform, samples = evaluation_transform(32), fine_tuning.read_split(tuning.config, "train")
    images = [transform(load_image(scenes / s.image)).double() for s in samples]
    expected = torch.stack(images).mean(0)
    torch.testing.assert_close(tuning.captioner.null_image.image.double(), expected)
    samples = [samples[0]._replace(image="none.png"), *samples[1:]]
    preprocessing = fine_tuning.preprocessing_of(tuning.config)
    configs = [tuning.config.model_copy(update={"seed": seed}) for seed in (1, 2)]
    first, second = (mean_image(config, samples, preprocessing) for config in configs)
    assert torch.equal(first, second)  # the replacement of an unreadable image is the same


@pytest.mark.slow
def test_a_checkpoint_without_the_null_trains_and_does_not_generate(done, scored, tmp_path):
    tuning = done("max_epoch=1")
    path, config = str(tmp_path / "run" / checkpoints.BEST), tuning.config
    for null, name in {"mean": "null_image.image", "learnt": "null_image.vector"}.items():
        other = config.model_copy(update={"null_image": null, "drop_image": 0.2})
        with pytest.raises(UserError, match=f"has no {name}, which null_image needs"):
            captioner_from(other, path)
        captioner, said = captioner_from(other, path, for_training=True)
        assert f"missing: 1 ({name})" in said and not captioner.state_dict()[name].any()
        started = done(
            f"null_image={null}", "drop_image=0.2", "max_epoch=1", pretrained=path, folder=null
        )
        null_path = str(tmp_path / null / checkpoints.BEST)
        captioner, _ = captioner_from(started.config, null_path)
        assert captioner.state_dict()[name].any()
        # A run with another null starts from it, too; what reads the null is refused.
        captioner, said = captioner_from(config, null_path)
        assert f"unexpected: 1 ({name})" in said
        for reads in ({"guidance_scale": 2.0}, {"rerank": "mmi"}):
            with pytest.raises(UserError, match="was trained with another null image than null_im"):
                captioner_from(config.model_copy(update=reads), null_path)


def test_a_mean_stays_that_of_the_first_training(run, scored, tmp_path):
    """It is resized with the images."""
    run("null_image=mean", "max_epoch=1").run()
    path = tmp_path / "run" / checkpoints.BEST
    content = checkpoints.read(path)
    content["model"]["null_image.image"].fill_(7)
    torch.save(content, path)
    further = run("null_image=mean", "image_size=64", pretrained=str(path), folder="further")
    null = further.set_up().captioner.null_image.image
    assert null.shape == (3, 64, 64) and torch.allclose(null, torch.full_like(null, 7))
