"""Two processes' steps of half the rows each, under the trainers, against the definition.

python hf_trainers_two_processes.py FOLDER

A process of its own that forks, so that libraries are imported once.
"""

import gc
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import transformers

from smile.hf import use_smile
from tests.smile.trainer_parts import (
    MIXTURE,
    SmileSFTTrainer,
    SmileTrainer,
    datasets,
    definition,
    found,
    llama,
    logs,
    make,
    mixtral,
    of_trl,
    rows,
    with_routers,
)

ROWS = rows()[:4]  # of which either process has two, that differ in tokens
PACKED = {"packing": True, "max_length": 24}
ACCUMULATED = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}


def compare(name, cls, folder, rank, **options):
    trainer = make(cls, folder, ROWS, **{"per_device_train_batch_size": 2, **options})
    trainer.train()
    loss, gradients = definition(llama(), ROWS, MIXTURE)
    torch.testing.assert_close(found(trainer), gradients)
    if rank == 0:
        (entry,) = logs(trainer)
        assert entry["loss"] == pytest.approx(loss, rel=1e-6)
        parts = 0.3 * entry["loss_mle"] + 0.7 * entry["loss_smile"]
        assert entry["loss"] == pytest.approx(parts, rel=1e-5)
        if "num_tokens" in entry:
            assert entry["num_tokens"] == sum(len(row["input_ids"]) for row in ROWS)
        print(cls.__name__, name, flush=True)


def compare_routers(cls, folder, rank, coefficient, **options):
    trainer = make(cls, folder, ROWS, mixtral(), **ACCUMULATED, **options)
    trainer.train()
    loss, auxiliary, gradients = with_routers(ROWS, coefficient)
    torch.testing.assert_close(found(trainer), gradients)
    if rank == 0:
        (entry,) = logs(trainer)
        assert entry["loss"] == pytest.approx(loss, rel=1e-6)
        assert entry["aux_loss"] == pytest.approx(auxiliary, rel=1e-5)
        print(cls.__name__, "routers", flush=True)


def evaluate(cls, folder, rank):
    """The trainer weighs either half by its rows."""
    data = datasets.Dataset.from_list(ROWS)
    trainer = make(cls, folder, ROWS, eval_dataset=data, per_device_eval_batch_size=2)
    metrics = trainer.evaluate()
    parts = 0.3 * metrics["eval_loss_mle"] + 0.7 * metrics["eval_loss_smile"]
    assert metrics["eval_loss"] == pytest.approx(parts, rel=1e-5)
    if rank == 0:
        print(cls.__name__, "evaluated", flush=True)


def refused(folder, rank):
    """DPOTrainer ends in its first step, in both processes, before they wait for each other."""
    model = transformers.LlamaForCausalLM.from_pretrained(f"{folder}/model")
    trainer = of_trl("DPO", folder, use_smile(model))
    with pytest.raises(ValueError, match="LlamaModel was run outside"):
        trainer.train()
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    Path(folder, f"refused_by_{rank}").touch()  # two lines at once can come as one


def main(rank, folder, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for cls in (SmileTrainer, SmileSFTTrainer):
        compare("at once", cls, folder, rank)
        compare("accumulated", cls, folder, rank, **ACCUMULATED)
        evaluate(cls, folder, rank)
    compare("packed", SmileSFTTrainer, folder, rank, **{**PACKED, **ACCUMULATED})
    compare_routers(SmileTrainer, folder, rank, 0.25)
    compare_routers(SmileSFTTrainer, folder, rank, 0.5, router_aux_loss_coef=0.5)
    refused(folder, rank)
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()


if __name__ == "__main__":
    llama().float().save_pretrained(f"{sys.argv[1]}/model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(main, (sys.argv[1], port), nprocs=2, start_method="fork")
