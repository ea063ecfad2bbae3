"""SmileLossMixin: what it is refused, a line each, when the trainer is made."""

from types import SimpleNamespace

import pytest
import transformers

from smile.hf import SmileLossMixin, use_smile
from smile.hf.conflicts import find_conflicts
from tests.smile.trainer_parts import SmileSFTTrainer, SmileTrainer, llama, make, rows, trl

PACKED = {"packing": True, "max_length": 20}
BOTH = pytest.mark.parametrize("cls", [SmileTrainer, SmileSFTTrainer])

REFUSED = [
    (SmileTrainer, {"label_smoothing_factor": 0.1}, r"Objective\(..., label_smoothing=0.1\)"),
    (SmileSFTTrainer, {"label_smoothing_factor": 0.1}, r"Objective\(..., label_smoothing=0.1\)"),
    (SmileSFTTrainer, {"loss_type": "dft"}, "loss_type 'dft' is another loss"),
    (
        SmileSFTTrainer,
        {**PACKED, "packing_strategy": "wrapped"},
        '"wrapped" cuts captions',
    ),
    (SmileTrainer, {"use_liger_kernel": True}, "fused_linear_cross_entropy"),
    (SmileTrainer, {"compute_loss_func": print}, "compute_loss_func is another loss"),
    (SmileSFTTrainer, {"compute_loss_func": print}, "compute_loss_func is another loss"),
]


@pytest.mark.parametrize(("cls", "options", "line"), REFUSED)
def test_another_loss_is_refused(cls, options, line, tmp_path):
    with pytest.raises(ValueError, match=line) as error:
        make(cls, tmp_path, **options)
    assert "\n" not in str(error.value) and str(error.value).startswith(cls.__name__)


def test_mle_alone_may_be_cut(tmp_path):
    options = {**PACKED, "packing_strategy": "wrapped"}
    trainer = make(SmileSFTTrainer, tmp_path, objective="mle", **options)
    assert trainer.train().training_loss > 0


def test_captions_divided_between_processes_are_refused(tmp_path):
    """Under context and sequence parallelism, which need several processes to be set up."""
    for kind in ("cp", "sp"):
        for objective, lines in (("smile", 1), ("mle", 0)):
            trainer = make(SmileTrainer, tmp_path, objective=objective)
            parallel = SimpleNamespace(**{f"{kind}_enabled": True})
            trainer.accelerator = SimpleNamespace(parallelism_config=parallel)
            found = list(find_conflicts(trainer))
            assert len(found) == lines and all(f"{kind}_size" in line for line in found)


def test_nn_data_parallel_is_refused(tmp_path):
    trainer = make(SmileTrainer, tmp_path)
    trainer.args._n_gpu = 2
    (line,) = find_conflicts(trainer)
    assert "torchrun" in line


def test_a_learnt_prompt_and_packing_are_refused(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(llama(), config)
    with pytest.raises(ValueError, match="packed captions would see each other"):
        make(SmileSFTTrainer, tmp_path, model=model, **PACKED)


def test_trainers_of_other_losses_are_refused():
    class SmileDPOTrainer(SmileLossMixin, trl.DPOTrainer):
        pass

    with pytest.raises(ValueError, match="DPOTrainer has another loss"):
        SmileDPOTrainer()


@pytest.mark.parametrize("base", [transformers.Trainer, trl.SFTTrainer])
def test_a_trainer_before_the_mixin_is_refused(base):
    """It would train its own loss: the mixin would never be asked."""
    with pytest.raises(TypeError, match=f"^Wrong: put SmileLossMixin before {base.__name__}$"):

        class Wrong(base, SmileLossMixin):
            pass


def test_a_loss_may_be_changed_above_the_mixin_and_below(tmp_path):
    class Above(SmileTrainer):
        def compute_loss(self, *args, **kwargs):
            return 2 * super().compute_loss(*args, **kwargs)

    class Own(transformers.Trainer):
        def __init__(self, model, args, data_collator, train_dataset, callbacks):
            super().__init__(
                model, args, data_collator, train_dataset=train_dataset, callbacks=callbacks
            )

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            return (2 * loss, outputs) if return_outputs else 2 * loss

    class Below(SmileLossMixin, Own):
        pass

    kinds = (SmileTrainer, Above, Below)
    single, above, below = (make(cls, tmp_path).train().training_loss for cls in kinds)
    assert above == below == pytest.approx(2 * single)


def test_a_trainer_of_ones_own_with_another_loss_is_refused(tmp_path):
    """In its first step: it reads the logits that it needs for its loss."""

    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            loss = outputs.logits.square().mean()
            return (loss, outputs) if return_outputs else loss

    class SmileOwn(SmileLossMixin, Own):
        pass

    with pytest.raises(ValueError, match="another loss was computed from its logits") as error:
        make(SmileOwn, tmp_path).train()
    assert "\n" not in str(error.value)


def test_weights_that_a_collator_drops(tmp_path):
    trainer = make(SmileSFTTrainer, tmp_path, data=[{**row, "weights": 2.0} for row in rows()])
    with pytest.raises(ValueError, match="has a column weights, but batches do not"):
        trainer.train()


@pytest.mark.parametrize("change", ["model", "objective"])
def test_a_model_that_is_changed_after_the_trainer_is_made(change, tmp_path):
    trainer = make(SmileTrainer, tmp_path)
    if change == "model":
        trainer.model = trainer.model_wrapped = llama()
    else:
        use_smile(trainer.model, "reverse")
    with pytest.raises(ValueError, match="SmileTrainer: the trained model does not have") as error:
        trainer.train()
    assert "\n" not in str(error.value)
