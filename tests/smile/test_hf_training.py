"""smile.hf under what large models are trained with: PEFT, recomputation, DDP, FSDP2, Trainer."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from smile.hf import undo, use_smile

HF_MODELS = Path(__file__).with_name("hf_models.py")
_spec = importlib.util.spec_from_file_location("hf_models", HF_MODELS)
hf_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hf_models)
BOTH_KINDS = ["GPT2LMHeadModel", "T5ForConditionalGeneration"]
from_logits_and_hidden = pytest.mark.parametrize("from_hidden", [False, True])


def gradients(model, batch):
    torch.manual_seed(1)  # the same dropout
    model.zero_grad()
    model(**batch).loss.backward()
    return {k: v.grad.clone() for k, v in model.named_parameters() if v.grad is not None}


@pytest.mark.parametrize("name", BOTH_KINDS)
@from_logits_and_hidden
def test_gradient_checkpointing(name, from_hidden):
    family = hf_models.make(name)
    model = use_smile(family.model.train(), from_hidden=from_hidden)
    expected = gradients(model, family.batch)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    torch.testing.assert_close(gradients(model, family.batch), expected)


@pytest.mark.parametrize("name", BOTH_KINDS)
@from_logits_and_hidden
def test_lora(name, from_hidden):
    peft = pytest.importorskip("peft")
    family = hf_models.make(name)
    targets = {"GPT2LMHeadModel": ["c_attn"], "T5ForConditionalGeneration": ["q", "v"]}[name]
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    model = peft.get_peft_model(family.model, config).train()
    own = model.eval()(**family.batch).loss.item()
    plain = use_smile(model.train())
    expected = gradients(model, family.batch)
    assert plain is model.get_base_model()
    use_smile(model, from_hidden=from_hidden)
    found = gradients(model, family.batch)
    assert found and all("lora_" in key for key in found)
    torch.testing.assert_close(found, expected)
    smile = model.eval()(**family.batch).loss.item()
    assert smile < own
    undo(model)
    assert model(**family.batch).loss.item() == own


@pytest.mark.slow
def test_ddp_and_fsdp_in_two_processes(repository, tmp_path):
    script = Path(__file__).with_name("hf_two_processes.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), *BOTH_KINDS],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("from_hidden=") == 2 * 2 * len(BOTH_KINDS), done.stdout
