"""Losses and settings that are refused, in one line each; losses that may be changed."""

from types import SimpleNamespace

import pytest
import torch
import transformers

from smile.hf import SmileLossMixin, undo, use_smile
from smile.hf.conflicts import find_conflicts
from tests.smile import trainer_parts as parts
from tests.smile.hf_steps import from_logits_and_hidden, one_line
from tests.smile.trainer_parts import MIXTURE, SmileSFTTrainer, SmileTrainer, check, llama, make

PACKED = {"packing": True, "max_length": 20}
WRAPPED = {**PACKED, "packing_strategy": "wrapped"}
SMOOTHED = {"label_smoothing_factor": 0.1}


@pytest.mark.parametrize(
    ("cls", "options", "line"),
    [
        (SmileTrainer, SMOOTHED, r"Objective\(..., label_smoothing=0.1\)"),
        (SmileSFTTrainer, SMOOTHED, r"Objective\(..., label_smoothing=0.1\)"),
        (SmileTrainer, {"compute_loss_func": print}, "compute_loss_func is another loss"),
        (SmileSFTTrainer, {"compute_loss_func": print}, "compute_loss_func is another loss"),
        (SmileSFTTrainer, {"loss_type": "dft"}, "loss_type 'dft' is another loss"),
        (SmileSFTTrainer, WRAPPED, '"wrapped" cuts captions'),
        (SmileTrainer, {"use_liger_kernel": True}, "fused_linear_cross_entropy"),
    ],
)
def test_another_loss_is_refused(cls, options, line, tmp_path):
    with one_line(f"^{cls.__name__}.*{line}"):
        make(cls, tmp_path, **options)


def test_mle_alone_may_be_packed_into_cut_rows(tmp_path):
    trainer = make(SmileSFTTrainer, tmp_path, objective="mle", **WRAPPED)
    assert trainer.train().training_loss > 0


@pytest.mark.parametrize(
    ("kind", "mle", "line"), [("cp", 0, "cp_size"), ("sp", 0, "sp_size"), ("", 1, "torchrun")]
)
def test_captions_divided_between_devices_are_refused(kind, mle, line, tmp_path):
    """Context and sequence parallelism, which need several processes, and nn.DataParallel."""
    for objective, lines in (("smile", 1), ("mle", mle)):
        trainer = make(SmileTrainer, tmp_path, objective=objective)
        if kind:
            parallel = SimpleNamespace(**{f"{kind}_enabled": True})
            trainer.accelerator = SimpleNamespace(parallelism_config=parallel)
        else:
            trainer.args._n_gpu = 2
        found = list(find_conflicts(trainer))
        assert len(found) == lines and all(line in each for each in found)


def test_a_learnt_prompt_and_packing_are_refused(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with one_line("packed captions would see each other"):
        make(SmileSFTTrainer, tmp_path, model=peft.get_peft_model(llama(), config), **PACKED)


@pytest.mark.parametrize("base", [transformers.Trainer, parts.trl.SFTTrainer])
def test_the_mixin_comes_first_and_has_its_trainers(base):
    with pytest.raises(TypeError, match=f"^Wrong: put SmileLossMixin before {base.__name__}$"):
        type("Wrong", (base, SmileLossMixin), {})
    with one_line("DPOTrainer has another loss"):
        type("SmileDPOTrainer", (SmileLossMixin, parts.trl.DPOTrainer), {})


@pytest.mark.slow
def test_a_loss_may_be_changed_above_the_mixin_and_below(tmp_path):
    class Above(SmileTrainer):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    class Own(transformers.Trainer):
        def __init__(self, model, args, data_collator, train_dataset, callbacks):
            kwargs = {"train_dataset": train_dataset, "callbacks": callbacks}
            super().__init__(model, args, data_collator, **kwargs)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            return (2 * loss, outputs) if return_outputs else 2 * loss

    class Below(SmileLossMixin, Own):
        pass

    kinds = (SmileTrainer, Above, Below)
    single, above, below = (make(cls, tmp_path).train().training_loss for cls in kinds)
    assert above == below == pytest.approx(2 * single)


def test_a_trainer_of_ones_own_with_another_loss_is_refused(tmp_path):
    """In its first step. Such a trainer gets logits."""

    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            loss = outputs.logits.square().mean()
            return (loss, outputs) if return_outputs else loss

    class SmileOwn(SmileLossMixin, Own):
        pass

    trainer = make(SmileOwn, tmp_path)
    parts.refused_in_training(trainer, "another loss was computed from its logits")


def test_weights_that_a_collator_drops_are_refused(tmp_path):
    trainer = make(SmileSFTTrainer, tmp_path, [{**row, "weights": 2.0} for row in parts.rows()])
    parts.refused_in_training(trainer, "has a column weights, but batches do not")


@pytest.mark.parametrize("change", ["model", "objective"])
def test_a_model_that_lost_the_objective_after_the_trainer_was_made_is_refused(change, tmp_path):
    trainer = make(SmileTrainer, tmp_path)
    if change == "model":
        trainer.model = trainer.model_wrapped = llama()
    else:
        use_smile(trainer.model, "reverse")
    parts.refused_in_training(trainer, "SmileTrainer: the trained model does not have")


class BaseTrainer(transformers.Trainer):
    """Named like one of TRL's."""


class SFTTrainer(BaseTrainer):
    """Computes the loss like that of TRL 0.24 to 1.9, which logs statistics of the logits."""

    def __init__(
        self, model, args, formatting_func=None, compute_loss_func=None, *, data_collator, **kwargs
    ):
        super().__init__(model, args, data_collator, compute_loss_func=compute_loss_func, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs.pop("_prediction_loss_only", None)
        inputs["use_cache"] = False
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.figures = outputs.logits[..., :-1, :].softmax(-1)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, *args, **kwargs):
        inputs["_prediction_loss_only"] = prediction_loss_only
        return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)


