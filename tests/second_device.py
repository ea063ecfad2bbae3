"""A second device on a machine without one: mixing it with the CPU is an error, as on a GPU.

Its tensors are the CPU's and only claim another device: their values can be compared. Torch cannot
unregister a device, hence a separate process: `python -m tests.second_device` prints for each
case of `cases()` its error, or nothing, as JSON.
"""

import json
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any, Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "second"
LOSS = "loss:"  # cases in which it has no float64, as MPS has none
TAKES_INDEX = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")
# These wait for the device, and so does a copy to the CPU.
READS = ("_local_scalar_dense", "nonzero", "_unique2")
waits: list[str] = []


class There(torch.Tensor):
    """A tensor of the CPU, `inner`, that claims to be on the second device."""

    has_float64 = True
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor):
        options = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        options.update(dtype=inner.dtype, device=f"{NAME}:0")
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **options)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _computed(function, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Lets tensors be created there."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _computed(function, args, kwargs or {})


def _computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = function.overloadpacket.__name__
    # An index on the CPU works for every device.
    indexed = name in TAKES_INDEX and isinstance(args[0], There)
    checked = [args[0], *args[2:]] if indexed else args
    tensors = [x for x in tree_leaves((checked, kwargs)) if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, There)]
    here = [x for x in tensors if not isinstance(x, There) and x.dim() > 0]
    if there and here and name != "copy_":
        raise RuntimeError(f"{function} of tensors on two devices")
    stays = bool(there)
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if there and (name in READS or not stays):
        waits.append(name)
    changed = {id(x.inner): x for x in there}
    args, kwargs = tree_map(_inner, (args, kwargs))
    with torch.no_grad():
        found = function(*args, **kwargs)

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if stays and value.dtype == torch.float64 and not There.has_float64:
            raise TypeError(f"{function} makes float64, which MPS has not")
        return changed.get(id(value), There(value) if stays else value)

    return tree_map(outer, found)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, There) else value


def prepare() -> None:
    """Register the device with torch. Call it before the project is imported."""
    from torch.utils import backend_registration

    class Backend(backend_registration._DummyBackendModule):
        def get_amp_supported_dtype(self):
            return [torch.bfloat16, torch.float16]

    backend_registration._setup_privateuseone_for_python_backend(NAME, Backend())
    torch.__future__.set_swap_module_params_on_conversion(False)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    # torch implements these below the level of dispatch modes and tensor subclasses.
    tensor, tolist = torch.tensor, torch.Tensor.tolist

    def made(*args, device=None, **more):
        return tensor(*args, **more).to(device or "cpu")

    def new_tensor(self, data, dtype=None, device=None):
        return made(data, dtype=dtype or self.dtype, device=device or self.device)

    torch.tensor, torch.Tensor.new_tensor = made, new_tensor
    torch.Tensor.tolist = lambda self: tolist(_inner(self))
    torch.inference_mode = lambda on=True: torch.no_grad() if on else torch.enable_grad()
    torch.compile = lambda function, **options: function
    torch._dynamo.mark_static_address = lambda *_, **__: None


def cases() -> dict[str, Callable[[str], Any]]:
    """By name, functions of a device; their tensors must equal those of the CPU."""
    from smile import OBJECTIVES

    specs = [*OBJECTIVES, {"mle": 0.1, "smile": 0.9}, {"truncation": {"window": 5}}]
    kinds = ("logits", "hidden states", "packed logits", "packed hidden states")
    groups = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
    best = {"sample": True, "top_k": 1, "repetition_penalty": 1.2, "min_p": 0.1}
    found = {
        **{f"{LOSS} {s}, {kind}": partial(_objective, s, kind) for s in specs for kind in kinds},
        "a training step": _training_step,
        "captions by beams": partial(_captions, num_beams=3, num_return=2),
        "captions by groups of beams": partial(_captions, no_repeat_ngram_size=2, **groups),
        "captions by compiled steps": partial(_captions, compiled=True, num_beams=3),
        "captions by sampling the best word": partial(_captions, **best),
        "guided captions": partial(_captions, guidance_scale=2.0),
        "contrasted captions": partial(_captions, contrastive_alpha=1.0),
        "the attention map of a caption": _score_tokens,
        "a model of transformers": partial(_transformers, from_hidden=False),
        "its hidden states": partial(_transformers, from_hidden=True),
        "a packed row of a later batch": _packed_later,
    }
    if find_spec("accelerate"):
        found["a trainer waits once a batch"] = _waits_once
        found["its head elsewhere"] = partial(_head_elsewhere, from_hidden=False)
        found["its hidden states elsewhere"] = partial(_head_elsewhere, from_hidden=True)
    return found


def _objective(spec: Any, kind: str, device: str) -> list[torch.Tensor]:
    from smile import Objective

    torch.manual_seed(1)
    hidden, weight, labels = torch.randn(3, 7, 8), torch.randn(30, 8), torch.randint(30, (3, 7))
    hidden, weight = (x.to(device).requires_grad_() for x in (hidden, weight))
    labels = labels.to(device)
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 2]] * 3).to(device) if "packed" in kind else None
    objective = Objective(spec, 0.1).with_tokens(0, 1)
    for _ in range(2):  # some remember the batch before
        if "logits" in kind:
            loss = objective(hidden @ weight.T, labels, segments).loss
        else:
            loss = objective.from_hidden(hidden, weight, None, labels, segments).loss
    loss.backward()
    return [loss, hidden.grad, weight.grad]


