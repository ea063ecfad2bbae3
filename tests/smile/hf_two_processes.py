"""Two processes' gradients of half a batch each, under DDP and FSDP2, against the whole batch's."""

import copy
import gc
import types

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from smile.hf import use_smile
from tests.smile import hf_models
from tests.smile.hf_steps import gradients, one_line


def step(model, batch, items):
    model.zero_grad()
    model(**batch, num_items_in_batch=items).loss.backward()
    return gradients(model)


def with_a_forward_set(model):
    """Set a forward that calls the previous one, as trainers do."""
    before = model.forward
    model.forward = types.MethodType(lambda self, *a, **k: before(*a, **k), model)
    return model


def sharded(model):
    """Apply FSDP2 to each layer, then to the model."""
    for module in list(model.modules()):
        if type(module).__name__ in ("GPT2Block", "LlamaDecoderLayer", "T5Block"):
            fully_shard(module)
    return with_a_forward_set(fully_shard(model))


def compare(name, rank):
    torch.manual_seed(0)
    family = hf_models.make(name)
    batch = {key: torch.cat([value, value.flip(0)]) for key, value in family.batch.items()}
    batch["labels"][0] = -100  # so that the halves differ in tokens
    half = {key: value.chunk(2)[rank] for key, value in batch.items()}
    items = (batch["labels"][:, 1:] if family.shift else batch["labels"]).ne(-100).sum().item()

    def model(from_hidden=False):
        ours = use_smile(copy.deepcopy(family.model), from_hidden=from_hidden)
        ours.training = True  # of itself alone, so that nothing is dropped
        return ours

    expected = step(model(), batch, items)
    for wrap in (DistributedDataParallel, sharded):
        for from_hidden in (False, True):
            # Either takes the mean over processes, of what each has of the sum.
            found = step(wrap(model(from_hidden)), half, items / 2)
            torch.testing.assert_close(found, expected)
            with one_line("trained without labels"):  # by a trainer that keeps labels for itself
                wrap(model(from_hidden))(**{k: v for k, v in half.items() if k != "labels"})


def main(names):
    """Run in each of the two processes."""
    dist.init_process_group("gloo")
    for name in names:
        compare(name, dist.get_rank())
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0
