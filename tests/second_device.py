"""A second device on a machine without one: mixing it with the CPU is an error, as on a GPU.

Its tensors are the CPU's and only claim another device: their values can be compared. Torch cannot
unregister a device, hence a separate process: `python -m tests.second_device` prints for each case
that fails of `cases()` its error, as JSON.
"""

import json
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "second"
TAKES_INDEX = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")


class There(torch.Tensor):
    """A tensor of the CPU, `inner`, that claims to be on the second device."""

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
        return computed(function, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Lets tensors be created there."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


def computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
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
    changed = {id(x.inner): x for x in there}
    args, kwargs = tree_map(_inner, (args, kwargs))
    with torch.no_grad():
        found = function(*args, **kwargs)

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
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
    kinds = ("logits", "hidden states", "packed logits", "packed hidden states")
    groups = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
    best = {"sample": True, "top_k": 1, "repetition_penalty": 1.2}
    found = {
        **{f"every objective, {kind}": partial(_objective, kind) for kind in kinds},
        "a training step": _training_step,
        "captions by beams": partial(_captions, num_beams=3, num_return=2),
        "captions by groups of beams": partial(_captions, no_repeat_ngram_size=2, **groups),
        "captions by compiled steps": partial(_captions, compiled=True, num_beams=3),
        "captions by sampling the best word": partial(_captions, **best),
        "guided captions": partial(_captions, guidance_scale=2.0),
        "the attention map of a caption": _score_tokens,
        "a model of transformers": _transformers,
    }
    if find_spec("accelerate"):
        found["its head elsewhere"] = _head_elsewhere
    return found


def _objective(kind: str, device: str) -> list[torch.Tensor]:
    from smile import OBJECTIVES, Objective

    torch.manual_seed(1)
    hidden, weight, labels = torch.randn(3, 7, 8), torch.randn(30, 8), torch.randint(30, (3, 7))
    hidden, weight = (x.to(device).requires_grad_() for x in (hidden, weight))
    labels = labels.to(device)
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 2]] * 3).to(device) if "packed" in kind else None
    objective = Objective(dict.fromkeys(OBJECTIVES, 0.1), 0.1).with_tokens(0, 1)
    if "logits" in kind:
        output = objective(hidden @ weight.T, labels, segments)
    else:
        output = objective.from_hidden(hidden, weight, None, labels, segments)
    output.loss.backward()
    return [*output.parts.values(), hidden.grad, weight.grad]


def _captioner(device: str):
    from benchmarks.captioners import our_captioner

    return our_captioner(True, {"mle": 0.1, "smile": 0.9}).eval().to(device)


def _photos(device: str) -> torch.Tensor:
    return torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(2)).to(device)


def _training_step(device: str) -> list[torch.Tensor]:
    photos = _photos(device).requires_grad_()
    loss = _captioner(device)(photos, [["w9 w8", "w7"], ["w10", "w11 w12 w13"]]).loss
    loss.backward()
    return [loss, photos.grad]


def _captions(device: str, compiled: bool = False, **settings: Any) -> list[torch.Tensor]:
    from BLIP.compiled_step import CompiledStepFactory
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
    """Return a tiny model in evaluation mode, and a batch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    ids = torch.randint(40, (2, 9))
    batch = {"input_ids": ids, "labels": ids.masked_fill(torch.arange(9) < 3, -100)}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)).eval(), batch


def _transformers(device: str) -> list[torch.Tensor]:
    from smile.hf import use_smile

    model, batch = _gpt2()
    use_smile(model.to(device), {"mle": 0.1, "smile": 0.9})
    loss = model(**{name: value.to(device) for name, value in batch.items()}).loss
    loss.backward()
    return [loss, model.transformer.wpe.weight.grad]


def _head_elsewhere(device: str) -> list[torch.Tensor]:
    """As `device_map` divides a model; its output must be on the batch's device."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    from smile.hf import last_parts, use_smile

    model, batch = _gpt2()
    add_hook_to_module(model, AlignDevicesHook("cpu", io_same_device=True))
    add_hook_to_module(model.lm_head, AlignDevicesHook(device))
    use_smile(model, {"mle": 0.1, "smile": 0.9})
    loss = model(**batch, num_items_in_batch=torch.tensor(5, device=device)).loss
    loss.backward()
    found = [loss, *last_parts(model).values(), model.transformer.wpe.weight.grad]
    assert {each.device.type for each in found} == {"cpu"}
    return found


def main() -> int:
    prepare()
    errors = {}
    for name, case in cases().items():
        try:
            expected = case("cpu")
            with SecondDevice():
                found = [x.detach().to("cpu") for x in case(NAME)]
            torch.testing.assert_close(found, [x.detach() for x in expected])
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    json.dump(errors, sys.stdout)
    return 0


if __name__ == "__main__":
    code = main()
    from captioning.runtime.program import exit_without_cleanup

    # The thread of this device's backward may still run Python when that ends.
    exit_without_cleanup(code)
