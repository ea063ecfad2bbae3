"""Models that are wrapped, or whose parts run again in backward, train the objective."""

import copy
import functools
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as torchs
from torch.utils.checkpoint import checkpoint

from smile import Objective
from smile.hf import undo, use_smile
from tests.smile import hf_steps
from tests.smile.hf_steps import GPT2, LLAMA, T5, assert_trains, gradients, made, one_line

WAYS = pytest.mark.parametrize(
    ("name", "from_hidden"),
    [
        (GPT2, True),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in ((GPT2, False), (T5, True))),
    ],
)
needs_llama = hf_steps.needs(LLAMA)


def wrapped(model):
    before = model.forward
    model.forward = types.MethodType(lambda self, *args, **kwargs: before(*args, **kwargs), model)
    return model


def dispatched(model):
    accelerate = pytest.importorskip("accelerate")
    places = {name: "cpu" for name, _ in model.named_children()}
    return accelerate.dispatch_model(model, places, main_device="cpu", force_hooks=True)


def on_decoder(model):
    name = "transformer" if hasattr(model, "transformer") else "decoder"
    setattr(model, name, torchs.checkpoint_wrapper(getattr(model, name)))
    return model


def on_layers(model):
    """Wrap each layer in reentrant checkpointing."""
    impl = torchs.CheckpointImpl.REENTRANT
    wrapper = functools.partial(torchs.checkpoint_wrapper, checkpoint_impl=impl)
    torchs.apply_activation_checkpointing(
        model, wrapper, lambda module: type(module).__name__ in ("GPT2Block", "T5Block")
    )
    return model


def on_head(model):
    model.lm_head = torchs.checkpoint_wrapper(model.lm_head)
    return model


def as_transformers_does(model):
    model.gradient_checkpointing_enable()
    return model


def wrapped_twice(model):
    return wrapped(wrapped(model))


WRAPPERS = [wrapped_twice, dispatched, on_decoder, on_layers, as_transformers_does]


@WAYS
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_use_smile_before_and_after_wrapping_trains_the_same(name, from_hidden, wrapper):
    assert_trains(name, use_smile(wrapper(made(name).model), from_hidden=from_hidden))
    model = wrapper(use_smile(made(name).model, from_hidden=from_hidden))
    for _ in range(2):
        assert_trains(name, model)


@pytest.mark.slow
@needs_llama
@hf_steps.from_logits_and_hidden
def test_ligers_patch_trains_smile_or_is_refused(from_hidden, monkeypatch):
    liger = pytest.importorskip("liger_kernel.transformers")
    # Its other kernels run on a GPU alone.
    rest = {"rope": False, "rms_norm": False, "swiglu": False}
    model = made(LLAMA).model
    liger.apply_liger_kernel_to_llama(model=model, **rest)
    assert_trains(LLAMA, use_smile(model, from_hidden=from_hidden))
    model = use_smile(made(LLAMA).model, from_hidden=from_hidden)
    liger.apply_liger_kernel_to_llama(model=model, **rest)
    with one_line("LlamaModel was run outside.*fused_linear_cross_entropy"):
        model(**made(LLAMA).batch)
    cls = transformers.LlamaForCausalLM
    monkeypatch.setattr(cls, "forward", cls.forward)
    model = use_smile(made(LLAMA).model, from_hidden=from_hidden)
    liger.apply_liger_kernel_to_llama(**rest)
    assert "liger" in cls.forward.__module__
    assert_trains(LLAMA, model)


