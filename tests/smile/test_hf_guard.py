"""What would train another loss than that of use_smile ends in its first step, with one line."""

import pytest
import torch

from smile.hf import undo, use_smile
from tests.programs import raises_line
from tests.smile import hf_steps
from tests.smile.hf_steps import BOTH_KINDS, GPT2, LLAMA, T5, made

REMEDY = "not the objective's. Train with class Mine(SmileLossMixin, SFTTrainer)", "undo(model)"


def by_its_decoder(model, batch):
    return model.lm_head(model.transformer(batch["input_ids"])[0]).sum()


def without_labels(model, batch):
    """Like label smoothing of Trainer, and its compute_loss_func."""
    del batch["labels"]
    return model(**batch).logits.square().sum()


@pytest.mark.parametrize("compute", [by_its_decoder, without_labels])
def test_another_loss_ends_in_one_line_in_training_alone(compute):
    family = made(GPT2)
    model, batch = use_smile(family.model), family.batch
    with raises_line(ValueError, *REMEDY):
        compute(model, dict(batch))
    compute(model.eval(), dict(batch))
    with torch.no_grad():
        compute(model.train(), dict(batch))
    compute(undo(model).train(), dict(batch)).backward()


@pytest.mark.parametrize(
    "name", [T5, "BlipForConditionalGeneration", "Pix2StructForConditionalGeneration"]
)
def test_a_decoder_of_a_class_without_base_model_is_guarded(name):
    if name not in hf_steps.HERE:
        pytest.skip(f"transformers has no {name}")
    model, batch, *_ = made(name)
    use_smile(model)(**batch).loss.backward()
    decoder = model.text_decoder if hasattr(model, "text_decoder") else model.decoder
    with raises_line(ValueError, *REMEDY):
        decoder(input_ids=batch["labels"].clamp(min=0))


@hf_steps.needs(LLAMA)
def test_ligers_patch_of_an_instance_is_refused():
    liger = pytest.importorskip("liger_kernel.transformers")
    model, batch, *_ = made(LLAMA)
    # Its other kernels run on a GPU alone.
    rest = {"rope": False, "rms_norm": False, "swiglu": False}
    liger.apply_liger_kernel_to_llama(model=use_smile(model), **rest)
    with raises_line(ValueError, *REMEDY):
        model(**batch)


@hf_steps.needs(LLAMA)
def test_a_forward_of_the_instance_is_refused_before_and_after():
    model, batch, *_ = made(LLAMA)
    own = model.forward
    use_smile(model).forward = own  # as a library does later
    with raises_line(ValueError, *REMEDY, start="LlamaForCausalLM: another forward was set"):
        model.eval()(**batch)
    undo(model).forward = lambda **inputs: own(**{**inputs, "labels": None})
    with raises_line(ValueError, *REMEDY, start="LlamaForCausalLM: its forward computes another"):
        use_smile(model)(**batch)


@pytest.mark.parametrize("name", BOTH_KINDS)
def test_an_evaluation_without_labels_has_logits_and_no_loss(name):
    model, batch, *_ = made(name)
    expected = model.eval()(**batch).logits
    labels = batch.pop("labels")
    if name == T5:
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    output = use_smile(model)(**batch)
    assert output.loss is None
    torch.testing.assert_close(output.logits, expected)
