"""Several processes, a GPU each: NCCL, DDP, FSDP2."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.captioners import our_captioner, random_images
from benchmarks.training import random_captions
from tests.gpu.card import DEVICE, REHEARSAL, relative_error


def run_rank(rank, world, store, work):
    """Call work(device) in a process of a group, whose meeting place is the file `store`."""
    device = torch.device(DEVICE.type, rank)
    if not REHEARSAL:
        torch.cuda.set_device(device)
    backend = "gloo" if REHEARSAL else "nccl"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        work(device)
    finally:
        dist.destroy_process_group()


def reference(device):
    captioner = our_captioner(True).eval().to(device)
    batch = random_images(captioner, 4).to(device), random_captions(True, 4, 2)
    alone = copy.deepcopy(captioner)
    loss = alone(*batch).loss
    loss.backward()
    gradients = {n: p.grad for n, p in alone.named_parameters() if p.grad is not None}
    return captioner, batch, loss.detach(), gradients


def check(model, loss, expected_loss, gradients, max_error):
    error = relative_error(loss, expected_loss)
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
        wanted = gradients[name.removeprefix("module.")]
        if wanted.norm() > 1e-6 * max(g.norm() for g in gradients.values()):
            error = max(error, relative_error(gradient, wanted))
    assert error < max_error, f"loss or gradients differ by {error:.1e}"


def with_ddp(device):
    captioner, batch, loss, gradients = reference(device)
    devices = [device] if device.type == "cuda" else None
    model = DistributedDataParallel(captioner, device_ids=devices)
    found = model(*batch).loss
    found.backward()
    check(model, found, loss, gradients, 1e-3)


def with_fsdp2(device):
    for dtype, max_error in ((None, 1e-3), (torch.bfloat16, 0.1)):
        captioner, batch, loss, gradients = reference(device)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        model = fully_shard(captioner, mesh=mesh, mp_policy=policy)
        found = model(*batch).loss
        found.backward()
        check(model, found, loss, gradients, max_error)
        torch.optim.AdamW(model.parameters(), lr=1e-3).step()


@pytest.mark.parametrize("work", [with_ddp, with_fsdp2])
def test_ddp_and_fsdp2_have_the_gradients_of_one_process(tmp_path, work):
    if (world := torch.cuda.device_count() or 1) == 1:
        run_rank(0, 1, tmp_path / "store", work)
    else:
        torch.multiprocessing.spawn(run_rank, (world, tmp_path / "store", work), nprocs=world)
