"""SmileLossMixin: one step of each trainer is the definition's, with all that the trainer does."""

import gc

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers

from smile import Objective
from smile.hf import use_smile
from tests.markers import slow
from tests.processes import Processes
from tests.smile import trainer_parts as parts
from tests.smile.trainer_parts import CAPTIONS, SmileSFTTrainer, SmileTrainer, check, ids, make

peft = pytest.importorskip("peft")


UNEVEN = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
STEPS = {
    "padded": {},
    "packed": {"packing": True, "max_length": 64},
    "packed in several rows": {"packing": True, "max_length": 20},
    "padding-free": {"padding_free": True, "max_length": None},
    "accumulated in uneven parts": UNEVEN,
    "packed and accumulated": {
        **{"packing": True, "max_length": 20},
        **{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 10},
    },
    "recomputed": {parts.RECOMPUTES: True},
    "TRL's former name of its loss": {"loss_type": "chunked_nll"},
}


@pytest.mark.parametrize(
    ("step", "from_hidden"),
    [
        *[("padded", True), ("packed", True), ("packed and accumulated", True)],
        ("accumulated in uneven parts", False),
        *(slow(step, True) for step in [*STEPS][2:] if step != "packed and accumulated"),
        slow("packed", False),
    ],
)
def test_a_step_of_sft_is_the_definitions(step, from_hidden, tmp_path):
    trainer = make(SmileSFTTrainer, tmp_path, from_hidden=from_hidden, **STEPS[step])
    check(trainer)
    (entry,) = parts.logs(trainer)
    assert entry["num_tokens"] == sum(len(row["input_ids"]) for row in parts.rows())


PACKED = pytest.mark.parametrize("packing", [{}, STEPS["packed"]], ids=["padded", "packed"])


@PACKED
@pytest.mark.parametrize("alone", [None, slow(False)])
def test_completions_alone_are_scored(packing, alone, tmp_path):
    """Unless TRL is set to score prompts, too; they are then part of the caption."""
    data = [{"prompt": "user : a cat", "completion": " " + caption} for caption in CAPTIONS]
    asked = ids("user : a cat")
    said = [ids(caption + " </s>") for caption in CAPTIONS]
    before = asked if alone is False else [-100] * len(asked)
    expected = [{"input_ids": asked + x, "labels": before + x} for x in said]
    packing = {**packing, "completion_only_loss": alone}
    check(make(SmileSFTTrainer, tmp_path, data, **packing), expected)


@PACKED
def test_each_turn_of_an_assistant_is_a_caption(packing, tmp_path):
    """The subset of one turn does not have the words of another."""
    data, expected = [], []
    for one, other in zip(CAPTIONS, CAPTIONS[1:]):
        turns = [("user", "a cat"), ("assistant", one), ("user", "dog"), ("assistant", other)]
        data.append({"messages": [{"role": role, "content": text} for role, text in turns]})
        first, second = ids(f"{one} </s>"), ids(f"{other} </s>")
        asked, again = ids("user : a cat"), ids("user : dog")
        whole = [*asked, *first, *again, *second]
        for turn, before in ((first, asked), (second, [*asked, *first, *again])):
            labels = [-100] * len(before) + turn
            labels += [-100] * (len(whole) - len(labels))
            expected.append({"input_ids": whole, "labels": labels})
    packing = {**packing, "max_length": 128}
    check(make(SmileSFTTrainer, tmp_path, data, assistant_only_loss=True, **packing), expected)


