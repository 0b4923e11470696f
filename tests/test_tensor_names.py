"""Names of the tensors in files of each family, and the parameters of the decoder in each."""

from dataclasses import replace

import pytest
import torch

from pe_bench.config import BlockConfig, ModelConfig
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.pretrained.families import FAMILIES
from pe_bench.pretrained.tensor_names import TensorNames
from pe_bench.pretrained.weights import make_empty

SHAPE = ModelConfig(layers=2, heads=4, kv_heads=2, width=32, mlp_width=24)
QKV = "model.layers.0.self_attn.qkv_proj.weight"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_parameter_is_found_under_its_name_in_files(family: str) -> None:
    own = FAMILIES[family]
    shape = replace(SHAPE, **own.model, block=BlockConfig(**own.block))
    names = TensorNames(own)
    for name in make_empty(shape, Encoding).state_dict():
        (part,) = names.parts(names.in_files(name), model=shape)
        assert part.name == name
        is_projection = name.endswith("_proj.weight")
        assert part.is_whole == (not (own.transposed and is_projection))


@pytest.mark.parametrize(
    ("family", "name", "sizes"),
    [
        ("phi3", QKV, {"q_proj": 32, "k_proj": 16, "v_proj": 16}),
        ("phi3", "model.layers.0.mlp.gate_up_proj.weight", {"gate_proj": 24, "up_proj": 24}),
        (
            "gpt2",
            "transformer.h.0.attn.c_attn.weight",
            {"q_proj": 32, "k_proj": 16, "v_proj": 16},
        ),
    ],
)
def test_a_fused_tensor_has_its_parts_one_after_the_other(
    family: str, name: str, sizes: dict[str, int]
) -> None:
    names = TensorNames(FAMILIES[family])
    rows = sum(sizes.values())
    tensor = torch.arange(rows)[:, None].expand(rows, 32)
    if names.family.transposed:
        tensor = tensor.t()
    shape = tuple(tensor.shape)
    found = {part.name.split(".")[-2]: part for part in names.parts(name, shape, SHAPE)}
    taken = torch.cat([found[one].take(tensor) for one in sizes])
    assert torch.equal(taken[:, 0], torch.arange(rows))
    assert {one: part.shape(shape) for one, part in found.items()} == {
        one: (size, 32) for one, size in sizes.items()
    }
    with pytest.raises(InputError, match=f"must have {rows} outputs"):
        names.parts(name, (rows + 1, rows + 1), SHAPE)


def test_rows_of_queries_and_keys_are_in_the_order_of_the_decoder() -> None:
    """The files rotate channels (0, 2) and (1, 3) of 8, the decoder (0, 4) and (1, 5)."""
    names = TensorNames(FAMILIES["phi3"], turning=4)
    order = torch.tensor([0, 1, 4, 5, 2, 3, 6, 7])
    for kind, heads in (("q", 4), ("k", 2)):
        (part,) = names.parts(f"model.layers.0.self_attn.{kind}_proj.weight", model=SHAPE)
        expected = torch.cat([8 * head + order for head in range(heads)])
        assert part.rows is not None and torch.equal(part.rows, expected)
    queries, keys, values = names.parts(QKV, (64, 32), SHAPE)
    assert queries.rows is not None and queries.rows[:8].tolist() == order.tolist()
    assert keys.rows is not None and keys.rows[:8].tolist() == (32 + order).tolist()
    assert values.rows is not None and values.rows.tolist() == list(range(48, 64))


@pytest.mark.parametrize(
    ("family", "ignored", "read"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", QKV),
        ("gpt2", "transformer.h.0.attn.bias", "transformer.h.0.attn.c_attn.bias"),
        ("gpt2", "transformer.h.0.attn.masked_bias", "transformer.h.0.attn.c_proj.bias"),
    ],
)
def test_buffers_of_old_files_are_ignored(family: str, ignored: str, read: str) -> None:
    names = TensorNames(FAMILIES[family])
    assert names.parts(ignored) == []
    assert len(names.parts(read)) == 1
