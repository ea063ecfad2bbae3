"""transformers' models with the objective as their loss: every family, and the arguments."""

import copy
import inspect
import pickle
import re
import types

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import compute_loss_func, last_parts, undo, use_smile
from tests.smile import hf_models
from tests.smile.hf_steps import (
    BOTH_KINDS,
    GPT2,
    formula,
    gradients,
    made,
    one_line,
    predictions,
)

# One of each kind: a plain head, scaled, soft-capped, with a bias, tied and untied; router losses
# and a z-loss; behind an image, an encoder of words or of pixels.
QUICK = {
    *("GPT2LMHeadModel", "LlamaForCausalLM", "CohereForCausalLM", "Gemma2ForCausalLM"),
    *("BambaForCausalLM", "MixtralForCausalLM", "BartForConditionalGeneration"),
    *("T5ForConditionalGeneration", "T5ForConditionalGeneration, untied", "GitForCausalLM"),
    *("BlipForConditionalGeneration", "LlavaForConditionalGeneration", "VisionEncoderDecoderModel"),
}
each_family = pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in hf_models.HERE],
)
calls_loss_function = pytest.mark.skipif(
    transformers.__version__ == "4.15.0", reason="its GPT2 computes its loss itself"
)
both_kinds = pytest.mark.parametrize("name", BOTH_KINDS)


def assert_same(found, expected):
    """Assert that loss and gradients are equal, up to the float32 of routers and masks."""
    loss, expected_loss = found[0], expected[0]
    torch.testing.assert_close(loss.double(), expected_loss.double(), atol=1e-6, rtol=1e-6)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        tolerance = 1e-6 * (1 + gradient.abs().max().item())
        torch.testing.assert_close(found[1][name], gradient, atol=tolerance, rtol=0, msg=name)


def step(model, **batch):
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    return output.loss.detach(), gradients(model)


@each_family
def test_loss_and_gradients_are_the_formulas_with_and_without_logits_of_the_prompt(name):
    family, mixture = made(name), Objective({"mle": 0.3, "smile": 0.7})
    weights = torch.rand(family.batch["labels"].shape, dtype=torch.float64)
    for training in (True, False):
        model = family.model.train(training)
        expected = formula(family, mixture, 53)
        weighted = formula(family, mixture, weights=weights)
        use_smile(model, mixture)
        for keep_logits in (True, False):
            more = {"keep_logits": keep_logits}
            assert_same(step(model, **family.batch, num_items_in_batch=53, **more), expected)
            assert_same(step(model, **family.batch, weights=weights, **more), weighted)
        undo(model)


@each_family
def test_mle_is_the_models_own_loss_and_undo_restores_it(name):
    family = hf_models.make(name)
    own = family.model(**family.batch)
    signature, before = inspect.signature(family.model.forward), dict(vars(family.model))
    output = use_smile(family.model, "mle")(**family.batch)
    torch.testing.assert_close(output.loss.double(), own.loss.double(), atol=1e-6, rtol=0)
    (logits, labels), (expected, _) = (predictions(family, x.logits) for x in (output, own))
    torch.testing.assert_close(logits[labels != -100], expected[labels != -100])
    assert type(output) is type(own)
    assert family.model(**family.batch, return_dict=False)[0] == output.loss
    # Trainer reads it, and removes the columns of a data set that it lacks.
    ours = dict(inspect.signature(family.model.forward).parameters)
    assert [ours.pop(name).default for name in ("segments", "weights")] == [None, None]
    assert ours == dict(signature.parameters)
    assert family.model.accepts_loss_kwargs
    undo(family.model)
    assert vars(family.model).keys() == before.keys()
    assert not any(part._forward_pre_hooks for part in family.model.modules())
    torch.testing.assert_close(family.model(**family.batch).loss, own.loss)


def saved(model, folder):
    model.save_pretrained(folder)
    copied = type(model).from_pretrained(folder).double()
    hf_models.knows_float64(copied)
    return use_smile(copied)