def _captioner(device: str):
    from benchmarks.captioners import our_captioner

    return our_captioner(True, {"mle": 0.1, "smile": 0.9}).eval().to(device)


def _photos(device: str) -> torch.Tensor:
    return torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(2)).to(device)


def _training_step(device: str) -> list[torch.Tensor]:
    photos = _photos(device).requires_grad_()
    dropped = torch.tensor([False, True]).to(device)
    loss = _captioner(device)(photos, [["w9 w8", "w7"], ["w10", "w11 w12 w13"]], dropped).loss
    loss.backward()
    return [loss, photos.grad]


def _captions(device: str, compiled: bool = False, **settings: Any) -> list[torch.Tensor]:
    from BLIP.kernels.static_step import CompiledStepFactory
    from decoding import DecodingSettings

    captioner = _captioner(device)
    if compiled:
        captioner.step_factory = CompiledStepFactory()
    chosen = DecodingSettings(**{"max_length": 10, "min_length": 6, **settings})
    found = captioner.generate_details(_photos(device), chosen)
    return [t for t in (found.token_ids, found.scores, found.own_scores) if t is not None]


def _score_tokens(device: str) -> list[torch.Tensor]:
    captioner = _captioner(device)
    encoded, ids = captioner.encode(_photos(device)), torch.tensor([5, 6, 7, 8, 9], device=device)
    likelihoods = captioner.log_likelihoods(encoded, ids.expand(2, 2, -1))
    return [likelihoods, *captioner.score_tokens(encoded[:1], ids)]


def _gpt2():
    from tests.smile.hf_steps import GPT2, made

    return made(GPT2)


def _transformers(device: str, from_hidden: bool) -> list[torch.Tensor]:
    from smile.hf import use_smile

    family = _gpt2()
    spec = {"mle": 0.1, "smile": 0.8, "truncation": 0.1}
    model = use_smile(family.model.to(device), spec, from_hidden=from_hidden)
    loss = model(**{name: value.to(device) for name, value in family.batch.items()}).loss
    loss.backward()
    return [loss]


def _packed_later(device: str) -> list[torch.Tensor]:
    """It is refused although the first batch is not packed."""
    from smile.hf import use_smile

    model = use_smile(_gpt2().model.to(device))
    model.config.eos_token_id = model.generation_config.eos_token_id = 1
    fine, packed = torch.tensor([[[5, 6, 7, 8, 9, 1]], [[5, 6, 1, 8, 9, 1]]]).to(device)
    loss = model(input_ids=fine, labels=fine).loss
    with pytest.raises(ValueError, match="row 0 of the labels has the end token 1 more than once"):
        model(input_ids=packed, labels=packed)
    return [loss]


def _waits_once(device: str) -> list[torch.Tensor]:
    """Once more than without an objective; from hidden states twice, for MLE's vocabulary."""
    from transformers import Trainer

    from smile.hf import SmileLossMixin

    class SmileTrainer(SmileLossMixin, Trainer):
        pass

    losses, own = _steps(Trainer, device)
    for from_hidden in (False, True):
        options = {"objective": {"mle": 0.3, "smile": 0.7}, "from_hidden": from_hidden}
        more_losses, counts = _steps(SmileTrainer, device, **options)
        losses += more_losses
        more = (1 + from_hidden) * (device == NAME)
        assert counts == [n + more for n in own], f"{counts} waits, of the trainer's own {own}"
    return losses


def _steps(cls: type, device: str, **options: Any) -> tuple[list[torch.Tensor], list[int]]:
    """The loss of three steps of a trainer, and how often each but the first waits."""
    from tempfile import TemporaryDirectory

    from transformers import TrainingArguments

    model, batch, *_ = _gpt2()
    losses, counts = [], []
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, use_cpu=True, report_to=[])
        trainer = cls(model, arguments, train_dataset=[batch], **options)
    model.to(device)
    batch = {name: value.to(device) for name, value in batch.items()}
    for _ in range(3):
        before = len(waits)
        _, items = trainer.get_batch_samples(iter([batch]), 1, torch.device(device))
        losses.append(trainer.compute_loss(model, batch, num_items_in_batch=items))
        counts.append(len(waits) - before)
    return losses, counts[1:]


def _head_elsewhere(device: str, from_hidden: bool) -> list[torch.Tensor]:
    """As `device_map` divides a model; its output must be on the batch's device."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    from smile.hf import last_parts, use_smile

    model, batch, *_ = _gpt2()
    add_hook_to_module(model, AlignDevicesHook("cpu", io_same_device=True))
    add_hook_to_module(model.lm_head, AlignDevicesHook(device))
    use_smile(model, {"mle": 0.1, "smile": 0.9}, from_hidden=from_hidden)
    loss = model(**batch, num_items_in_batch=torch.tensor(5, device=device)).loss
    loss.backward()
    found = [loss, *last_parts(model).values(), model.transformer.wpe.weight.grad]
    assert {each.device.type for each in found} == {"cpu"}
    return found


def main() -> int:
    prepare()
    errors = {}
    for name, case in cases().items():
        errors[name] = ""
        try:
            expected = case("cpu")
            There.has_float64 = not name.startswith(LOSS)
            with SecondDevice():
                found = [x.detach().to("cpu") for x in case(NAME)]
            torch.testing.assert_close(found, [x.detach() for x in expected])
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    json.dump(errors, sys.stdout)
    return 0


if __name__ == "__main__":
    code = main()
    from captioning.runtime.program import leave

    leave(code)  # the thread of this device's backward may still run Python when that ends
