"""Models that are wrapped, sharded, compiled or recomputed train the objective."""

import copy
import gc
import types

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as torchs
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from smile import Objective
from smile.hf import undo, use_smile
from tests.processes import Processes
from tests.programs import raises_line
from tests.smile import hf_steps
from tests.smile.hf_steps import BOTH_KINDS, GPT2, T5, assert_trains, made

each_kind = pytest.mark.parametrize("name", [GPT2, pytest.param(T5, marks=pytest.mark.slow)])
before_and_after = pytest.mark.parametrize("before", [False, True])


def with_a_forward_set(model):
    """Set a forward that calls the previous one, as trainers do; twice."""
    for _ in range(2):
        before = model.forward
        forward = lambda self, *args, before=before, **kwargs: before(*args, **kwargs)  # noqa: E731
        model.forward = types.MethodType(forward, model)
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
    is_old = transformers.__version__ == "4.15.0"  # which knows reentrant checkpointing alone
    model.gradient_checkpointing_enable(*[{"use_reentrant": True}] * (not is_old))
    return model


def on_head(model):
    model.lm_head = torchs.checkpoint_wrapper(model.lm_head)
    return model


@each_kind
@before_and_after
@pytest.mark.parametrize("wrap", [with_a_forward_set, dispatched, on_decoder, on_layers, on_head])
def test_a_wrapped_model_trains_the_objective(name, before, wrap):
    model = wrap(use_smile(made(name).model)) if before else use_smile(wrap(made(name).model))
    for _ in range(2):
        assert_trains(name, model)
    if wrap is with_a_forward_set:
        assert vars(undo(model))["forward"].__func__.__name__ == "<lambda>"


@before_and_after
def test_accelerates_autocast_trains_in_bfloat16(before):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator, computed = accelerate.Accelerator(mixed_precision="bf16", cpu=True), []
    model = made(GPT2).model.float()
    block = model.transformer.h[0]
    block.register_forward_hook(lambda *_: computed.append(torch.is_autocast_enabled("cpu")))
    model = accelerator.prepare(use_smile(model) if before else model)
    assert_trains(GPT2, model if before else use_smile(model), tolerance=0.05)
    assert model(**made(GPT2).batch).loss.dtype == torch.float32
    assert set(computed) == {True}
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("kind", ["lora", "prompt", "prefix", "copied head"])
@before_and_after
def test_an_adapter_of_peft_has_the_same_gradients(kind, before):
    peft = pytest.importorskip("peft")
    lora = {"r": 2, "init_lora_weights": False, "fan_in_fan_out": True}
    config = {
        "lora": peft.LoraConfig(target_modules=["c_attn"], **lora),
        "prompt": peft.PromptTuningConfig(num_virtual_tokens=3),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=3),
        "copied head": peft.LoraConfig(modules_to_save=["lm_head"], **lora),
    }[kind]
    config.task_type = "CAUSAL_LM"
    family = made(GPT2)
    model = use_smile(family.model) if before else family.model
    model = peft.get_peft_model(model, config).double().train()
    found = hf_steps.step(model if before else use_smile(model), **family.batch)
    family = family._replace(model=undo(model), before=3 if kind == "prompt" else 0)
    torch.testing.assert_close(found, hf_steps.formula(family, Objective()))


@pytest.mark.slow
@before_and_after
@each_kind
def test_a_compiled_model_trains_the_objective_and_refuses_another(before, name):
    torch._dynamo.reset()
    model = made(name).model
    model.config.use_cache = False
    compiled = torch.compile(use_smile(model) if before else model, backend="aot_eager")
    compiled = compiled if before else use_smile(compiled)
    for _ in range(2):
        assert_trains(name, compiled)
    with raises_line(ValueError, "another loss is trained"):
        compiled(**{**made(name).batch, "labels": None})
    assert_trains(name, copy.deepcopy(compiled))
    torch._dynamo.reset()


def sharded(model):
    for module in list(model.modules()):
        if type(module).__name__ in ("GPT2Block", "T5Block"):
            fully_shard(module)
    return with_a_forward_set(fully_shard(model))


def in_each_process(names):
    """Compare two processes' gradients of half a batch each with those of the whole batch."""
    dist.init_process_group("gloo")
    for name in names:
        family = made(name)
        batch = {key: torch.cat([value, value.flip(0)]) for key, value in family.batch.items()}
        batch["labels"][0] = -100  # so that the halves differ in tokens
        half = {key: value.chunk(2)[dist.get_rank()] for key, value in batch.items()}
        items = (batch["labels"][:, 1:] if family.shift else batch["labels"]).ne(-100).sum().item()
        alone = use_smile(copy.deepcopy(family.model))
        _, expected = hf_steps.step(alone, **batch, num_items_in_batch=items)
        for wrap in (DistributedDataParallel, sharded):
            # Either takes the mean over processes, of what each has of the sum.
            model = wrap(use_smile(copy.deepcopy(family.model)))
            _, found = hf_steps.step(model, **half, num_items_in_batch=items / 2)
            torch.testing.assert_close(found, expected)
            with raises_line(ValueError, "another loss is trained"):
                model(**{**half, "labels": None})
    del model
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0


@pytest.mark.slow
def test_ddp_and_fsdp_of_half_batches_have_the_gradients_of_the_whole(tmp_path):
    run = Processes(in_each_process, BOTH_KINDS, tmp_path / "output", 2)
    assert run.wait(200) == [0, 0], run.said()
