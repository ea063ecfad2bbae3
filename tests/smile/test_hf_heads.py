"""Language heads that are more than a linear layer, and what is refused, each in one line."""

import sys
import types

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import compute_loss_func, last_parts, use_smile
from smile.hf.auxiliary import auxiliary_losses
from smile.hf.head import linear_head
from smile.hf.head_table import needs_labels_for_mask
from smile.hf.label_alignment import align_labels
from tests.smile import hf_models
from tests.smile.families.batches import VOCABULARY
from tests.smile.hf_steps import GPT2, made, needs, one_line

MIXTURE = Objective({"mle": 0.3, "smile": 0.7})


class Cosine(torch.nn.Linear):
    def forward(self, hidden):
        return super().forward(torch.nn.functional.normalize(hidden, dim=-1))


def assert_from_logits(model, batch):
    """Assert that the loss is computed from logits, with a warning."""
    expected = use_smile(model, MIXTURE)(**batch).loss
    with pytest.warns(UserWarning, match="is trained from logits: smile.hf.head_table lacks"):
        output = use_smile(model, MIXTURE, from_hidden=True).train()(**batch)
    assert output.logits is not None
    torch.testing.assert_close(output.loss, expected)


def replaced(model, head):
    model.lm_head = head.double()
    model.config.tie_word_embeddings = False
    return model


def adapted(model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["lm_head"])
    return peft.get_peft_model(model, config).double()


class Louder(transformers.GPT2LMHeadModel):
    """A user's model that scales its logits."""

    def forward(self, *args, labels=None, **kwargs):
        output = super().forward(*args, **kwargs)
        output["logits"] = 1.5 * output["logits"]
        return output


def louder(model):
    model.__class__ = Louder
    return model


HEAD_SIZES = (16, VOCABULARY)
UNREADABLE = {
    "another forward": lambda model: replaced(model, Cosine(*HEAD_SIZES)),
    "several layers": lambda model: replaced(
        model, torch.nn.Sequential(torch.nn.Linear(*HEAD_SIZES))
    ),
    "an adapter": adapted,
    "a class that the table lacks": louder,
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE)
def test_a_model_whose_head_cannot_be_read_is_trained_from_logits(change):
    family = made(GPT2)
    assert_from_logits(change(family.model), family.batch)


@needs("Gemma2ForCausalLM")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_unknown_change(dtype):
    family = made("Gemma2ForCausalLM")
    losses = [
        use_smile(family.model.to(dtype), MIXTURE, from_hidden).train()(**family.batch).loss.item()
        for from_hidden in (False, True)
    ]
    assert abs(losses[0] - losses[1]) < 0.02


@pytest.mark.parametrize("change", [lambda x: 1.001 * x, lambda x: x[..., 1:]])
def test_logits_that_a_forward_set_before_changes_are_refused_in_the_first_step(change):
    family = made(GPT2)
    own = family.model.forward

    def forward(*args, **kwargs):
        output = own(*args, **kwargs)
        output["logits"] = change(output["logits"])
        return output

    family.model.forward = forward
    use_smile(family.model, from_hidden=True).train()
    with one_line("GPT2LMHeadModel changes the logits of its language head"):
        family.model(**family.batch)


MUSE = types.SimpleNamespace(output_multiplier=3.0, final_logit_softcapping=5.0)
OTHER = {"output_multiplier": 7.0}  # of the vision model


@pytest.mark.parametrize(
    "name, values, transform",
    [
        ("MuseGlimmerForConditionalGeneration", {"text_config": MUSE, **OTHER}, (3.0, 5.0)),
        ("xLSTMForCausalLM", {"output_logit_soft_cap": 4.0}, (1.0, 4.0)),
        ("CohereForCausalLM", {"logit_scale": 0.5}, (0.5, None)),
    ],
)
def test_a_head_and_its_transform_are_found_as_the_table_says(name, values, transform):
    module = type(name, (torch.nn.Module,), {"__module__": "transformers.models.any"})()
    module.config, head = types.SimpleNamespace(**values), torch.nn.Linear(4, 9)
    module.get_output_embeddings = lambda: head
    assert linear_head(module) == (head, transform, None, None)
    module.logit_scale = 2.0  # that of the model counts
    assert "Cohere" not in name or linear_head(module).transform == (2.0, None)


class PaliGemmaForConditionalGeneration(torch.nn.Module):
    """The one of transformers 4.41 to 4.57: its mask is causal only if labels are given."""

    __module__ = "transformers.models"

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(is_encoder_decoder=False, return_dict=True)
        self.lm_head = torch.nn.Linear(4, 9)

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, token_type_ids=None, labels=None, return_dict=None):
        is_training = token_type_ids is not None and labels is not None
        logits = self.lm_head(torch.ones(*input_ids.shape, 4)) * is_training
        loss = logits.mean() + 100 if labels is not None else None
        return {"loss": loss, "logits": logits}


