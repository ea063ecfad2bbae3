"""Shards a captioner over processes with torch's FSDP2, and gathers and loads its state.

Each process has some rows of every weight, gradient and optimizer state. Checkpoints are whole, so
that any number of processes can read them.

torch.distributed.checkpoint.state_dict cannot be used: it requires that the state dict has the
parameters' names, but an adapter's state dict has other names.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from BLIP.adapter import adapter_config, load_trained_state, trained_state
from captioning.config import Config
from captioning.models.build import captioner_from
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.training.schedule import is_distributed

MIN_TORCH = (2, 9)


def check_sharding(config: Config) -> None:
    """Raise UserError for settings that cannot be combined with sharding."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    reason = None
    if version < MIN_TORCH:
        reason = (
            f"this is torch {torch.__version__}, which computes wrong losses with accumulated "
            "batches and recomputed blocks; install torch 2.9 or later"
        )
    elif distributed.world_size() == 1:
        reason = "there is only one process; start several (NPROC_PER_NODE=2)"
    elif config.compile:
        reason = "compile is true, which does not support sharded weights; set compile=false"
    elif config.precision == "fp16":
        reason = "precision is fp16, and fsdp does not support loss scaling; set precision=bf16"
    if config.sharding == "fsdp" and reason:
        raise UserError(f"sharding is fsdp, but {reason}, or set sharding=none")


def shard(
    captioner: nn.Module, group: dist.ProcessGroup, device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """Shard the captioner over the process group in place, and return the captioner.

    FSDP gathers the modules of `captioner.shards()` one at a time. dtype: the precision of weights
    in forward and backward passes. Modules with a batch norm compute in float32 instead, because
    their running statistics are float32. Stored weights and gradient sums are float32.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = DeviceMesh.from_group(group, device.type)
    for module in [*captioner.shards(), captioner]:
        batch_norm = any(isinstance(part, _BatchNorm) for part in module.modules())
        param_dtype = None if dtype == torch.float32 or batch_norm else dtype
        # FSDP casts the inputs of inner modules to the precision of the module's weights. It does
        # not cast the captioner's inputs, the images.
        policy = MixedPrecisionPolicy(
            param_dtype=param_dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=module is not captioner,
        )
        fully_shard(module, mesh=mesh, mp_policy=policy)
    return captioner


def gather_full(state: Any, keep: bool = True) -> Any:
    """Return a state dict whose sharded tensors are gathered on the CPU. All ranks call this.

    keep: if false, the result has None instead of gathered tensors. Ranks that do not write the
    state thereby save memory.
    """
    if isinstance(state, Mapping):
        return {key: gather_full(value, keep) for key, value in state.items()}
    if not is_distributed(state):
        return state
    gathered = state.full_tensor()
    return gathered.cpu() if keep else None


def full_state_dict(captioner: nn.Module, keep: bool = True) -> Mapping[str, Any]:
    """Return `trained_state` of a captioner with gathered tensors. All ranks call this.

    A weight with two names is gathered once. keep: see `gather_full`.
    """
    # With keep_vars, the two names of a tied weight have the same tensor object.
    state = trained_state(captioner, keep_vars=True)
    gathered = gather_full({id(tensor): tensor.detach() for tensor in state.values()}, keep)
    return {name: gathered[id(tensor)] for name, tensor in state.items()}


def unsharded(captioner: nn.Module, config: Config, device: torch.device) -> nn.Module:
    """Return an unsharded copy of a sharded captioner, on the device.

    A captioner that is not sharded is returned itself. All ranks call this. A sharded captioner
    cannot generate captions: every rank has to take part in each forward pass, but the ranks
    generate different numbers of tokens.
    """
    if not any(map(is_distributed, captioner.parameters())):
        return captioner
    saved = {**captioner.saved_beside_weights(), **adapter_config(captioner)}
    copy, _ = captioner_from(config, None, saved)
    load_trained_state(copy, full_state_dict(captioner), "the sharded captioner")
    return copy.to(device)


def load(
    captioner: nn.Module,
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, Tensor],
    state: dict[str, Any],
) -> None:
    """Load whole state dicts into a captioner and an optimizer, which may be sharded.

    Of a sharded tensor, each rank loads only its rows. weights, state: the state dicts of captioner
    and optimizer. Raises the errors of `load_state_dict`.
    """
    current = trained_state(captioner)
    weights = {name: _shard_like(tensor, current.get(name)) for name, tensor in weights.items()}
    # In the order of their numbers in the state dict.
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {key: _shard_like(value, parameters[number]) for key, value in values.items()}
        for number, values in state["state"].items()
    }
    load_trained_state(captioner, weights, "the checkpoint")
    optimizer.load_state_dict({**state, "state": moments})


def _shard_like(tensor: Tensor, sharded: Any) -> Tensor:
    """Shard a whole tensor like the tensor `sharded`, if that is sharded, without communication."""
    from torch.distributed.tensor import distribute_tensor

    if not is_distributed(sharded) or not tensor.ndim:  # scalars are the optimizer's step counts
        return tensor
    mesh, placements = sharded.device_mesh, sharded.placements
    return distribute_tensor(tensor.to(sharded.device), mesh, placements, src_data_rank=None)