@pytest.fixture
def accelerator():
    """An Accelerator in bfloat16. Its state is global to the process."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@hf_steps.from_logits_and_hidden
def test_accelerates_autocast_before_and_after_trains_in_bfloat16(from_hidden, accelerator):
    name, computed = GPT2, []
    model = made(name).model.float()
    model.transformer.h[0].register_forward_hook(
        lambda *_: computed.append(torch.is_autocast_enabled("cpu"))
    )
    twin = copy.deepcopy(model)
    assert_trains(name, use_smile(accelerator.prepare(twin), from_hidden=from_hidden), 0.05)
    model = accelerator.prepare(use_smile(model, from_hidden=from_hidden))
    assert_trains(name, model, tolerance=0.05)
    assert model(**made(name).batch).loss.dtype == torch.float32
    assert set(computed) == {True}
    computed.clear()
    assert accelerator.unwrap_model(model, keep_fp32_wrapper=False) is model
    assert_trains(name, model, tolerance=1e-5)
    assert computed == [False]


@pytest.mark.parametrize("kind", ["lora", "prompt", "prefix"])
@pytest.mark.parametrize("before", [False, True])
@hf_steps.from_logits_and_hidden
def test_an_adapter_before_or_after_use_smile_has_the_same_gradients(kind, before, from_hidden):
    peft = pytest.importorskip("peft")
    lora = {"r": 2, "target_modules": ["c_attn"], "init_lora_weights": False}
    config = {
        "lora": peft.LoraConfig(**lora, fan_in_fan_out=True),
        "prompt": peft.PromptTuningConfig(num_virtual_tokens=3),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=3),
    }[kind]
    config.task_type = "CAUSAL_LM"
    family = made(GPT2)
    model = family.model
    if before:
        use_smile(model, from_hidden=from_hidden)
    model = peft.get_peft_model(model, config).double().train()
    if not before:
        use_smile(model, from_hidden=from_hidden)
    loss = model(**family.batch).loss
    loss.backward()
    found = gradients(model)
    undo(model)
    model.zero_grad()
    batch = dict(family.batch)
    labels = batch.pop("labels")
    logits = model(**batch).logits[:, -labels.size(1) :]
    expected = Objective()(logits[:, :-1], labels[:, 1:]).loss
    expected.backward()
    assert found
    torch.testing.assert_close((loss, found), (expected, gradients(model)))


@pytest.mark.parametrize("before", [False, True])
@hf_steps.from_logits_and_hidden
def test_a_head_that_peft_copies_is_the_one_that_is_trained(before, from_hidden):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        target_modules=["c_attn"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    batch, expected = made(GPT2).batch, hf_steps.definition(GPT2)[0]
    model = made(GPT2).model
    if before:
        use_smile(model, from_hidden=from_hidden)
    model = peft.get_peft_model(model, config).double().train()
    for trained in (model, copy.deepcopy(model)):
        for has_objective in (before, False):  # given again as by a second trainer
            if not has_objective:
                use_smile(trained, from_hidden=from_hidden)
            loss = trained(**batch).loss
            loss.backward()
            torch.testing.assert_close(loss.detach(), expected)
        head = trained.get_output_embeddings()
        copied = head.modules_to_save["default"].weight
        assert copied.grad.any()
        with torch.no_grad():
            copied.mul_(2)
        with trained.disable_adapter():
            torch.testing.assert_close(trained(**batch).loss.detach(), expected)
        with one_line("was run outside"):
            head(head.weight[:1])
        undo(trained)
        hooks = (hook for part in trained.modules() for hook in part._forward_pre_hooks.values())
        assert not [*hooks]


@hf_steps.from_logits_and_hidden
def test_replicas_of_data_parallel_train_in_threads(from_hidden):
    """Each replica of nn.DataParallel has the loss of its batch."""
    model, batch = use_smile(made(GPT2).model, from_hidden=from_hidden), made(GPT2).batch
    batches, both_there = [batch, {k: v[:2] for k, v in batch.items()}], threading.Barrier(2)

    def wait(*_):
        both_there.wait(60)

    model.transformer.h[0].register_forward_pre_hook(wait)

    def train(batch):
        replica = model._replicate_for_data_parallel()
        replica._modules = dict(model._modules)
        return replica(**batch).loss.detach()

    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(train, batches)]
    alone = [use_smile(made(GPT2).model)(**batch).loss.detach() for batch in batches]
    torch.testing.assert_close(found, alone)


def test_a_recomputed_head_trains_the_same():
    assert_trains(GPT2, on_head(use_smile(made(GPT2).model)))
    assert_trains(GPT2, use_smile(on_head(made(GPT2).model)))
    with pytest.warns(UserWarning, match="is trained from logits"):
        assert_trains(GPT2, use_smile(on_head(made(GPT2).model), from_hidden=True))


def test_backward_in_another_thread_has_the_same_gradients():
    """Autograd has a thread for each GPU."""
    model = on_decoder(use_smile(made(GPT2).model))
    loss = model(**made(GPT2).batch).loss
    with ThreadPoolExecutor(1) as threads:
        threads.submit(loss.backward).result()
    torch.testing.assert_close(gradients(model), hf_steps.definition(GPT2)[1])


@hf_steps.from_logits_and_hidden
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_step_has_the_same_loss_and_gradients(from_hidden, reentrant):
    model = use_smile(made(GPT2).model, from_hidden=from_hidden)
    batch = dict(made(GPT2).batch)
    words = model.transformer.wte(batch.pop("input_ids"))
    loss = checkpoint(
        lambda words: model(inputs_embeds=words, **batch).loss, words, use_reentrant=reentrant
    )
    loss.backward()
    torch.testing.assert_close((loss.detach(), gradients(model)), hf_steps.definition(GPT2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_step_past_the_objective_is_refused(reentrant):
    """The first run of a reentrant checkpoint has no gradient, and is not refused."""
    model = use_smile(made(GPT2).model)
    model(**made(GPT2).batch).loss.backward()  # which allows what is run again in it alone
    own = type(model)._without_smile.forward
    words = model.transformer.wte(made(GPT2).batch["input_ids"])
    with one_line("GPT2Model was run outside of its model's forward"):
        logits = checkpoint(
            lambda words: own(model, inputs_embeds=words).logits, words, use_reentrant=reentrant
        )
        logits.square().mean().backward()
