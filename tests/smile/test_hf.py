"""transformers' models with the objective as their loss, against formulas written out."""

import copy
import importlib.util
import inspect
import math
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

from smile import Objective
from smile.hf import compute_loss_func, undo, use_smile

_spec = importlib.util.spec_from_file_location(
    "hf_models", Path(__file__).with_name("hf_models.py")
)
hf_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hf_models)
MLE = Objective("mle", label_smoothing=0.0)
SMILE = Objective("smile")
each_family = pytest.mark.parametrize("name", hf_models.HERE)


def naive_smile(logits, labels):
    """SMILE with first-token MLE, one caption and one token at a time; the sum, and the tokens."""
    total, tokens = 0.0, 0
    for caption_logits, caption in zip(logits, labels):
        own = set(caption.tolist()) - {-100}
        outside = [word for word in range(logits.size(2)) if word not in own]
        first = True
        for row, label in zip(caption_logits, caption):
            if label == -100:
                continue
            row = row.clone()
            if not first:
                row[outside] = -math.inf
            total, tokens, first = total - F.log_softmax(row, 0)[label], tokens + 1, False
    return total, tokens


def expected_smile(family):
    """From the logits that the model as it is gives, moved as the family does."""
    logits, labels = family.model(**family.batch).logits[:, family.before :], family.batch["labels"]
    if family.shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return naive_smile(logits, labels)


@each_family
def test_mle_is_the_models_own_loss(name):
    family = hf_models.make(name)
    own = family.model(**family.batch)
    ours = use_smile(family.model, MLE)(**family.batch)
    torch.testing.assert_close(ours.loss, own.loss.double(), atol=1e-6, rtol=0)
    labelled = torch.cat([family.batch["labels"] != -100] * 2, 1)[:, -ours.logits.size(1) :]
    torch.testing.assert_close(ours.logits[labelled], own.logits[labelled])
    assert type(ours) is type(own)


@each_family
def test_smile_is_the_formula_and_undo_restores(name):
    family = hf_models.make(name)
    before, own = type(family.model), family.model(**family.batch).loss
    total, tokens = expected_smile(family)
    signature = inspect.signature(family.model.forward)
    use_smile(family.model)
    assert inspect.signature(family.model.forward) == signature  # Trainer reads it
    loss = family.model(**family.batch).loss
    torch.testing.assert_close(loss, total / tokens, atol=1e-6, rtol=0)
    of_more = family.model(**family.batch, num_items_in_batch=3 * tokens).loss
    torch.testing.assert_close(of_more, total / tokens / 3, atol=1e-6, rtol=0)
    as_tuple = family.model(**family.batch, return_dict=False)
    torch.testing.assert_close(as_tuple[0], loss)
    undo(family.model)
    assert type(family.model) is before
    torch.testing.assert_close(family.model(**family.batch).loss, own)


@each_family
@pytest.mark.parametrize("spec", ["smile", {"mle": 0.3, "smile": 0.7}])
def test_from_hidden_states_gives_the_same_loss_and_gradients(name, spec):
    family, runs = hf_models.make(name), []
    family.model.train()
    for from_hidden in (False, True):
        torch.manual_seed(1)  # the same dropout
        use_smile(family.model, Objective(spec), from_hidden)
        family.model.zero_grad()
        output = family.model(**family.batch, num_items_in_batch=11)
        output.loss.backward()
        gradients = {k: v.grad for k, v in family.model.named_parameters() if v.grad is not None}
        runs.append((output, gradients))
    (logged, expected), (output, gradients) = runs
    assert output.logits is None and logged.logits is not None
    torch.testing.assert_close(output.loss, logged.loss)
    assert gradients.keys() == expected.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[key], msg=key)
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
    total, tokens = expected_smile(family)
    torch.testing.assert_close(twin(**family.batch).loss, total / tokens, atol=1e-6, rtol=0)
    assert type(twin).__name__ == name


def test_published_t5_loss():
    """By the formula of SEEDS: the labels' -100 removed, the other words -inf, first token free."""
    family = hf_models.make("T5ForConditionalGeneration")
    logits, labels = family.model(**family.batch).logits, family.batch["labels"]
    mask = torch.full_like(logits, -math.inf)
    for caption, row in zip(labels, mask):
        row[:, caption[caption != -100]] = 0
    mask[:, 0] = 0
    expected = F.cross_entropy((logits + mask).flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss = use_smile(family.model)(**family.batch).loss
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)


def test_compute_loss_func_of_both_kinds():
    for name in {"T5ForConditionalGeneration", "GPT2LMHeadModel"}:
        family = hf_models.make(name)
        total, tokens = expected_smile(family)
        function = compute_loss_func(family.model)
        outputs, labels = family.model(**family.batch), family.batch["labels"]
        torch.testing.assert_close(function(outputs, labels), total / tokens)
        by_items = function(outputs, labels, num_items_in_batch=torch.tensor(50))
        torch.testing.assert_close(by_items, total / 50)


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
    with pytest.raises(ValueError, match="BertForMaskedLM fills in words"):
        use_smile(masked)
    family = hf_models.make("GPT2LMHeadModel")
    with pytest.raises(ValueError, match="takes no labels"):
        use_smile(family.model.transformer)
    with pytest.raises(ValueError, match="takes no labels"):
        use_smile(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="ignore_index is 0"):
        use_smile(family.model, Objective("smile", ignore_index=0))
    use_smile(family.model)
    with pytest.raises(ValueError, match="9 labels for 7 predictions"):
        family.model(input_ids=hf_models.text(), labels=torch.ones(3, 9, dtype=torch.long))


def test_logits_that_are_changed_after_the_head_are_not_made_from_hidden_states():
    family = hf_models.make("BartForConditionalGeneration")
    family.model.final_logits_bias += 1
    use_smile(family.model, from_hidden=True).train()
    with pytest.raises(ValueError, match="changes the logits"):
        family.model(**family.batch)
    family.model.lm_head = torch.nn.Sequential(family.model.lm_head)
    with pytest.raises(ValueError, match="no linear language head"):
        use_smile(family.model, from_hidden=True)


@each_family
@pytest.mark.parametrize("positional", [False, True])
def test_a_forward_of_the_instances_own_is_called_with_the_objective_around_it(name, positional):
    """As accelerate leaves one behind, for autocast or to move inputs between devices."""
    family = hf_models.make(name)
    model, batch, calls = family.model, dict(family.batch), []
    total, tokens = expected_smile(family)
    class_forward = type(model).forward

    def own_forward(self, *args, **kwargs):
        calls.append(kwargs.get("labels"))
        return class_forward(self, *args, **kwargs)

    model.forward = types.MethodType(own_forward, model)
    use_smile(model)
    if positional:  # all arguments, up to the labels
        names = list(inspect.signature(class_forward).parameters)[1:]
        before = names[: names.index("labels") + 1]
        loss = model(*[batch.pop(key, None) for key in before], **batch).loss
    else:
        loss = model(**batch).loss
    torch.testing.assert_close(loss, total / tokens, atol=1e-6, rtol=0)
    assert calls == [None]
    undo(model)
    model(**family.batch)
    assert len(calls) == 2 and calls[1] is not None and model.forward.__func__ is own_forward


def test_an_argument_given_twice_is_refused():
    family = hf_models.make("GPT2LMHeadModel")
    use_smile(family.model)
    with pytest.raises(TypeError, match="multiple values for input_ids"):
        family.model(family.batch["input_ids"], **family.batch)
