"""The captioner as a whole: k captions an image, batches, settings, sizes."""

import pytest
import torch

from BLIP import build_captioner, vit
from decoding import DecodingSettings
from smile import Objective

BEAM = DecodingSettings(num_beams=3, max_length=12, min_length=5)
CAPTIONS = [["a red ball", "the small ball and a box"], ["dogs", "a man with the large blue box"]]


def test_several_captions_an_image_equal_repeated_images(make_captioner):
    captioner = make_captioner(objective=Objective({"mle": 0.3, "smile": 0.7}, 0.1))
    image = torch.randn(2, 3, 48, 48)
    joint = captioner(image, CAPTIONS)
    joint.loss.backward()
    gradients = [p.grad.clone() for p in captioner.parameters()]
    captioner.zero_grad()
    flat = [[caption] for group in CAPTIONS for caption in group]
    repeated = captioner(image.repeat_interleave(2, dim=0), flat)
    repeated.loss.backward()
    torch.testing.assert_close(joint, repeated)
    torch.testing.assert_close(gradients, [p.grad for p in captioner.parameters()])


@pytest.mark.parametrize("captions", [[["a", "b", "cat"], ["dog"]], [["a"]], [["a"]] * 4])
def test_captions_that_do_not_match_the_images_are_refused(make_captioner, captions):
    with pytest.raises(ValueError, match="captions for 2 images"):
        make_captioner()(torch.randn(2, 3, 48, 48), captions)


def test_the_image_is_encoded_once(make_captioner):
    captioner = make_captioner()
    seen = []
    captioner.visual_encoder.register_forward_hook(lambda m, i, o: seen.append(len(i[0])))
    captioner(torch.randn(2, 3, 48, 48), CAPTIONS)
    captioner.generate(torch.randn(3, 3, 48, 48), BEAM)
    assert seen == [2, 3]


def test_without_gradients_a_cpu_encodes_as_many_images_at_a_time_as_its_cache_holds(
    make_captioner,
):
    """577 places of 4 * 768 numbers an image of BLIP-base."""
    assert vit.ImageEncoder().images_at_once == 2
    encoder = make_captioner().visual_encoder.eval()
    image, seen = torch.randn(5, 3, 48, 48), []
    encoder.blocks[0].register_forward_hook(lambda m, i, o: seen.append(len(i[0])))
    together = encoder(image)
    encoder.images_at_once = 2
    with torch.no_grad():
        torch.testing.assert_close(encoder(image), together.detach())
    assert seen == [5, 2, 2, 1]


def test_prompt_and_padding_are_not_scored(make_captioner):
    captioner = make_captioner()
    output = captioner(torch.randn(2, 3, 48, 48), [["red ball"], ["a small dogs"]])
    assert output.tokens.item() == 3 + 5  # the words and [SEP]; dogs is dog ##s


def test_captions_are_cut_to_max_tokens(make_captioner):
    captioner = make_captioner(max_tokens=8)
    output = captioner(torch.randn(1, 3, 48, 48), [["ball " * 20]])
    assert output.tokens.item() == 4  # 8 without [DEC] a picture of, [SEP] included


@pytest.mark.parametrize(
    "settings",
    [
        BEAM,
        DecodingSettings(num_beams=4, num_return=2, max_length=20, length_penalty=2.0),
        DecodingSettings(num_beams=1, max_length=15),
    ],
)
def test_a_batch_never_changes_a_caption(make_captioner, settings):
    captioner = make_captioner()
    images = 2 * torch.randn(6, 3, 48, 48)
    together = captioner.generate_details(images, settings)
    assert len({tuple(c) for c in together.captions}) > 1
    for image, captions in zip(images, together.captions):
        assert captioner.generate_details(image[None], settings).captions == [captions]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_cached_steps_equal_the_whole_sequence(make_captioner, dtype, tolerance):
    """Scores of generated captions, recomputed in float32 in one pass without a cache."""
    captioner = make_captioner(prompt="the picture of a ")
    image = torch.randn(3, 3, 48, 48)
    settings = DecodingSettings(num_beams=3, num_return=3, max_length=14, min_length=0)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        generated = captioner.generate_details(image, settings)
    embeds = captioner.visual_encoder(image)
    start = len(captioner.prompt_ids)
    for b, rows in enumerate(generated.token_ids):
        for tokens, score in zip(rows, generated.scores[b]):
            ended = (tokens == captioner.tokenizer.end).nonzero()
            length = int(ended[0]) if len(ended) else len(tokens)
            tokens = tokens[None, : length + 1].clone()
            logits = captioner.text_decoder.logits(
                tokens, torch.ones_like(tokens), embeds[b : b + 1].detach()
            )
            logprobs = logits[0, :-1].log_softmax(-1)
            total = logprobs.gather(1, tokens[0, 1:, None])[start - 1 :].sum()
            assert score.item() == pytest.approx(total.item() / length, abs=tolerance)