def test_a_model_that_masks_by_its_labels_gets_them(monkeypatch):
    subclass = type("Mine", (PaliGemmaForConditionalGeneration,), {"__module__": "mine"})
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.0.0")
    assert not needs_labels_for_mask(subclass())
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.50.3")
    assert needs_labels_for_mask(subclass())
    model = PaliGemmaForConditionalGeneration()
    tokens = torch.randint(9, (2, 5))
    with torch.no_grad():
        causal = model.lm_head(torch.ones(8, 4))
    expected = torch.nn.functional.cross_entropy(causal, tokens[:, 1:].flatten())
    for from_hidden in (False, True):
        use_smile(model, "mle", from_hidden)
        loss = model(input_ids=tokens, token_type_ids=tokens, labels=tokens)["loss"]
        torch.testing.assert_close(loss, expected)
    named = "PaliGemmaForConditionalGeneration before transformers 5.0 masks text by"
    with one_line(f"{named} token_type_ids, but the batch has none"):
        model(input_ids=tokens, labels=tokens)
    with one_line(f"{named} its labels; call use_smile"):
        compute_loss_func(model)


def test_images_that_take_more_places_than_they_have_tokens():
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(is_encoder_decoder=False, image_token_id=39)
    )
    logits = torch.randn(2, 8, 40)
    # One image's token in a row, which takes four places.
    tokens = torch.tensor([[5, 39, 6, 7, 8], [5, 39, 6, 7, 0]])
    labels = torch.tensor([[-100, -100, 6, 7, 8], [-100, -100, 6, 7, -100]])
    found, aligned = align_labels(model, logits, labels, tokens=tokens)
    torch.testing.assert_close(found, logits[:, 3:-1])
    torch.testing.assert_close(aligned, labels[:, 1:])
    early = labels.clone()
    early[1, 0] = 5
    uneven = tokens.clone()
    uneven[1, 0] = 39
    for wrong, given in ((early, tokens), (labels, uneven)):
        with one_line("let the processor repeat the image's token"):
            align_labels(model, logits, wrong, tokens=given)
        align_labels(model, logits[:, 3:], wrong, tokens=given)  # each place has its token


@needs("MixtralForCausalLM")
def test_the_parts_of_routers_are_reported_and_may_not_be_missing():
    family = hf_models.make("MixtralForCausalLM")
    output = {**family.model(**family.batch), "loss": None}
    added, parts = auxiliary_losses(family.model, output)
    torch.testing.assert_close(parts, {"aux_loss": output["aux_loss"].detach()})
    torch.testing.assert_close(added, family.model.router_aux_loss_coef * output["aux_loss"])
    del output["aux_loss"]
    with one_line("MixtralForCausalLM computes its router losses only"):
        auxiliary_losses(family.model, output)
    del output["router_logits"]
    assert auxiliary_losses(family.model, output) == (None, {})


def test_auxiliary_losses_are_numbers_on_the_device_of_the_logits():
    model = types.SimpleNamespace(config=types.SimpleNamespace(router_aux_loss_coef=0.5))
    output = {"logits": torch.zeros(1, 1, 9, device="meta"), "encoder_aux_loss": 0}
    output["decoder_aux_loss"] = torch.ones(1, device="meta")
    added, parts = auxiliary_losses(model, output)
    assert added.device.type == "meta" and added.shape == () and len(parts) == 2
    output["decoder_aux_loss"] = torch.ones(2)
    with one_line(r"decoder_aux_loss is \(2,\); it must be one number"):
        auxiliary_losses(model, output)


class Regularised(transformers.GPT2LMHeadModel):
    """A user's model, whose loss has a term without labels."""

    def forward(self, *args, labels=None, **kwargs):
        output = super().forward(*args, labels=labels, **kwargs)
        norm = self.lm_head.weight.norm()
        output["loss"] = norm if output.loss is None else output.loss + norm
        return output


def test_a_loss_that_comes_without_labels_is_kept():
    family = made(GPT2)
    family.model.__class__ = Regularised
    own = family.model(**family.batch).loss
    use_smile(family.model, "mle")
    torch.testing.assert_close(family.model(**family.batch).loss, own, atol=1e-6, rtol=0)
    norm = family.model.lm_head.weight.norm().detach()
    torch.testing.assert_close(last_parts(family.model)["own_loss"], norm)


def doubled(head):
    forward = head.forward
    head.forward = lambda states: 2 * forward(states)


CHANGES = [
    doubled,
    lambda head: head.register_forward_hook(lambda _, states, logits: 2 * logits),
    lambda head: head.register_forward_pre_hook(lambda _, states: (2 * states[0],)),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_head_that_was_changed_is_not_read(change):
    """Its weight and bias no longer determine its logits."""
    (model, batch, *_), other = made(GPT2), made(GPT2).model
    change(other.lm_head)
    assert_from_logits(other, batch)
    use_smile(model, MIXTURE, from_hidden=True).train()
    assert model(**batch).logits is None
    change(model.lm_head)
    with pytest.warns(UserWarning, match="trained from logits.*the head was changed") as warned:
        outputs = [model(**batch) for _ in range(2)]
    assert len(warned) == 1 and outputs[0].logits is not None
    torch.testing.assert_close(outputs[0].loss, use_smile(model, MIXTURE)(**batch).loss)