@pytest.mark.parametrize(
    "copied", [lambda x, _: copy.deepcopy(x), lambda x, _: pickle.loads(pickle.dumps(x)), saved]
)
@both_kinds
def test_a_copy_is_a_model_of_its_own(name, copied, tmp_path):
    family = hf_models.make(name)
    model = use_smile(family.model)
    expected = model(**family.batch).loss
    twin = copied(model, tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(twin(**family.batch).loss, expected)
    decoder = twin.train().transformer if name == GPT2 else twin.train().decoder
    with one_line("another loss is trained"):  # the copy's guard
        decoder(family.batch["input_ids"])


def test_generation_in_training_is_as_before():
    family = made(GPT2)
    ids = family.batch["input_ids"][:, :3]
    expected = copy.deepcopy(family.model).generate(ids, max_length=6, do_sample=False)
    found = use_smile(family.model).generate(ids, max_length=6, do_sample=False)
    assert family.model.training and found.equal(expected)


@pytest.mark.parametrize("name", sorted({*BOTH_KINDS, "MixtralForCausalLM"} & {*hf_models.HERE}))
@pytest.mark.parametrize("items", [None, 50])
def test_compute_loss_func_has_the_same_loss_and_leaves_the_model_alone(name, items):
    family = made(name)
    expected, _ = formula(family, Objective(), items)
    batch = dict(family.batch)
    labels, before = batch.pop("labels"), dict(vars(family.model))
    if not family.shift:
        batch["decoder_input_ids"] = family.model.prepare_decoder_input_ids_from_labels(labels)
    loss_fn = compute_loss_func(family.model)
    found = loss_fn(family.model(**batch), labels, num_items_in_batch=items)
    torch.testing.assert_close(found.double(), expected.double(), atol=1e-6, rtol=0)
    assert vars(family.model) == before


@both_kinds
def test_the_parts_of_the_last_step_sum_up_to_its_loss(name):
    family = made(name)
    model = use_smile(family.model, Objective({"mle": 0.3, "smile": 0.7}, label_smoothing=0.1))
    assert last_parts(model) == {}
    loss = model(**family.batch, num_items_in_batch=5).loss
    parts = last_parts(model)
    tokens = (family.batch["labels"][:, family.shift :] != -100).sum()
    torch.testing.assert_close(
        (0.3 * parts["mle"] + 0.7 * parts["smile"]) * tokens / 5, loss.detach()
    )
    assert not any(part.requires_grad for part in parts.values())


@calls_loss_function
def test_logits_are_computed_only_where_labels_are():
    model, batch, *_ = made(GPT2)
    sizes = []
    model.lm_head.register_forward_hook(lambda head, given, logits: sizes.append(logits.size(1)))
    labelled = (batch["labels"][:, 1:] != -100).any(0).sum()
    assert labelled < batch["labels"].size(1) - 1
    for keep_logits in (False, True):
        use_smile(model)(**batch, keep_logits=keep_logits)
    assert sizes == [labelled, batch["labels"].size(1)]


@pytest.mark.parametrize(
    "name",
    [
        *("BertForMaskedLM", "BertForSequenceClassification", "XLNetLMHeadModel"),
        *("ProphetNetForConditionalGeneration", "Wav2Vec2ForCTC", "RagTokenForGeneration"),
    ],
)
def test_a_family_whose_loss_is_of_another_kind_is_refused_by_name(name):
    model = torch.nn.Module()
    forward = lambda self, labels=None: None  # noqa: E731
    model.__class__ = type(name, (torch.nn.Module,), {"forward": forward})
    with one_line(f"{name} does not accept the labels of a text; give a generative model"):
        use_smile(model)


def test_a_model_without_labels_is_refused():
    for wrong in (made(GPT2).model.transformer, torch.nn.Linear(2, 2)):
        with one_line("does not accept the labels"):
            use_smile(wrong)


@calls_loss_function
def test_labels_that_do_not_fit_are_one_line():
    model, batch, *_ = made(GPT2)
    use_smile(model)
    for shape in ((1, 7), (3, 9)):
        with one_line(r"labels of \(\d, \d\) for logits of \(3, 7\); give one for each"):
            model(**{**batch, "labels": torch.ones(*shape, dtype=torch.long)})
    batch["labels"][0, 3] = 40
    with one_line("is 40, but the vocabulary has 40 tokens"):
        model(**batch)


@both_kinds
def test_arguments_by_position_reach_a_forward_of_the_instance(name):
    family = made(name)
    expected, _ = formula(family, Objective())
    model, batch, calls = family.model, dict(family.batch), []
    class_forward = type(model).forward

    def own_forward(self, *args, **kwargs):
        calls.append(self)
        return class_forward(self, *args, **kwargs)

    model.forward = types.MethodType(own_forward, model)
    use_smile(use_smile(model, "mle"))
    names = list(inspect.signature(class_forward).parameters)
    positional = names[1 : names.index("labels") + 1]
    loss = model(*[batch.pop(key, None) for key in positional], **batch).loss
    torch.testing.assert_close(loss, expected)
    assert calls == [model] and undo(model).forward.__func__ is own_forward


@pytest.mark.parametrize("name", ["Bart", "Pegasus", "TrOCR"])
def test_a_decoder_whose_own_loss_does_not_shift_labels(name):
    sizes = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "vocab_size": 40}
    sizes |= {"decoder_ffn_dim": 16, "dropout": 0.0, "attention_dropout": 0.0}
    model_class = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(0)
    tokens = torch.randint(3, 36, (3, 8))
    batch = {"input_ids": tokens, "labels": tokens.index_fill(1, torch.arange(2), -100)}
    model = model_class(model_class.config_class(**sizes))
    own = model(**batch).loss
    torch.testing.assert_close(use_smile(model, "mle").train()(**batch).loss, own)


def test_the_snippets_of_the_pages_run(repository):
    """Runs the first snippets of the README's section and of the page."""
    readme, page = (
        (repository / path).read_text(encoding="utf-8")
        for path in ("README.md", "docs/any_model.md")
    )
    (section,) = re.findall(r"## SMILE in your model\n(.*?)\n## ", readme, re.S)
    pattern = r"```python\n(.*?)```"
    codes = [*re.findall(pattern, section, re.S), *re.findall(pattern, page, re.S)[:2]]
    assert len(codes) == 3
    model, batch, *_ = hf_models.make(GPT2)
    labels = batch.pop("labels")
    logits, hidden = torch.randn(*labels.shape, 40), torch.randn(*labels.shape, 8)
    known = {"logits": logits, "labels": labels, "shifted_prediction_scores": logits}
    known.update(model=model, batch=batch, hidden=hidden, lm_head=torch.nn.Linear(8, 40))
    for code in codes:
        exec(code, known)
    assert known["lm_loss"] > 0 and known["loss"] > 0
