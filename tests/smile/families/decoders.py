"""Decoders of text, whose logits are one ahead of the labels."""

from functools import partial

import transformers

from tests.smile.families.batches import DECODER, PAD, SIZES, VOCABULARY, Family, causal_batch

# Three experts, of which two are asked; what their choice costs is asked for.
EXPERTS = {
    **{"num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "decoder_sparse_step": 1},
    **{"output_router_logits": True, "router_aux_loss_coef": 0.3},
}


def of_words(name, config="", **settings):
    """Decoder `name` of transformers, with its batch."""
    config = getattr(transformers, f"{config or name}Config")(**settings)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    return Family(model, causal_batch(), True)


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, **SIZES["gpt2"])
    return Family(transformers.GPT2LMHeadModel(config), causal_batch(), True)


def llama_config():
    sizes = {**SIZES["bert"], "num_key_value_heads": 1}
    return transformers.LlamaConfig(vocab_size=VOCABULARY, **sizes, pad_token_id=PAD)


def llama():
    return Family(transformers.LlamaForCausalLM(llama_config()), causal_batch(), True)


MAMBA = {"mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4}
GEMMA = {
    **DECODER,
    "query_pre_attn_scalar": 8,
    "sliding_window": 4,
    "final_logit_softcapping": 0.05,
}
JETMOE = {**EXPERTS, "kv_channels": 8, "aux_loss_coef": 0.3}


INKLING = {  # its head has words that are there for alignment alone
    **{"unpadded_vocab_size": 30, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1},
    **{"swa_head_dim": 8, "d_rel": 4, "rel_extent": 8, "mlp_layer_types": ["dense", "dense"]},
    **{"local_layer_ids": [0], "sliding_window_size": 4},
}
FALCON = {"mamba_d_ssm": 16, "mamba_n_heads": 2, **MAMBA, "lm_head_multiplier": 7.0}
DECODERS = {
    "Bamba": {**MAMBA, "mamba_n_heads": 4, "attn_layer_indices": [1], "z_loss_coefficient": 0.2},
    "Cohere2": {"logit_scale": 7.0},
    "Cohere": {"logit_scale": 7.0},
    "FalconH1": FALCON,
    "Gemma2": {**GEMMA, "attn_logit_softcapping": 2.0},
    "Granite": {"logits_scaling": 0.2, "attention_multiplier": 0.3},
    "GraniteMoe": {**EXPERTS, "logits_scaling": 0.2},
    "HyperCLOVAX": {"logits_scaling": 5.0},  # multiplies with what Granite divides by
    "JetMoe": JETMOE,
    "Mixtral": EXPERTS,
    "Qwen2Moe": EXPERTS,
    "Qwen3": {},
    "Qwen3Moe": EXPERTS,
}
FAMILIES = {
    "GPT2LMHeadModel": gpt2,
    "Gemma3ForCausalLM": partial(of_words, "Gemma3", "Gemma3Text", **GEMMA),
    "InklingForCausalLM": partial(of_words, "Inkling", "InklingText", **DECODER, **INKLING),
    "LlamaForCausalLM": llama,
    **{
        f"{name}ForCausalLM": partial(of_words, name, **{**DECODER, **more})
        for name, more in DECODERS.items()
    },
}
