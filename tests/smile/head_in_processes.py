"""A sharded head and tensor parallel models give the results of one process."""

import gc
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from smile import Objective
from tests.smile import hidden_states
from tests.smile.hf_steps import one_line
from tests.smile.hidden_states import CAPPED, IGNORE, PACKED, by_definition, gradients
from tests.smile.largest_made import LargestMade

SPECS = [
    *hidden_states.SPECS[:4],
    {"unlikelihood": 0.3, "scalegrad": 0.2, "focal": 0.1, "truncation": 0.5},
    hidden_states.SPECS[-1],
]
BY_ROWS = (None, Shard(0), Shard(0))  # plain hidden states; weight and bias by rows
HOW = [{}, {"reduction": "none"}, {"reduction": "sum", **CAPPED}, PACKED]


def example(vocabulary=23, dtype=torch.float64):
    torch.manual_seed(0)
    inputs, labels = hidden_states.example(vocabulary=vocabulary, width=8, dtype=dtype)
    return [x.detach() for x in inputs], labels


def objective(spec, **settings):
    return Objective(
        spec, **{"random_subset_size": 4, "pad_token_id": 1, "label_smoothing": 0.1, **settings}
    )


def leaf(x):
    return x.detach().requires_grad_()


def full_tensor(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def results(output, inputs):
    return [*output, gradients(output.loss, inputs)]


def definition(losses, inputs, labels, **how):
    inputs = [leaf(x) for x in inputs]
    return results(by_definition(losses, inputs, labels, **how), inputs)


def found(losses, inputs, labels, **how):
    torch.manual_seed(dist.get_rank())
    return results(losses.from_hidden(*inputs, labels, **how), inputs)


def place(inputs, mesh, layout):
    """Distribute hidden states, weight and bias. A tensor with the placement None stays plain."""
    return [
        leaf(x if placement is None else distribute_tensor(x, mesh, [placement]))
        for x, placement in zip(inputs, layout)
    ]


def assert_equal(ours, theirs):
    ours[-1] = tuple(full_tensor(x) for x in ours[-1])
    torch.testing.assert_close(ours, theirs)


def compare(mesh, losses, inputs, labels, layout=BY_ROWS, **how):
    """Assert that results are those of one process, and that gradients are placed as inputs are."""
    ours = found(losses, place(inputs, mesh, layout), labels, **how)
    assert [getattr(x, "placements", (None,))[0] for x in ours[-1]] == [*layout]
    assert_equal(ours, definition(losses, inputs, labels, **how))


def refused(what, call):
    with one_line(what):
        call()


def definitions(mesh):
    every = [(23, spec, first, how) for spec in SPECS for first in (True, False) for how in HOW]
    for vocabulary, spec, first, how in (*every, (2, SPECS[-1], True, {})):
        compare(mesh, objective(spec, first_token_mle=first), *example(vocabulary), **how)
    inputs, labels = example(26)
    inputs[2][23:] = float("-inf")  # words of one process alone
    compare(mesh, objective("mle"), inputs, labels.where(labels < 23, 22))


def placements(mesh):
    inputs, labels = example()
    losses = objective(SPECS[-1])
    of_hidden, of_head = (Replicate(), Shard(0), Shard(1), Shard(2)), (Replicate(), Shard(0))
    for placed in itertools.product((None, *of_hidden), (None, *of_head), (None, *of_head)):
        if any(placed):
            compare(mesh, losses, inputs, labels, placed)
    _, *head = place(inputs, mesh, BY_ROWS)
    part = leaf([inputs[0] * 0.25, inputs[0] * 0.75][dist.get_rank()])
    sum_of_parts = DTensor.from_local(part, mesh, [Partial()])
    copies = distribute_tensor(labels, mesh, [Replicate()])
    ours = found(losses, [sum_of_parts, *head], copies)
    assert_equal(ours, definition(losses, inputs, labels))


def no_whole_weight(mesh):
    inputs, labels = example(4000)
    for spec in SPECS:
        placed = place(inputs, mesh, BY_ROWS)
        with LargestMade() as made:
            local = [x.to_local() if isinstance(x, DTensor) else x for x in placed]
            found(objective(spec), placed, labels)
        # The most is the logits, for own words, of all labels.
        assert made.elements <= (labels != IGNORE).sum() * len(local[1]), made.elements


def what_is_refused(mesh):
    inputs, labels = example()
    losses = objective("smile")
    hidden, weight, _ = inputs
    square = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    both = distribute_tensor(weight, square, [Shard(0), Shard(0)])
    refused("single one-dimensional mesh", lambda: losses.from_hidden(hidden, both, None, labels))
    rows = distribute_tensor(weight, mesh, [Shard(0)])
    other = labels.roll(dist.get_rank(), 1)
    line = "different labels.*if FSDP shards the head"
    refused(line, lambda: losses.from_hidden(hidden, rows, None, other))
    shorter = [x[:, : 7 - dist.get_rank()] for x in (hidden, labels)]
    refused(line, lambda: losses.from_hidden(shorter[0], rows, None, shorter[1]))
    gem = objective("gem")
    refused("'gem' reads all logits", lambda: gem.from_hidden(hidden, rows, None, labels))
    wrong = labels.masked_fill(labels == labels[0, 0], 23)
    refused("the vocabulary has 23 tokens", lambda: losses.from_hidden(hidden, rows, None, wrong))
    logits = F.linear(*inputs)
    by_words = distribute_tensor(logits, mesh, [Shard(2)])
    refused(r"logits.full_tensor\(\)", lambda: losses(by_words, labels))
    copies = distribute_tensor(logits, mesh, [Replicate()])
    torch.testing.assert_close(losses(copies, labels), losses(logits, labels))


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.up = nn.Embedding(23, 8), nn.Linear(8, 12)
        self.down, self.head = nn.Linear(12, 8), nn.Linear(8, 23)
        self.objective = objective(SPECS[-1])
        self.double()

    def forward(self, tokens, labels):
        hidden = self.down(self.up(self.words(tokens)).tanh())
        return self.objective.from_hidden(hidden, self.head.weight, self.head.bias, labels).loss


def step(model, *inputs):
    model.zero_grad()
    torch.manual_seed(0)
    loss = model(*inputs)
    loss.backward()
    return loss.detach(), {name: full_tensor(p.grad) for name, p in model.named_parameters()}


def tensor_parallel(mesh):
    """A tensor parallel model, with and without a tied embedding, eager and compiled."""
    labels = example()[1][:, 1:]  # torch 2.8 divides no odd number of positions
    tokens = labels.clamp(min=0).roll(1, 1)
    plain = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(),
    }
    sequence = {"down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)}
    for tied in (False, True):
        for plan in (plain, {**plain, **sequence}):
            models = [Captioner(), Captioner()]
            parallelize_module(models[0], mesh, plan)
            for model in models:
                if tied:
                    model.head.weight = model.words.weight
            expected = step(models[1], tokens, labels)
            torch.testing.assert_close(step(models[0], tokens, labels), expected)
            if tied and plan is not plain:
                models[0].compile(backend="aot_eager")
                torch.testing.assert_close(step(models[0], tokens, labels), expected)


CASES = {
    each.__name__: each
    for each in (definitions, placements, no_whole_weight, what_is_refused, tensor_parallel)
}


def main(cases):
    """Run in each process."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for case in cases:
        CASES[case](mesh)
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0
