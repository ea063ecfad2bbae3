"""Our captioners as models of lmms-eval, by its plugin convention.

    LMMS_EVAL_PLUGINS=captioning.lmms_plugin python -m lmms_eval --model captioner \\
        --model_args checkpoint=output/caption_coco,num_beams=3 --tasks coco2017_cap_val
"""
