"""Every family of transformers with the objective as its loss, beside the model's own loss."""

import copy
import inspect
import sys
import warnings

import pytest
import torch

from smile import Objective
from smile.hf import undo, use_smile
from tests.smile import hf_models
from tests.smile.families import table
from tests.smile.families.expected import expected_smile, predictions
from tests.smile.hf_steps import gradients

MLE = "mle"
# One of each kind: a plain head, scaled, soft-capped, with a bias, tied and untied; router losses
# and a z-loss; behind an image, an encoder of words or of pixels.
QUICK = {
    *("GPT2LMHeadModel", "LlamaForCausalLM", "CohereForCausalLM", "Gemma2ForCausalLM"),
    *("BambaForCausalLM", "MixtralForCausalLM", "BartForConditionalGeneration"),
    *("T5ForConditionalGeneration", "T5ForConditionalGeneration, untied"),
    *("BlipForConditionalGeneration", "LlavaForConditionalGeneration", "VisionEncoderDecoderModel"),
}
each_family = pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in hf_models.HERE],
)


@each_family
def test_the_loss_is_the_models_own_or_the_formula_and_undo_restores(name):
    family = hf_models.make(name)
    before, own = type(family.model), family.model(**family.batch)
    signature = inspect.signature(family.model.forward)
    mle = use_smile(family.model, MLE)(**family.batch)
    torch.testing.assert_close(mle.loss, own.loss.double(), atol=1e-6, rtol=0)
    (logits, labels), (expected, _) = (predictions(family, x.logits) for x in (mle, own))
    torch.testing.assert_close(logits[labels != -100], expected[labels != -100])
    assert type(mle) is type(own)
    undo(family.model)
    assert type(family.model) is before
    torch.testing.assert_close(family.model(**family.batch).loss, own.loss)
    expected, of_more = expected_smile(family), expected_smile(family, tokens=53)
    use_smile(family.model)
    # Trainer reads it, and takes each name with "label" in it for one that batches have.
    ours = dict(inspect.signature(family.model.forward).parameters)
    assert [ours.pop(name).default for name in ("segments", "weights")] == [None, None]
    assert ours == dict(signature.parameters)
    loss = family.model(**family.batch).loss
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)
    by_more = family.model(**family.batch, num_items_in_batch=53, return_dict=False)[0]
    torch.testing.assert_close(by_more, of_more, atol=1e-6, rtol=0)


@each_family
def test_from_hidden_states_gives_the_same_loss_and_gradients(name):
    family, runs, mixture = hf_models.make(name), [], Objective({"mle": 0.3, "smile": 0.7})
    family.model.train()
    for from_hidden in (False, True):
        torch.manual_seed(1)  # the same dropout
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            use_smile(family.model, mixture, from_hidden)
        from_logits = from_hidden and not family.from_hidden
        assert any("is trained from logits" in str(x.message) for x in warned) == from_logits
        family.model.zero_grad()
        output = family.model(**family.batch, num_items_in_batch=11)
        output.loss.backward()
        runs.append((output, gradients(family.model)))
    (logged, expected), (output, found) = runs
    assert (output.logits is None) == family.from_hidden and logged.logits is not None
    torch.testing.assert_close((output.loss, found), (logged.loss, expected))
    family.model.eval()
    assert family.model(**family.batch).logits is not None


@each_family
def test_generates_as_before_and_a_copy_is_a_model_of_its_own(name):
    family = hf_models.make(name)
    inputs = {key: value for key, value in family.batch.items() if key != "labels"}
    expected = family.model(**inputs).logits if family.shift else None
    model = use_smile(copy.deepcopy(family.model))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    if family.shift:
        torch.testing.assert_close(twin(**inputs).logits, expected)
    torch.testing.assert_close(twin(**family.batch).loss, expected_smile(family), atol=1e-6, rtol=0)
    assert type(twin).__name__ == hf_models.class_of(name)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="its transformers gives PaliGemma no cap")
@pytest.mark.skipif(sorted(hf_models.FAMILIES) != hf_models.HERE, reason="not all are here")
def test_the_page_has_the_table_of_these_families(repository):
    page = (repository / table.PAGE).read_text(encoding="utf-8")
    assert page == table.put_into(page), f"run {table.COMMAND}"
