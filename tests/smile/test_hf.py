"""transformers' models with the objective as their loss, against formulas written out."""

import inspect
import types

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import compute_loss_func, undo, use_smile
from tests.smile import hf_models
from tests.smile.families.expected import expected_smile
from tests.smile.hf_steps import BOTH_KINDS


def test_compute_loss_func_of_both_kinds():
    kinds = ["T5ForConditionalGeneration", "GPT2LMHeadModel", "MixtralForCausalLM"]
    for name in {*kinds} & {*hf_models.HERE}:
        family = hf_models.make(name)
        function = compute_loss_func(family.model)
        outputs, labels = family.model(**family.batch), family.batch["labels"]
        loss = function(outputs, labels)
        torch.testing.assert_close(loss, expected_smile(family), atol=1e-6, rtol=0)
        by_items = function(outputs, labels, num_items_in_batch=torch.tensor(50))
        torch.testing.assert_close(by_items, expected_smile(family, 50), atol=1e-6, rtol=0)


@pytest.mark.skipif(
    "LlavaForConditionalGeneration" not in hf_models.HERE, reason="transformers has no LLaVA"
)
def test_image_tokens_left_in_the_labels_are_no_words():
    family = hf_models.make("LlavaForConditionalGeneration")
    use_smile(family.model)
    expected = family.model(**family.batch).loss
    labels = family.batch["labels"].clone()
    labels[family.batch["input_ids"] == hf_models.IMAGE_TOKEN] = hf_models.IMAGE_TOKEN
    torch.testing.assert_close(family.model(**{**family.batch, "labels": labels}).loss, expected)


def test_what_cannot_be_done_is_said():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    masked = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=8))
    with pytest.raises(ValueError, match="BertForMaskedLM fills in masked words"):
        use_smile(masked)
    family = hf_models.make("GPT2LMHeadModel")
    with pytest.raises(ValueError, match="does not accept labels"):
        use_smile(family.model.transformer)
    with pytest.raises(ValueError, match="does not accept labels"):
        use_smile(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="ignore_index is 0"):
        use_smile(family.model, Objective("smile", ignore_index=0))
    use_smile(family.model)
    with pytest.raises(ValueError, match="9 labels for 7 predictions"):
        family.model(input_ids=hf_models.text(), labels=torch.ones(3, 9, dtype=torch.long))


@pytest.mark.parametrize("name", BOTH_KINDS)
def test_arguments_by_position_reach_a_forward_of_the_instance(name):
    family = hf_models.make(name)
    model, batch, calls = family.model, dict(family.batch), []
    expected = expected_smile(family)
    class_forward = type(model).forward

    def own_forward(self, *args, **kwargs):
        calls.append(kwargs.get("labels"))
        return class_forward(self, *args, **kwargs)

    model.forward = types.MethodType(own_forward, model)
    use_smile(model)
    names = list(inspect.signature(class_forward).parameters)[1:]
    before = names[: names.index("labels") + 1]
    loss = model(*[batch.pop(key, None) for key in before], **batch).loss
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)
    assert calls == [None]
    undo(model)
    model(**family.batch)
    assert len(calls) == 2 and calls[1] is not None and model.forward.__func__ is own_forward


def test_an_argument_given_twice_is_refused():
    family = hf_models.make("GPT2LMHeadModel")
    use_smile(family.model)
    with pytest.raises(TypeError, match="multiple values for input_ids"):
        family.model(family.batch["input_ids"], **family.batch)
