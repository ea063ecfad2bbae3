"""Decoders of text, whose logits are one ahead of the labels."""

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


def qwen3():
    return of_words("Qwen3", **DECODER)


def gemma2():
    cap = {"final_logit_softcapping": 0.05, "attn_logit_softcapping": 2.0}
    return of_words("Gemma2", **DECODER, **cap, query_pre_attn_scalar=8, sliding_window=4)


def gemma3():
    sizes = {"query_pre_attn_scalar": 8, "sliding_window": 4}
    return of_words("Gemma3", "Gemma3Text", **DECODER, **sizes, final_logit_softcapping=0.05)


def granite():
    return of_words("Granite", **DECODER, logits_scaling=0.2, attention_multiplier=0.3)


def granite_moe():
    return of_words("GraniteMoe", **DECODER, **EXPERTS, logits_scaling=0.2)


def cohere():
    return of_words("Cohere", **DECODER, logit_scale=7.0)


def cohere2():
    return of_words("Cohere2", **DECODER, logit_scale=7.0)


def hyperclovax():
    """Multiplies with what Granite divides by."""
    return of_words("HyperCLOVAX", **DECODER, logits_scaling=5.0)


MAMBA = {"mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4}


def falcon_h1():
    sizes = {"mamba_d_ssm": 16, "mamba_n_heads": 2, **MAMBA}
    return of_words("FalconH1", **DECODER, **sizes, lm_head_multiplier=7.0)


def bamba():
    """Its loss keeps the logits small, all of them."""
    sizes = {"mamba_n_heads": 4, "attn_layer_indices": [1], **MAMBA}
    family = of_words("Bamba", **DECODER, **sizes, z_loss_coefficient=0.2)
    return family._replace(from_hidden=False)


def inkling():
    """Its head has words that are there for alignment alone."""
    return of_words(
        "Inkling",
        "InklingText",
        **DECODER,
        unpadded_vocab_size=30,
        swa_num_attention_heads=2,
        swa_num_key_value_heads=1,
        swa_head_dim=8,
        d_rel=4,
        rel_extent=8,
        mlp_layer_types=["dense", "dense"],
        local_layer_ids=[0],
        sliding_window_size=4,
    )


def mixtral():
    return of_words("Mixtral", **DECODER, **EXPERTS)


def jetmoe():
    experts = {**EXPERTS, "kv_channels": 8, "aux_loss_coef": 0.3}
    return of_words("JetMoe", **DECODER, **experts)


def qwen2_moe():
    return of_words("Qwen2Moe", **DECODER, **EXPERTS)


def qwen3_moe():
    return of_words("Qwen3Moe", **DECODER, **EXPERTS)


FAMILIES = {
    "BambaForCausalLM": bamba,
    "Cohere2ForCausalLM": cohere2,
    "CohereForCausalLM": cohere,
    "FalconH1ForCausalLM": falcon_h1,
    "GPT2LMHeadModel": gpt2,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "GraniteForCausalLM": granite,
    "GraniteMoeForCausalLM": granite_moe,
    "HyperCLOVAXForCausalLM": hyperclovax,
    "InklingForCausalLM": inkling,
    "JetMoeForCausalLM": jetmoe,
    "LlamaForCausalLM": llama,
    "MixtralForCausalLM": mixtral,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
}
