"""Two processes' steps of half the rows each, under the trainers, against the definition."""

import gc

import pytest
import torch
import torch.distributed as dist
import transformers

from smile.hf import use_smile
from tests.smile.hf_steps import each_alone
from tests.smile.trainer_parts import (
    MIXTURE,
    SmileSFTTrainer,
    SmileTrainer,
    datasets,
    found,
    llama,
    logs,
    make,
    mixtral,
    of_trl,
    refused_in_training,
    rows,
    with_routers,
)

ROWS = rows()[:4]  # of which either process has two, that differ in tokens
PACKED = {"packing": True, "max_length": 24}
ACCUMULATED = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}


def assert_parts(entry, prefix=""):
    parts = 0.3 * entry[f"{prefix}loss_mle"] + 0.7 * entry[f"{prefix}loss_smile"]
    assert entry[f"{prefix}loss"] == pytest.approx(parts, rel=1e-5)


def compare(cls, folder, **options):
    trainer = make(cls, folder, ROWS, **{"per_device_train_batch_size": 2, **options})
    trainer.train()
    loss, gradients = each_alone(llama(), ROWS, MIXTURE)
    torch.testing.assert_close(found(trainer), gradients)
    if dist.get_rank() == 0:
        (entry,) = logs(trainer)
        assert entry["loss"] == pytest.approx(loss, rel=1e-6)
        assert_parts(entry)
        if cls is SmileSFTTrainer:
            assert entry["num_tokens"] == sum(len(row["input_ids"]) for row in ROWS)


def compare_routers(cls, folder, coefficient, **options):
    trainer = make(cls, folder, ROWS, mixtral(), **ACCUMULATED, **options)
    trainer.train()
    loss, auxiliary, gradients = with_routers(ROWS, coefficient)
    torch.testing.assert_close(found(trainer), gradients)
    if dist.get_rank() == 0:
        (entry,) = logs(trainer)
        assert entry["loss"] == pytest.approx(loss, rel=1e-6)
        assert entry["aux_loss"] == pytest.approx(auxiliary, rel=1e-5)


def evaluate(cls, folder):
    """The trainer weighs either half by its rows."""
    data = datasets.Dataset.from_list(ROWS)
    trainer = make(cls, folder, ROWS, eval_dataset=data, per_device_eval_batch_size=2)
    assert_parts(trainer.evaluate(), "eval_")


def refused(folder):
    """DPOTrainer ends in its first step, in both processes, before they wait for each other."""
    model = transformers.LlamaForCausalLM.from_pretrained(f"{folder}/model")
    trainer = of_trl("DPO", folder, use_smile(model))
    refused_in_training(trainer, "LlamaModel was run outside")
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)


def main(folder):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # that of the process that forked
    for cls in (SmileTrainer, SmileSFTTrainer):
        compare(cls, folder)
        compare(cls, folder, **ACCUMULATED)
        evaluate(cls, folder)
    compare(SmileSFTTrainer, folder, **PACKED, **ACCUMULATED)
    compare_routers(SmileTrainer, folder, 0.25)
    compare_routers(SmileSFTTrainer, folder, 0.5, router_aux_loss_coef=0.5)
    refused(folder)
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0