def test_the_prompt_is_cut_and_may_be_empty(make_captioner):
    image = torch.randn(2, 3, 48, 48)
    for prompt in ("a picture of ", ""):
        captioner = make_captioner(prompt=prompt)
        # No caption starts within a word, where the cut would take a letter, as BLIP's does.
        captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.start - 1] = -99
        generated = captioner.generate_details(image, BEAM)
        for tokens, captions in zip(generated.token_ids, generated.captions):
            assert captioner.tokenizer.decode(tokens[0]) == prompt + captions[0]


@pytest.mark.parametrize("prompt", ["a  picture of", "A Picture  of ", "a dog 's picture of "])
def test_the_prompt_is_cut_as_it_is_read(make_captioner, prompt):
    captioner = make_captioner(prompt=prompt)
    said = torch.tensor([*captioner.tokenizer.ids("the red cat"), captioner.tokenizer.end])
    assert captioner._caption(torch.cat([captioner.prompt_ids, said])) == "the red cat"


@pytest.mark.parametrize("spec", ["mle", "smile", "random", "reverse", {"mle": 0.3, "smile": 0.7}])
def test_loss_and_gradients_are_those_of_all_logits(make_captioner, spec):
    """The decoder's forward gives the head no more than the objective needs."""
    captioner = make_captioner(objective=Objective(spec, 0.1)).double()
    decoder, image = captioner.text_decoder, torch.randn(2, 3, 48, 48, dtype=torch.float64)
    tokens, mask = captioner.tokenizer.encode(
        [f"a picture of {c}" for cs in CAPTIONS for c in cs], 40
    )
    labels = tokens.masked_fill(mask == 0, -100)
    start = len(captioner.prompt_ids)

    def from_logits():
        logits = decoder.logits(tokens, mask, captioner.visual_encoder(image), start=start - 1)
        return decoder.objective(logits[:, :-1], labels[:, start:])

    results = []
    for call in (lambda: captioner(image, CAPTIONS), from_logits):
        torch.manual_seed(0)
        captioner.zero_grad()
        output = call()
        output.loss.backward()
        gradients = {name: p.grad.clone() for name, p in captioner.named_parameters()}
        results.append((output, gradients))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_checkpointing_changes_no_gradient(make_captioner, dtype):
    """Nor the precision: it is computed again in that of the forward."""
    image = torch.randn(2, 3, 48, 48)
    gradients = []
    for settings in ({}, {"vit_grad_ckpt": True, "vit_ckpt_layer": 1}):
        torch.manual_seed(0)
        captioner = make_captioner(**settings)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = captioner(image, CAPTIONS).loss
        loss.backward()
        gradients.append({name: p.grad for name, p in captioner.named_parameters()})
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("layers", "expected"), [(0, [0, 1]), (1, [0, 1, 1]), (2, [0, 1, 1, 0]), (9, [0, 1, 1, 0])]
)
def test_gradient_checkpointing_recomputes_the_last_blocks(make_captioner, layers, expected):
    calls = []
    captioner = make_captioner(vit_grad_ckpt=True, vit_ckpt_layer=layers)
    for index, block in enumerate(captioner.visual_encoder.blocks):
        block.attn.register_forward_hook(lambda *_, index=index: calls.append(index))
    captioner(torch.randn(2, 3, 48, 48), CAPTIONS).loss.backward()
    assert calls == expected


def test_base_and_large_have_the_released_shapes(vocabulary):
    """Built without memory for the weights."""
    with torch.device("meta"):
        base, large = (build_captioner(str(vocabulary), vit) for vit in ("base", "large"))
    assert len(base.state_dict()) == 474
    assert base.state_dict()["visual_encoder.pos_embed"].shape == (1, 577, 768)
    assert large.state_dict()["visual_encoder.pos_embed"].shape == (1, 577, 1024)
    assert len(large.visual_encoder.blocks) == 24
    key = "text_decoder.bert.encoder.layer.11.crossattention.self.key.weight"
    assert large.state_dict()[key].shape == (768, 1024)


def test_dropout_is_on_in_training_only(make_captioner):
    captioner, image = make_captioner(), torch.randn(2, 3, 48, 48)
    assert captioner(image, CAPTIONS).loss == captioner(image, CAPTIONS).loss
    captioner.train()
    assert captioner(image, CAPTIONS).loss != captioner(image, CAPTIONS).loss
