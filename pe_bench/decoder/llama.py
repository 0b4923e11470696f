"""Weights of the Hugging Face Llama in this suite's decoder."""

from collections.abc import Mapping

from torch import Tensor

from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError


def load_llama(model: Decoder, state_dict: Mapping[str, Tensor]) -> None:
    """Load a Llama's weights into a decoder of the same shape; the encoding's own stay as they are.

        load_llama(model, LlamaForCausalLM.from_pretrained(folder).state_dict())

    Names are those of `LlamaForCausalLM`, with or without "model." in front. Tied embeddings,
    which have no "lm_head.weight", serve as the head too.

    Raises:
        InputError: weights are missing, left over, or of another shape.
    """
    weights = {name.removeprefix("model."): tensor for name, tensor in state_dict.items()}
    weights = {name: t for name, t in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    if "embed_tokens.weight" in weights:
        weights.setdefault("lm_head.weight", weights["embed_tokens.weight"])
    own = model.state_dict()
    expected = {name: tensor for name, tensor in own.items() if not name.startswith("encodings.")}
    for name, tensor in expected.items():
        if name not in weights:
            raise InputError(f"the Llama weights have no {name}: give all of a model's weights")
        if weights[name].shape != tensor.shape:
            raise InputError(
                f"{name} is {tuple(weights[name].shape)} and the decoder's {tuple(tensor.shape)}: "
                "make the decoder's ModelConfig equal to the Llama's config.json"
            )
    if left := sorted(set(weights) - set(expected)):
        raise InputError(
            f"the decoder has no place for {left[0]} ({len(left)} weights in all): only a plain "
            "Llama without biases fits"
        )
    model.load_state_dict({**own, **weights})
