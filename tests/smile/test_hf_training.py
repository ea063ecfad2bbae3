"""smile.hf under what large models are trained with: PEFT, recomputation, DDP, FSDP2, Trainer."""

import copy
import gc
import inspect
import re
import types

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from smile.hf import SmileLossMixin, compute_loss_func, use_smile
from tests.processes import Processes
from tests.smile import hf_models
from tests.smile.families.batches import SIZES
from tests.smile.hf_steps import BOTH_KINDS, GPT2, LLAMA, gradients, made, one_line
from tests.smile.largest_made import LargestMade

BAMBA = "BambaForCausalLM"


def test_nothing_larger_than_the_heads_weight_is_allocated_from_hidden_states():
    config = transformers.GPT2Config(vocab_size=50_000, **SIZES["gpt2"])
    model = use_smile(transformers.GPT2LMHeadModel(config).train(), from_hidden=True)
    tokens = torch.randint(50_000, (4, 30))
    with LargestMade() as largest:
        model(input_ids=tokens, labels=tokens).loss.backward()
    assert largest.elements <= model.transformer.wte.weight.numel()


def step(model, batch, items, from_hidden=False):
    model.zero_grad()
    output = model(**batch, num_items_in_batch=items)
    assert (output.logits is None) == from_hidden
    output.loss.backward()
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
    """Compare two processes' gradients of half a batch each with those of the whole batch."""
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
            found = step(wrap(model(from_hidden)), half, items / 2, from_hidden)
            torch.testing.assert_close(found, expected)
            with one_line("trained without labels"):  # by a trainer that keeps labels for itself
                wrap(model(from_hidden))(**{k: v for k, v in half.items() if k != "labels"})


def in_each_process(names):
    dist.init_process_group("gloo")
    for name in names:
        compare(name, dist.get_rank())
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0


@pytest.mark.slow
def test_ddp_and_fsdp_of_half_batches_have_the_gradients_of_the_whole(tmp_path):
    run = Processes(in_each_process, BOTH_KINDS, tmp_path / "output", 2)
    assert run.wait(200) == [0, 0], run.said()


TEXTS = torch.tensor([[3, 4, 5, 6, 7, 8, 4, 5]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
ROWS = {LLAMA: {"input_ids": TEXTS, "labels": TEXTS, "position_ids": POSITIONS}}


@pytest.mark.parametrize("name", [name for name in (GPT2, LLAMA, BAMBA) if name in hf_models.HERE])
def test_a_renamed_subclass_such_as_fsdps_keeps_loss_and_head(name):
    """The tables of heads, packing and z-losses apply to FSDP2's subclass with another name."""
    family = made(name)
    batch, model = ROWS.get(name, family.batch), use_smile(family.model, None, family.from_hidden)
    expected = model(**batch)
    model.__class__ = type(f"FSDP{name}", (type(model),), {"__module__": "torch.distributed.fsdp"})
    found = model(**batch)
    torch.testing.assert_close(found.loss, expected.loss)
    assert (found.logits is None) == family.from_hidden


PYTHON = r"```python\n(.*?)```"
NEW_TRAINER = "compute_loss_func" in inspect.signature(transformers.Trainer).parameters


class SmileTrainer(SmileLossMixin, transformers.Seq2SeqTrainer):
    pass


@pytest.mark.parametrize("name", BOTH_KINDS)
@pytest.mark.parametrize(
    "way",
    [
        *("use_smile", "compute_loss_func"),
        # tests/smile/test_hf_trainers.py needs a transformers of today.
        pytest.param("SmileLossMixin", marks=pytest.mark.slow),
    ],
)
def test_a_trainers_accumulated_step_moves_weights_as_the_whole_batch_does(name, way, tmp_path):
    """Every token has the same weight, also if batches of different lengths are accumulated."""
    if way == "compute_loss_func" and not NEW_TRAINER:
        pytest.skip(f"Trainer of transformers {transformers.__version__} takes no loss function")
    if NEW_TRAINER:
        pytest.importorskip("accelerate")
    family = made(name)
    model, batch = family.model.float(), family.batch
    batch["labels"][1, 2:] = -100
    twin = use_smile(copy.deepcopy(model))
    twin(**batch).loss.backward()
    expected = {key: value - 0.1 * value.grad for key, value in twin.named_parameters()}
    if not family.shift:  # as DataCollatorForSeq2Seq does
        ids = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        batch["decoder_input_ids"] = ids
    rows = [{key: value[row] for key, value in batch.items()} for row in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    options = {"train_dataset": rows, "optimizers": (optimizer, constant)}
    if way == "compute_loss_func":
        options[way] = compute_loss_func(model)
    if way == "use_smile":
        use_smile(model)
    quiet = {"max_grad_norm": 0, "save_strategy": "no", "disable_tqdm": True, "report_to": []}
    sizes = {"per_device_train_batch_size": 3, "max_steps": 1}
    if NEW_TRAINER:
        sizes.update(per_device_train_batch_size=1, gradient_accumulation_steps=3)
    arguments = transformers.Seq2SeqTrainingArguments(str(tmp_path), **sizes, **quiet)
    trainer = SmileTrainer if way == "SmileLossMixin" else transformers.Seq2SeqTrainer
    trainer(model, arguments, **options).train()
    for key, value in model.named_parameters():
        torch.testing.assert_close(value.cpu(), expected[key], atol=1e-6, rtol=1e-4)


def test_the_snippets_of_the_pages_run(repository):
    """Runs the first snippets of the README's section and of the page."""
    readme, page = (
        (repository / path).read_text(encoding="utf-8")
        for path in ("README.md", "docs/any_model.md")
    )
    (section,) = re.findall(r"## SMILE in your model\n(.*?)\n## ", readme, re.S)
    codes = [*re.findall(PYTHON, section, re.S), *re.findall(PYTHON, page, re.S)[:2]]
    assert len(codes) == 3
    model, batch, *_ = hf_models.make("GPT2LMHeadModel")
    labels = batch.pop("labels")
    logits, hidden = torch.randn(*labels.shape, 40), torch.randn(*labels.shape, 8)
    known = {"logits": logits, "labels": labels, "shifted_prediction_scores": logits}
    known.update(model=model, batch=batch, hidden=hidden, lm_head=torch.nn.Linear(8, 40))
    for code in codes:
        exec(code, known)
    assert known["lm_loss"] > 0 and known["loss"] > 0
