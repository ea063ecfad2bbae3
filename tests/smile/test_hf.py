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
from tests.smile.hf_steps import BOTH_KINDS, one_line


def test_compute_loss_func_of_both_kinds():
    for name in {*BOTH_KINDS, "MixtralForCausalLM"} & {*hf_models.HERE}:
        family = hf_models.make(name)
        outputs, labels = family.model(**family.batch), family.batch["labels"]
        loss_fn = compute_loss_func(family.model)
        for items in (None, 50):
            loss = loss_fn(outputs, labels, num_items_in_batch=items)
            torch.testing.assert_close(loss, expected_smile(family, items), atol=1e-6, rtol=0)


def test_a_model_without_labels_and_another_ignore_index_are_refused():
    model = hf_models.make("GPT2LMHeadModel").model
    for wrong in (model.transformer, torch.nn.Linear(2, 2)):
        with one_line("does not accept labels"):
            use_smile(wrong)
    with one_line("ignore_index is 0"):
        use_smile(model, Objective("smile", ignore_index=0))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("BertForMaskedLM", "fills in masked words"),
        ("BertForSequenceClassification", "writes no text"),
        ("XLNetLMHeadModel", "reads words in a permuted order"),
        ("ProphetNetForConditionalGeneration", "predicts several words at a time"),
        ("Wav2Vec2ForCTC", "aligns sound with text"),
        ("RagTokenForGeneration", "mixes predictions from several documents"),
    ],
)
def test_a_family_whose_loss_is_of_another_kind_is_refused_by_name(name, reason):
    model = torch.nn.Module()
    model.__class__ = type(name, (torch.nn.Module,), {})
    with one_line(f"{name} {reason}; give a model that generates text"):
        use_smile(model)


@pytest.mark.parametrize("name", BOTH_KINDS)
def test_labels_that_do_not_fit_are_refused_in_one_line(name):
    family = hf_models.make(name)
    use_smile(family.model)
    for labels, line in (
        (torch.ones(3, 7, 2, dtype=torch.long), "give integers of the shape"),
        (torch.ones(3, 7), "give integers of the shape"),
        (torch.ones(1, 7, dtype=torch.long), r"labels of \(1, 7\) for predictions of \(3, 7\)"),
        (torch.ones(3, 9, dtype=torch.long), r"labels of \(3, 9\) for predictions of \(3, 7\)"),
        (torch.ones(3, 5, dtype=torch.long), "5 labels for 7 input_ids"),
    ):
        if family.shift or labels.shape[1:] == (7, 2) or labels.is_floating_point():
            with one_line(line):
                family.model(**{**family.batch, "labels": labels})


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
    names = list(inspect.signature(class_forward).parameters)
    positional = names[1 : names.index("labels") + 1]
    loss = model(*[batch.pop(key, None) for key in positional], **batch).loss
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)
    assert calls == [None]
    undo(model)
    model(**family.batch)
    assert len(calls) == 2 and calls[1] is not None and model.forward.__func__ is own_forward


def test_an_argument_given_twice_is_refused():
    family = hf_models.make("GPT2LMHeadModel")
    with pytest.raises(TypeError, match="multiple values for input_ids"):
        use_smile(family.model)(family.batch["input_ids"], **family.batch)


def tiny_decoder(name, **changed):
    """Return a decoder of `name` with 40 tokens, and its batch; the first two labels are -100."""
    model_class = getattr(transformers, f"{name}ForCausalLM")
    sizes = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2}
    sizes |= {"decoder_ffn_dim": 16, "dropout": 0.0, "attention_dropout": 0.0, "vocab_size": 40}
    torch.manual_seed(0)
    tokens = torch.randint(3, 36, (3, 8))
    labels = tokens.index_fill(1, torch.arange(2), -100)
    return model_class(model_class.config_class(**sizes)), {"input_ids": tokens, "labels": labels}


@pytest.mark.parametrize("from_hidden", [False, True])
@pytest.mark.parametrize("name", ["Bart", "Pegasus", "TrOCR"])
def test_a_decoder_whose_own_loss_does_not_shift_labels(name, from_hidden):
    model, batch = tiny_decoder(name)
    own = model(**batch).loss
    use_smile(model, "mle", from_hidden=from_hidden)
    torch.testing.assert_close(model.train()(**batch).loss, own)


def test_another_ignore_index_is_refused():
    model, batch = tiny_decoder("Bart")
    with one_line("ignore_index is not supported"):
        use_smile(model)(**batch, ignore_index=0)


def test_a_backward_hook_of_the_head_is_kept():
    model, batch = tiny_decoder("Bart")
    use_smile(model, "mle", from_hidden=True)
    output_embeddings = model.get_output_embeddings()
    output_embeddings.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 10,))
    with pytest.warns(UserWarning, match="is trained from logits"):
        model.train()(**batch)
