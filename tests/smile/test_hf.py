"""transformers' models with the objective as their loss: every family, and the arguments."""

import copy
import inspect
import pickle
import re
import tempfile

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import compute_loss_func, last_parts, undo, use_smile
from tests.markers import slow
from tests.programs import raises_line
from tests.smile import hf_steps
from tests.smile.families.batches import SIZES
from tests.smile.hf_steps import BOTH_KINDS, GPT2, formula, made, predictions, step

# One of each kind: a plain head, scaled, soft-capped, with a bias, tied and untied; router losses;
# behind an image, an encoder of words or of pixels.
QUICK = {
    *("GPT2LMHeadModel", "LlamaForCausalLM", "CohereForCausalLM", "Gemma2ForCausalLM"),
    *("BambaForCausalLM", "MixtralForCausalLM", "BartForConditionalGeneration"),
    *("T5ForConditionalGeneration", "T5ForConditionalGeneration, untied", "GitForCausalLM"),
    *("BlipForConditionalGeneration", "LlavaForConditionalGeneration", "VisionEncoderDecoderModel"),
}
NAMES = [name if name in QUICK else slow(name) for name in hf_steps.HERE]
each_family = pytest.mark.parametrize("name", NAMES)
both_kinds = pytest.mark.parametrize("name", BOTH_KINDS)


def assert_same(found, expected):
    """Assert that loss and gradients are equal, up to the float32 of routers and masks."""
    found, expected = (
        {"loss": loss.double(), **gradients} for loss, gradients in (found, expected)
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = 1e-6 * (1 + value.abs().max().item())
        torch.testing.assert_close(found[name], value, atol=tolerance, rtol=0, msg=name)


@each_family
@pytest.mark.parametrize("training", [True, False])
def test_loss_and_gradients_are_the_formulas_with_and_without_logits_of_the_prompt(name, training):
    family, mixture = made(name), Objective({"mle": 0.3, "smile": 0.7})
    weights = torch.rand(family.batch["labels"].shape, dtype=torch.float64)
    family.model.train(training)
    expected, weighted = formula(family, mixture, 53), formula(family, mixture, weights=weights)
    model = use_smile(family.model, mixture)
    for keep_logits in (True, False):
        more = {"keep_logits": keep_logits}
        assert_same(step(model, **family.batch, num_items_in_batch=53, **more), expected)
        assert_same(step(model, **family.batch, weights=weights, **more), weighted)


@each_family
def test_mle_is_the_models_own_loss_and_undo_restores_it(name):
    model, batch, *_ = family = hf_steps.make(name)
    own, before = model(**batch), dict(vars(model))
    names = [*inspect.signature(model.forward).parameters]
    output = use_smile(use_smile(model), "mle")(**batch)
    torch.testing.assert_close(output.loss.double(), own.loss.double(), atol=1e-6, rtol=0)
    (logits, labels), (expected, _) = (predictions(family, x.logits) for x in (output, own))
    torch.testing.assert_close(logits[labels != -100], expected[labels != -100])
    assert type(output) is type(own) and 0 < last_parts(model)["mle"] <= output.loss
    positional = [batch.get(name) for name in names[: names.index("labels") + 1]]
    rest = {key: batch[key] for key in batch.keys() - names[: len(positional)]}
    assert model(*positional, **rest, return_dict=False)[0] == output.loss
    # Trainer reads it, and removes the columns of a data set that it lacks.
    assert [*inspect.signature(model.forward).parameters] == [*names, "segments", "weights"]
    assert model.accepts_loss_kwargs
    undo(model)
    assert vars(model).keys() == before.keys()
    assert not any(part._forward_pre_hooks for part in model.modules())
    torch.testing.assert_close(model(**batch).loss, own.loss)


def saved(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        copied = type(model).from_pretrained(folder).double()
    hf_steps.knows_float64(copied)
    return use_smile(copied)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), saved])
