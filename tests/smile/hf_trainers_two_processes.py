"""Two processes' steps of half the rows each, under the trainers, against the definition."""

import gc

import pytest
import torch
import torch.distributed as dist
import transformers

from smile.hf import use_smile
from tests.smile import trainer_parts as parts

ROWS = parts.rows()[:4]  # of which either process has two, that differ in tokens
PACKED = {"packing": True, "max_length": 24}
ACCUMULATED = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}


def assert_parts(entry, prefix=""):
    mixture = 0.3 * entry[f"{prefix}loss_mle"] + 0.7 * entry[f"{prefix}loss_smile"]
    assert entry[f"{prefix}loss"] == pytest.approx(mixture, rel=1e-5)


def compare(cls, folder, **options):
    trainer = parts.make(cls, folder, ROWS, **{"per_device_train_batch_size": 2, **options})
    parts.check(trainer, ROWS)
    for entry in parts.logs(trainer):
        assert_parts(entry)
        if cls is parts.SmileSFTTrainer:
            assert entry["num_tokens"] == sum(len(row["input_ids"]) for row in ROWS)


def compare_routers(folder):
    options = {**ACCUMULATED, "router_aux_loss_coef": 0.5}
    trainer = parts.make(parts.SmileSFTTrainer, folder, ROWS, parts.mixtral(), **options)
    parts.check_routers(trainer, ROWS, 0.5)


def evaluate(cls, folder):
    """The trainer weights each half by its rows."""
    options = {"eval_dataset": parts.data_set(ROWS), "per_device_eval_batch_size": 2}
    assert_parts(parts.make(cls, folder, ROWS, **options).evaluate(), "eval_")


def refused(folder):
    """Both processes raise in DPOTrainer's first step, before they synchronise."""
    model = transformers.LlamaForCausalLM.from_pretrained(f"{folder}/model")
    trainer = parts.of_trl("DPO", folder, use_smile(model))
    parts.refused_in_training(trainer, "LlamaModel was run outside")
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)


def main(folder):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # that of the process that forked
    for cls in (parts.SmileTrainer, parts.SmileSFTTrainer):
        compare(cls, folder, **ACCUMULATED)
    compare(parts.SmileSFTTrainer, folder, **PACKED, **ACCUMULATED)
    evaluate(parts.SmileTrainer, folder)
    compare_routers(folder)
    refused(folder)
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0
