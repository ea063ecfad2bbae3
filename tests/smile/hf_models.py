"""A tiny random model and batch of each family, by its class and, after a comma, its kind."""

import transformers

from tests.smile.families import language, vision_language

FAMILIES = {**language.FAMILIES, **vision_language.FAMILIES}


def class_of(name):
    return name.split(",")[0]


HERE = [name for name in sorted(FAMILIES) if hasattr(transformers, class_of(name))]


def new(name):
    return FAMILIES[name](class_of(name))


def make(name):
    """Return the family in float64 and in evaluation mode."""
    family = new(name)
    batch = {k: in_float64(v) for k, v in family.batch.items()}
    knows_float64(family.model)
    return family._replace(model=family.model.double().eval(), batch=batch)


def in_float64(value):
    floating = hasattr(value, "is_floating_point") and value.is_floating_point()
    return value.double() if floating else value


def knows_float64(model):
    """Replace masks and grouped products of transformers that do not support float64."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    for module in model.modules():
        if transformers.__version__ == "4.15.0" and hasattr(module, "invert_attention_mask"):
            module.invert_attention_mask = inverted
        if type(module).__name__ == "Kosmos2TextTransformer":
            module._prepare_decoder_attention_mask = in_float32(
                module._prepare_decoder_attention_mask
            )


def inverted(mask):
    return (1 - mask[:, None, None, :].double()) * -1e9


def in_float32(prepare):
    def prepare_mask(mask, shape, embeddings, *args):
        return prepare(mask, shape, embeddings.float(), *args).double()

    return prepare_mask
