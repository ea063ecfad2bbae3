"""A photo of several captions is encoded once, with the loss and gradients of many times."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0", reason="model vlm needs transformers 5.0")

from smile import Objective
from tests.smile.hf_models import knows_float64
from tests.vlm import folders
from vlm.image_batch import ImageBatch

CAPTIONS = [
    ["a red disc", "snow", "two large blue block"],
    ["a ring on sand", "grass", "a star"],
    ["night", "small green ring left of the star", "a disc"],
]


def loss_and_gradients(captioner, loss):
    captioner.zero_grad()
    loss.backward()
    return {k: p.grad.clone() for k, p in captioner.named_parameters() if p.grad is not None}


def pixels_of(image):
    return sum(item["pixel_values"].numel() for item in image.items)


@pytest.mark.parametrize("name", folders.PROCESSORS)
def test_once_is_as_good_as_once_a_caption(name, make_vlm, vlm_photos):
    captioner = make_vlm(name, Objective({"mle": 0.3, "smile": 0.7})).double()
    knows_float64(captioner.model)
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    for item in image.items:
        item.update({k: v.double() for k, v in item.items() if v.is_floating_point()})
    seen = []
    convolutions = (torch.nn.Conv2d, torch.nn.Conv3d)  # the first one reads pixels
    reads = next(part for part in captioner.modules() if isinstance(part, convolutions))
    reads.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    output = captioner(image, CAPTIONS)
    found = loss_and_gradients(captioner, output.loss)
    (pixels,) = seen
    assert pixels.numel() == pixels_of(image)
    batch, labels = captioner.rows(image, CAPTIONS)
    loss = captioner.model(**batch, labels=labels).loss
    assert seen[1].numel() == 3 * pixels_of(image)
    torch.testing.assert_close(output.loss, loss)
    # Some make a part of it in float32.
    torch.testing.assert_close(found, loss_and_gradients(captioner, loss), rtol=1e-4, atol=1e-7)
    with torch.no_grad():
        logits, _ = captioner.predictions(image, CAPTIONS)
    assert len(logits) == 9 and seen[2].numel() == pixels_of(image)


def test_features_that_are_more_than_those_among_the_words_are_not_repeated(make_vlm, vlm_photos):
    captioner = make_vlm("Idefics3ForConditionalGeneration")
    image = ImageBatch([captioner.prompt_processor(photo) for photo in vlm_photos])
    expected = captioner(image, CAPTIONS).loss
    base, calls = captioner.model.model, []

    def with_more(*arguments, **named):
        calls.append(named)
        output = type(base).get_image_features(base, *arguments, **named)
        output["of_each_layer"] = output.last_hidden_state
        return output

    base.get_image_features = with_more
    for _ in range(2):
        torch.testing.assert_close(captioner(image, CAPTIONS).loss, expected)
    assert [len(call.get("pixel_values", ())) for call in calls] == [3, 0, 0]  # by name, of B
