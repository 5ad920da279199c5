"""Twenty language models of `transformers`, tiny, built from their config classes.

Nothing is downloaded: a config holds the sizes, and weights are drawn at random. Each
comes as an Example, so that whoever captures one needs to know nothing of the library.

Options that fixed shapes need:

    use_cache        off: a cache grows a tensor a step
    dropout          0: one step is to be a function of its batch
    attention        eager, with a mask in the batch: sdpa's short cuts, and the search
                     for packed sequences without a mask, read the values of tensors
    experts          "batched_mm" gathers the chosen experts' weights for each token, so
                     all shapes are known beforehand; the default loops over the experts
                     that were hit, whose number depends on data
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from testing.models.example import Example

NUM_TOKENS = 64
BATCH, LENGTH = 4, 8
_SMALL: Mapping[str, Any] = {
    "vocab_size": NUM_TOKENS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "use_cache": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {"intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 4}
_EXPERTS = {"experts_implementation": "batched_mm"}
_NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}

# name -> (config, language model, what the config is given besides _SMALL)
ARCHITECTURES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "GPT-2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    ),
    "GPT-NeoX": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {"intermediate_size": 32}),
    "OPT": (
        "OPTConfig",
        "OPTForCausalLM",
        {"ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0, "pad_token_id": 0},
    ),
    "BLOOM (ALiBi)": ("BloomConfig", "BloomForCausalLM", _NO_DROPOUT),
    "Falcon": ("FalconConfig", "FalconForCausalLM", _NO_DROPOUT),
    "Llama": ("LlamaConfig", "LlamaForCausalLM", _GROUPED),
    "Mistral": ("MistralConfig", "MistralForCausalLM", _GROUPED),
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _GROUPED),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _GROUPED),
    "Gemma": ("GemmaConfig", "GemmaForCausalLM", _GROUPED),
    "Gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", _GROUPED),
    "Phi": ("PhiConfig", "PhiForCausalLM", {"intermediate_size": 32}),
    "Phi-3": ("Phi3Config", "Phi3ForCausalLM", _GROUPED | {"pad_token_id": 0}),
    "StableLM": ("StableLmConfig", "StableLmForCausalLM", _GROUPED),
    "Cohere": ("CohereConfig", "CohereForCausalLM", _GROUPED),
    "OLMo 2": ("Olmo2Config", "Olmo2ForCausalLM", _GROUPED),
    "Mixtral (experts)": (
        "MixtralConfig",
        "MixtralForCausalLM",
        _GROUPED | _EXPERTS | {"num_local_experts": 4},
    ),
    "Qwen2-MoE (experts)": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        _GROUPED
        | _EXPERTS
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "Mamba (state space)": (
        "MambaConfig",
        "MambaForCausalLM",
        {"state_size": 4, "conv_kernel": 3},
    ),
    "T5 (encoder-decoder)": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
        },
    ),
}


def example(name: str, *, attention: str = "eager") -> Example:
    """One architecture, tiny.

    Args:
        name: a key of ARCHITECTURES.
        attention: how the library computes attention, "sdpa" or "eager".
    """
    config_name, model_name, given = ARCHITECTURES[name]
    options = {**_SMALL, **given}
    experts = options.pop("experts_implementation", None)

    def model_fn() -> nn.Module:
        config = getattr(transformers, config_name)(**options)
        if experts is not None:
            config._experts_implementation = experts
        config._attn_implementation = attention
        return cast(nn.Module, getattr(transformers, model_name)(config))

    masked = "encoder" not in name  # whose masks are skipped by the mask's values
    return Example(name, model_fn, partial(_batch, masked=masked), _loss)


def _batch(*, masked: bool) -> dict[str, Tensor]:
    """Tokens and labels; a mask, without which most look for packed sequences."""
    batch = {
        "input_ids": torch.randint(3, NUM_TOKENS, (BATCH, LENGTH)),
        "labels": torch.randint(3, NUM_TOKENS, (BATCH, LENGTH)),
    }
    if masked:
        batch["attention_mask"] = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    return batch


def _loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return cast(Tensor, model(**batch).loss)


class _Double(TorchFunctionMode):
    """Computes in float64 where a model asks for float32 by name."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {name: _double(value) for name, value in (kwargs or {}).items()}
        if func is Tensor.float:
            func = Tensor.double
        return func(*(_double(value) for value in args), **given)


def _double(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def double_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss of a model in float64, also where the library computes in float32.

    Losses, softmax and norms do, so that a step's numbers would depend on the order of
    sums far more than in float64.
    """
    with _Double():
        return _loss(model, batch)
