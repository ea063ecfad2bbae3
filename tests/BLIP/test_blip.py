"""The captioner as a whole: k captions an image, batches, settings, sizes."""

import pytest
import torch

from decoding import DecodingSettings
from smile import Objective

BEAM = DecodingSettings(num_beams=3, max_length=12, min_length=5)
CAPTIONS = [["a red ball", "the small ball and a box"], ["dogs", "a man with the large blue box"]]


def with_gradients(captioner, call):
    torch.manual_seed(0)
    captioner.zero_grad()
    output = call()
    output.loss.backward()
    return output, {name: p.grad.clone() for name, p in captioner.named_parameters()}


@pytest.mark.parametrize("spec", ["mle", "smile", "random", "reverse", {"mle": 0.3, "smile": 0.7}])
def test_loss_and_gradients_are_those_of_padded_rows_repeated_images_and_all_logits(
    make_captioner, spec
):
    captioner = make_captioner(objective=Objective(spec, 0.1)).double()
    decoder, image = captioner.text_decoder, torch.randn(2, 3, 48, 48, dtype=torch.float64)
    ours = with_gradients(captioner, lambda: captioner(image, CAPTIONS))
    captions = [captioner.prompt + caption for group in CAPTIONS for caption in group]
    tokens, start = captioner.tokenizer.encode(captions, 40), len(captioner.prompt_ids)
    labels = tokens.masked_fill(tokens == captioner.tokenizer.pad, -100)

    def reference():
        embeds = captioner.visual_encoder(image.repeat_interleave(2, dim=0))
        logits = decoder.logits(tokens, embeds, start=start - 1)
        return decoder.objective(logits[:, :-1], labels[:, start:])

    expected = with_gradients(captioner, reference)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


def test_the_image_is_encoded_once(make_captioner):
    captioner = make_captioner()
    seen = []
    captioner.visual_encoder.register_forward_hook(lambda m, i, o: seen.append(len(i[0])))
    captioner(torch.randn(2, 3, 48, 48), CAPTIONS)
    captioner.generate(torch.randn(3, 3, 48, 48), BEAM)
    assert seen == [2, 3]


def test_scored_tokens_are_those_after_the_prompt_up_to_max_tokens(make_captioner):
    output = make_captioner()(torch.randn(2, 3, 48, 48), [["red ball"], ["a small dogs"]])
    assert output.tokens.item() == 3 + 5  # the words and [SEP]; dogs is dog ##s
    output = make_captioner(max_tokens=8)(torch.randn(1, 3, 48, 48), [["ball " * 20]])
    assert output.tokens.item() == 4  # 8 without [DEC] a picture of, with [SEP]


@pytest.mark.parametrize("prompt", ["", "a  picture of", "A Picture  of ", "a dog 's picture of "])
def test_the_prompt_is_cut_as_it_is_decoded(make_captioner, prompt):
    captioner = make_captioner(prompt=prompt)
    words = torch.tensor([*captioner.tokenizer.ids("the red cat"), captioner.tokenizer.end])
    assert captioner.caption_text(torch.cat([captioner.prompt_ids, words])) == "the red cat"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("layers", "calls"), [(0, [0, 1]), (1, [0, 1, 1]), (2, [0, 1, 1, 0]), (9, [0, 1, 1, 0])]
)
def test_gradient_checkpointing_recomputes_the_last_blocks_and_changes_no_gradient(
    make_captioner, dtype, layers, calls
):
    image, found, called = torch.randn(2, 3, 48, 48), [], []

    def call():
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            return captioner(image, CAPTIONS)

    for settings in ({}, {"vit_grad_ckpt": True, "vit_ckpt_layer": layers}):
        torch.manual_seed(0)
        captioner = make_captioner(**settings)
        called.clear()
        for index, block in enumerate(captioner.visual_encoder.blocks):
            block.attn.register_forward_hook(lambda *_, index=index: called.append(index))
        found.append(with_gradients(captioner, call))
    torch.testing.assert_close(*found)
    assert called == calls


def test_dropout_is_on_in_training_only(make_captioner):
    captioner, image = make_captioner(), torch.randn(2, 3, 48, 48)
    for training in (False, True):
        first, second = (captioner.train(training)(image, CAPTIONS).loss for _ in range(2))
        assert (first != second) == training