@both_kinds
def test_a_copy_is_a_model_of_its_own(name, copied):
    model, batch, *_ = hf_steps.make(name)
    expected = use_smile(model)(**batch).loss
    twin = copied(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(twin(**batch).loss, expected)
    decoder = twin.train().transformer if name == GPT2 else twin.train().decoder
    with raises_line(ValueError, "another loss is trained"):  # the copy's guard
        decoder(batch["input_ids"])


@pytest.mark.parametrize("name", sorted({*BOTH_KINDS, "MixtralForCausalLM"} & {*hf_steps.HERE}))
def test_compute_loss_func_has_the_same_loss_and_leaves_the_model_alone(name):
    family = made(name)
    batch = dict(family.batch)
    labels, before = batch.pop("labels"), dict(vars(family.model))
    if not family.shift:
        batch["decoder_input_ids"] = family.model.prepare_decoder_input_ids_from_labels(labels)
    loss_fn, output = compute_loss_func(family.model), family.model(**batch)
    for items in (None, 50):
        found = loss_fn(output, labels, num_items_in_batch=items)
        expected = formula(family, Objective(), items)[0]
        torch.testing.assert_close(found.double(), expected.double(), atol=1e-6, rtol=0)
    assert vars(family.model) == before


def test_a_model_whose_loss_is_of_another_kind_is_refused_by_name():
    masked = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES["bert"]))
    own = type("XLNetLMHeadModel", (torch.nn.Module,), {"forward": lambda self, labels: labels})()
    wrong = [own, made(GPT2).model.transformer, torch.nn.Linear(2, 2)]
    wrong += [masked] * hasattr(masked, "can_generate")
    for model in wrong:
        line = f"{type(model).__name__} does not accept the labels of a text; give a generative"
        with raises_line(ValueError, line):
            use_smile(model)


@pytest.mark.skipif(transformers.__version__ == "4.15.0", reason="its GPT2 refuses them itself")
def test_labels_that_do_not_fit_are_one_line():
    model, batch, *_ = made(GPT2)
    use_smile(model)
    for shape in ((1, 7), (3, 9)):
        with raises_line(ValueError, f"labels of {shape} for logits of (3, 7); give one for each"):
            model(**{**batch, "labels": torch.ones(*shape, dtype=torch.long)})


@pytest.mark.parametrize("name", ["Bart", "Pegasus", "TrOCR"])
def test_a_decoder_whose_own_loss_does_not_shift_labels(name):
    sizes = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "vocab_size": 40}
    model_class = getattr(transformers, f"{name}ForCausalLM")
    tokens = torch.randint(3, 36, (3, 8))
    batch = {"input_ids": tokens, "labels": tokens.index_fill(1, torch.arange(2), -100)}
    model = model_class(model_class.config_class(**sizes, decoder_ffn_dim=16)).eval()
    own = model(**batch).loss
    torch.testing.assert_close(use_smile(model, "mle")(**batch).loss, own)


def test_the_snippets_of_the_pages_run(repository):
    readme, page = (
        (repository / path).read_text(encoding="utf-8")
        for path in ("README.md", "docs/any_model.md")
    )
    (section,) = re.findall(r"## SMILE in your model\n(.*?)\n## ", readme, re.S)
    pattern = r"```python\n(.*?)```"
    codes = [*re.findall(pattern, section, re.S), *re.findall(pattern, page, re.S)[:2]]
    assert len(codes) == 3
    model, batch, *_ = hf_steps.make(GPT2)
    labels = batch.pop("labels")
    logits, hidden = torch.randn(*labels.shape, 40), torch.randn(*labels.shape, 8)
    known = {"logits": logits, "labels": labels, "shifted_prediction_scores": logits}
    known.update(model=model, batch=batch, hidden=hidden, lm_head=torch.nn.Linear(8, 40))
    for code in codes:
        exec(code, known)
    assert known["lm_loss"] > 0 and known["loss"] > 0