def test_of_a_lora_on_packed_rows_the_adapters_alone_get_gradients(tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    trainer = make(SmileSFTTrainer, tmp_path, peft_config=config, **STEPS["packed"])
    model = parts.llama()
    torch.manual_seed(42)  # SFTTrainer's, as it makes adapters
    check(trainer, model=peft.get_peft_model(model, config))
    found = parts.step_gradients(trainer)
    assert found and all("lora_" in name for name in found)


@pytest.mark.parametrize(
    ("cls", "model"), [(SmileTrainer, parts.llama), (parts.SmileSeq2SeqTrainer, parts.t5)]
)
def test_an_accumulated_step_of_transformers_trainers_is_the_definitions(cls, model, tmp_path):
    check(make(cls, tmp_path, model=model(), **UNEVEN), model=model())


@pytest.mark.parametrize(
    ("cls", "objective"),
    [(SmileTrainer, None), (SmileSFTTrainer, Objective("reverse", first_token_mle=False))],
)
def test_a_single_objective_logs_no_parts_and_the_default_is_smile(cls, objective, tmp_path):
    trainer = make(cls, tmp_path, objective=objective)
    check(trainer, objective=objective or Objective("smile"))
    assert not [name for entry in trainer.state.log_history for name in entry if "loss_" in name]


def test_shift_labels_of_a_collator_are_evaluated_and_trained(tmp_path):
    pad = transformers.DataCollatorForSeq2Seq(parts.tokenizer())

    def collate(examples):
        batch = pad(examples)
        batch["shift_labels"] = F.pad(batch.pop("labels")[:, 1:], (0, 1), value=-100)
        return batch

    options = {"data_collator": collate, "label_names": ["shift_labels"], **UNEVEN}
    trainer = make(SmileTrainer, tmp_path, eval_dataset=parts.data_set(), **options)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(parts.expected()[0], rel=1e-6)
    check(trainer)


def test_a_flattening_collators_row_is_trained_as_separate_captions(tmp_path):
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    check(make(SmileTrainer, tmp_path, data_collator=collate))


ROWS = parts.rows()[:4]  # of which either process has two, that differ in tokens
ACCUMULATED = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}


def assert_parts(entry, prefix=""):
    mixture = 0.3 * entry[f"{prefix}loss_mle"] + 0.7 * entry[f"{prefix}loss_smile"]
    assert entry[f"{prefix}loss"] == pytest.approx(mixture, rel=1e-5)


def compare_in_process(cls, folder, **options):
    trainer = make(cls, folder, ROWS, **ACCUMULATED, **options)
    check(trainer, ROWS)
    for entry in parts.logs(trainer):
        assert_parts(entry)
        if cls is SmileSFTTrainer:
            assert entry["num_tokens"] == sum(len(row["input_ids"]) for row in ROWS)


def compare_routers(folder):
    options = {**ACCUMULATED, "router_aux_loss_coef": 0.5}
    trainer = make(SmileSFTTrainer, folder, ROWS, parts.mixtral(), **options)
    parts.check_routers(trainer, ROWS, 0.5)


def evaluate(folder):
    """The trainer weights each half by its rows."""
    options = {"eval_dataset": parts.data_set(ROWS), "per_device_eval_batch_size": 2}
    assert_parts(make(SmileTrainer, folder, ROWS, **options).evaluate(), "eval_")


def refused(folder):
    """Both processes raise in DPOTrainer's first step, before they synchronise."""
    model = transformers.LlamaForCausalLM.from_pretrained(f"{folder}/model")
    trainer = parts.make_trl_trainer("DPO", folder, use_smile(model))
    parts.refused_in_training(trainer, "LlamaModel was run outside")
    assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)


def in_each_process(folder):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # that of the process that forked
    for cls in (SmileTrainer, SmileSFTTrainer):
        compare_in_process(cls, folder)
    compare_in_process(SmileSFTTrainer, folder, packing=True, max_length=24)
    evaluate(folder)
    compare_routers(folder)
    refused(folder)
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0


@pytest.mark.slow
def test_two_processes_train_evaluate_and_refuse_as_one(tmp_path):
    parts.llama().float().save_pretrained(tmp_path / "model")
    run = Processes(in_each_process, str(tmp_path), tmp_path / "output", 2)
    assert run.wait(200) == [0, 0], run.said()[-3000:]
