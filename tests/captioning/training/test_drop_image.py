"""Training for guidance: which images are dropped, and checkpoints with a former null image."""

from dataclasses import replace

import torch

from captioning.data.loader import on_device
from captioning.models.build import captioner_from, trained_config
from captioning.runtime.errors import UserError
from captioning.training import fine_tuning
from captioning.training.batches import training_batches
from tests.programs import raises_line


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
