"""torch.compile before and after use_smile: the same step, and the same lines."""

import copy

import pytest
import torch
import transformers

from smile import Objective
from smile.hf import last_parts, use_smile
from tests.smile import hf_models, hf_steps
from tests.smile.hf_steps import GPT2, LLAMA, T5, gradients, one_line

CAUSAL = LLAMA if LLAMA in hf_models.HERE else GPT2
SMILE, MLE = Objective(), Objective("mle")
OLD = transformers.__version__ == "4.15.0"


@pytest.fixture(autouse=True)
def from_scratch():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def made(name):
    """Return the family, whose model has one layer, which is compiled in half the time."""
    family = hf_steps.made(name)
    for name, layers in family.model.named_modules():
        if name.rpartition(".")[2] in ("layers", "h", "block"):
            del layers[1:]
    family.model.config.num_hidden_layers = 1
    return family


def assert_same(model, name, objective, **other):
    batch = {**made(name).batch, **other}
    plain = use_smile(made(name).model, objective)
    loss = plain(**batch).loss
    loss.backward()
    for _ in range(2):
        model.zero_grad()
        found = model(**batch)
        found.loss.backward()
        torch.testing.assert_close(found.loss, loss)
        torch.testing.assert_close(gradients(model), gradients(plain))
    torch.testing.assert_close(last_parts(model), last_parts(plain))


def after(model, objective, **options):
    return torch.compile(use_smile(model, objective), **options)


def before(model, objective, **options):
    return use_smile(torch.compile(model, **options), objective)


def in_place(model, objective, **options):
    use_smile(model, objective).compile(**options)
    return model


def its_forward_before(model, objective, **options):
    model.forward = torch.compile(model.forward, **options)
    return use_smile(model, objective)


@pytest.mark.parametrize(
    "way", [after, *(pytest.param(w, marks=pytest.mark.slow) for w in (before, in_place))]
)
def test_use_smile_before_or_after_compile_trains_the_same_in_one_graph(way):
    model = way(made(CAUSAL).model, MLE, backend="eager", fullgraph=True)
    assert_same(model, CAUSAL, MLE)


TWO_CAPTIONS = {"labels": torch.tensor([[5, 6, 7, 1, -100, -100, 8, 9, 5, 1]] * 3)}


@pytest.mark.slow
def test_a_compiled_model_trains_smile_from_hidden_states():
    """From hidden states the objective is one operator."""
    model = after(made(CAUSAL).model, SMILE, backend="aot_eager", fullgraph=True)
    assert_same(use_smile(model, SMILE, from_hidden=True), CAUSAL, SMILE)


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="transformers 4.15.0 looks at the values of T5's labels")
def test_a_compiled_forward_trains_smile_of_two_captions_in_a_row():
    """From logits the sizes of captions are read, of which each row has two."""
    model = its_forward_before(made(T5).model, SMILE, backend="eager")
    assert_same(model, T5, SMILE, **TWO_CAPTIONS)


@pytest.mark.slow
def test_a_compiled_decoder_and_a_copy_of_a_compiled_model_train_smile():
    model = use_smile(made(CAUSAL).model)
    decoder = "model" if CAUSAL == LLAMA else "transformer"
    setattr(model, decoder, torch.compile(getattr(model, decoder), backend="eager"))
    assert_same(model, CAUSAL, SMILE)
    with one_line("Model was run outside"):
        getattr(model, decoder)(made(CAUSAL).batch["input_ids"])
    compiled = use_smile(made(CAUSAL).model)
    compiled.compile(backend="eager")
    assert_same(copy.deepcopy(compiled), CAUSAL, SMILE)


END = 1  # of the tiny models' configurations, as set below
TWO = torch.tensor([[5, 6, END, 4, 5, END]])
UNKNOWN = [
    ({"labels": TWO}, "row 0 of the labels has the end token 1"),
    ({"attention_mask": torch.tensor([[1, 1, 1, 2, 2, 2]])}, "attention_mask has numbers above 1"),
    (
        {"attention_mask": torch.ones_like(TWO), "position_ids": torch.arange(3).repeat(1, 2)},
        "the batch has an attention_mask, with which captions of a packed row see each other",
    ),
]


@pytest.mark.slow
def test_a_packed_row_of_a_compiled_model_is_refused():
    family = made(CAUSAL)
    family.model.config.eos_token_id = END
    model = use_smile(family.model, from_hidden=True)
    model = torch.compile(model, backend="eager", fullgraph=True)
    fine = {"input_ids": TWO, "labels": TWO.masked_fill(TWO == END, 3)}
    model(**fine).loss.backward()
    for more, line in UNKNOWN:
        with pytest.raises(ValueError, match=f"^{line}"):  # torch 2.8 puts the graph after it
            model(**{**fine, **more})


@pytest.mark.slow
def test_another_loss_of_a_compiled_model_is_refused():
    model = after(made(CAUSAL).model, MLE, backend="eager")
    batch = dict(made(CAUSAL).batch)
    with pytest.raises(RuntimeError, match="does not require grad"):
        model(**batch).logits.square().sum().backward()
    del batch["labels"]
    with one_line("is trained without labels"):
        model(**batch)
    assert model.eval()(**batch).loss is None