@pytest.mark.slow
def test_an_sft_trainer_that_reads_logits_gets_them_or_is_refused(tmp_path):
    class SmileFormer(SmileLossMixin, SFTTrainer):
        pass

    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    options["eval_dataset"] = parts.data_set()
    for from_hidden in (False, True):
        trainer = make(SmileFormer, tmp_path, from_hidden=from_hidden, **options)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(parts.expected()[0], rel=1e-6)
        check(trainer)
    trainer = make(SFTTrainer, tmp_path, model=use_smile(llama(), MIXTURE, from_hidden=True))
    parts.refused_in_training(trainer, "reads logits.*SmileLossMixin.*from_hidden=False")


def test_use_smile_after_the_trainer_was_made_is_refused(tmp_path):
    """TRL from 1.15 on sets a forward that computes its own loss."""
    trainer = make(parts.trl.SFTTrainer, tmp_path)
    use_smile(trainer.model, MIXTURE)
    parts.refused_in_training(trainer, r"own loss \(fused_lm_head\).*SmileLossMixin")


@from_logits_and_hidden
def test_use_smile_in_trls_own_trainer_trains_it_or_is_refused(from_hidden, tmp_path):
    """Depending on TRL's version, it trains the objective or raises a one-line error."""
    model = use_smile(llama(), MIXTURE, from_hidden)
    trainer = make(parts.trl.SFTTrainer, tmp_path, model=model)
    try:
        check(trainer)
    except ValueError as error:
        assert "class Mine(SmileLossMixin" in str(error) and "\n" not in str(error)


def test_zero_3_is_trained_from_logits(tmp_path):
    """Imitates DeepSpeed's parameters: empty, with its attributes."""
    model = llama()
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id, parameter.ds_shape = number, parameter.shape
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    with pytest.warns(UserWarning, match="is trained from logits"):
        make(SmileSFTTrainer, tmp_path, model=model)


@pytest.mark.parametrize(
    "kind, options",
    [
        *[("SFT", {"loss_type": "dft"}), ("DPO", {})],
        *(
            pytest.param(kind, {}, marks=pytest.mark.slow)
            for kind in parts.EXAMPLES
            if kind != "DPO"
        ),
    ],
)
def test_a_loss_of_trls_ends_in_its_first_step_and_runs_after_undo(kind, options, tmp_path):
    llama().float().save_pretrained(tmp_path / "llama")  # some load another one to compare with
    model = use_smile(transformers.LlamaForCausalLM.from_pretrained(tmp_path / "llama"))
    trainer = parts.make_trl_trainer(kind, tmp_path, model, **options)
    parts.refused_in_training(trainer, "LlamaModel was run outside")
    undo(model)
    assert trainer.train().global_step == 1
