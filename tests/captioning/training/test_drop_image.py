"""Training for guidance: which images are dropped, and the null in a run's checkpoints."""

from dataclasses import replace

import pytest
import torch

from captioning.data.image import evaluation_transform, load_image
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.runtime.errors import UserError
from captioning.training import fine_tuning
from captioning.training.batches import mean_image, training_batches


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
    assert abs(sum(dropped) / len(dropped) - 0.3) < 0.04
    assert len({tuple(dropped[n : n + 24]) for n in range(0, len(dropped), 24)}) == 60


def test_the_mean_is_of_the_training_images_as_they_are_evaluated(run, scenes):
    """Also without dropped images, so that its likelihood is defined."""
    tuning = run("null_image=mean", "skip_bad_images=true").set_up()
    transform, samples = evaluation_transform(32), fine_tuning.read_split(tuning.config, "train")
    images = [transform(load_image(scenes / s.image)).double() for s in samples]
    found = tuning.captioner.null_image.image.double()
    torch.testing.assert_close(found, torch.stack(images).mean(0))
    samples = [samples[0]._replace(image="none.png"), *samples[1:]]
    preprocessing = fine_tuning.preprocessing_of(tuning.config)
    configs = [tuning.config.model_copy(update={"seed": seed}) for seed in (1, 2)]
    first, second = (mean_image(config, samples, preprocessing) for config in configs)
    assert torch.equal(first, second)  # the replacement of an unreadable image is the same


@pytest.mark.slow
def test_a_checkpoint_without_the_null_trains_and_does_not_generate(run, scored):
    tuning = run("max_epoch=1").run()
    path, config = str(tuning.folder / checkpoints.BEST), tuning.config
    for null, name in {"mean": "null_image.image", "learnt": "null_image.vector"}.items():
        given = [f"null_image={null}", "drop_image=0.2", "max_epoch=1"]
        started = run(*given, pretrained=path, folder=null)
        with pytest.raises(UserError, match=f"has no {name}, which null_image needs"):
            captioner_from(started.config, path)
        captioner, said = captioner_from(started.config, path, for_training=True)
        assert f"missing: 1 ({name})" in said and not captioner.state_dict()[name].any()
        null_path = str(started.run().folder / checkpoints.BEST)
        captioner, _ = captioner_from(started.config, null_path)
        assert captioner.state_dict()[name].any()
        # A run with another null starts from it, too; what reads the null is refused.
        assert f"unexpected: 1 ({name})" in captioner_from(config, null_path)[1]
        for reads in ({"guidance_scale": 2.0}, {"rerank": "mmi"}):
            with pytest.raises(UserError, match="was trained with another null image than null_im"):
                captioner_from(config.model_copy(update=reads), null_path)


def test_a_mean_stays_that_of_the_first_training_and_is_resized(run, tmp_path):
    first = run("null_image=mean").set_up().captioner
    first.null_image.image.fill_(7)
    path = tmp_path / "first.pth"
    torch.save({"model": first.state_dict(), "config": {}}, path)
    further = run("null_image=mean", "image_size=64", pretrained=str(path), folder="further")
    null = further.set_up().captioner.null_image.image
    assert null.shape == (3, 64, 64) and torch.allclose(null, torch.full_like(null, 7))
