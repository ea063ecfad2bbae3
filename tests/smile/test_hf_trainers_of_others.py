"""A use_smile model in trainers that know nothing of it: what has a loss of its own ends in its
first step, and what leaves the model its loss trains the objective."""

import pytest
import torch
import transformers

from smile.hf import undo, use_smile
from tests.smile.trainer_parts import (
    EXAMPLES,
    MIXTURE,
    QUIET,
    datasets,
    llama,
    of_trl,
    rows,
    t5,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a tiny Llama: some trainers load another one to compare with."""
    folder = tmp_path_factory.mktemp("llama")
    llama().float().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind, options", [*[(kind, {}) for kind in EXAMPLES], ("SFT", {"loss_type": "dft"})]
)
def test_a_loss_of_trls_ends_in_its_first_step(kind, options, folder, tmp_path):
    model = use_smile(transformers.LlamaForCausalLM.from_pretrained(folder))
    trainer = of_trl(kind, tmp_path, model, **options)
    with pytest.raises(ValueError, match="LlamaModel was run outside") as error:
        trainer.train()
    assert "\n" not in str(error.value)
    undo(model)
    assert trainer.train().global_step == 1


@pytest.mark.parametrize("made", [llama, t5])
def test_segments_and_weights_of_a_data_set(made, tmp_path):
    """Trainer leaves out columns that it does not see in the signature of the forward."""
    row = max(rows(), key=lambda row: len(row["labels"]))
    middle = len(row["labels"]) // 2
    row["segments"] = [place // middle for place in range(len(row["labels"]))]
    row["weights"] = [0.5 + place % 3 for place in range(len(row["labels"]))]
    trainer = transformers.Trainer(
        use_smile(made(), MIXTURE),
        transformers.TrainingArguments(str(tmp_path), **QUIET),
        train_dataset=datasets.Dataset.from_list([row]),
        eval_dataset=datasets.Dataset.from_list([row]),
    )
    batch = {key: torch.tensor([value]) for key, value in row.items()}
    tokens = (
        (batch["labels"] != -100).sum() if made is t5 else (batch["labels"][:, 1:] != -100).sum()
    )
    expected = use_smile(made().train(), MIXTURE)(**batch, num_items_in_batch=tokens).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.train().training_loss == pytest.approx(expected, rel=1e-6)
