import pytest
import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from vaswani import packing_vaswani
from vaswani.cpu import computes_int8
from vaswani.packing_vaswani import bare, logits_of, packed_linears, projection, quantized, relu_of, sum_with


@pytest.fixture
def layers(monkeypatch):
    monkeypatch.setattr(
        packing_vaswani, "SMALLEST", dict.fromkeys(packing_vaswani.SMALLEST, 300)
    )  # the second of these has 320 weights, the first 960
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 8, bias=False))


def packed(layers) -> bool:
    return any("forward" in vars(layer) for layer in layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_the_product_is_the_same(layers, dtype):
    layers, x = layers.to(dtype), torch.randn(5, 3, 24, dtype=dtype)
    expected = layers(x)
    with packed_linears(layers):
        torch.testing.assert_close(layers(x), expected)
        assert packed(layers) == torch.backends.mkldnn.is_available() or dtype == torch.bfloat16
    assert not packed(layers)


@torch.no_grad()
def test_small_ones_are_left_alone(layers, monkeypatch):
    monkeypatch.setattr(packing_vaswani, "SMALLEST", dict.fromkeys(packing_vaswani.SMALLEST, 500))
    with packed_linears(layers):
        assert "forward" not in vars(layers[2])
        assert packed(layers) == torch.backends.mkldnn.is_available()


@torch.no_grad()
def test_blocks_inside_each_other_and_errors(layers):
    with packed_linears(layers), packed_linears(layers):
        pass
    assert not packed(layers)
    with pytest.raises(RuntimeError), packed_linears(layers):
        layers(torch.zeros(1, 3))
    assert not packed(layers)


def test_left_alone_with_gradients_under_autocast_and_in_other_dtypes(layers):
    with packed_linears(layers):
        assert not packed(layers)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), packed_linears(layers):
        assert not packed(layers)
    with torch.no_grad(), packed_linears(layers.double()):
        assert not packed(layers)


@pytest.mark.parametrize("is_cross", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_parts_of_a_layer_in_one_pass(is_cross, bias, monkeypatch):
    monkeypatch.setattr(packing_vaswani, "SMALLEST", dict.fromkeys(packing_vaswani.SMALLEST, 300))
    torch.manual_seed(0)
    attention, x, residual = nn.Module(), torch.randn(5, 3, 24), torch.randn(5, 3, 40)
    attention.is_cross = is_cross
    for name, width in (("q_proj", 16), ("k_proj", 16), ("v_proj", 40)):
        setattr(attention, name, nn.Linear(24, width, bias=bias))
    linear = attention.v_proj

    def results() -> list[torch.Tensor]:
        return [*reversed(projection(attention)(x)), relu_of(linear)(x), sum_with(linear)(residual, x)]

    expected = results()
    assert len(expected) == (4 if is_cross else 5)  # queries come from elsewhere
    with packed_linears(attention):
        assert hasattr(attention, "packed") == torch.backends.mkldnn.is_available()
        torch.testing.assert_close(results(), expected)
        linear.register_forward_hook(lambda module, inputs, output: output * 2)  # a hook of the user's is heard
        assert not torch.equal(results()[0], expected[0])
        torch.testing.assert_close(results()[0], expected[0] * 2)
    assert not hasattr(attention, "packed") and not hasattr(linear, "packed")


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_logits_that_are_filled_up_to_whole_blocks(layers, bias):
    linear, x = nn.Linear(24, 40, bias=bias), torch.randn(5, 3, 24)
    expected = linear(x)
    assert logits_of(linear) is linear
    with packed_linears(linear):
        found = logits_of(linear)(x)
        torch.testing.assert_close(found[..., :40], expected)
        assert found.shape[-1] == (256 if packed([linear]) else 40) and found[..., 40:].isneginf().all()
        linear.register_forward_hook(lambda module, inputs, output: output * 2)
        torch.testing.assert_close(logits_of(linear)(x), expected * 2)
    assert vars(linear).keys() == vars(nn.Linear(1, 1)).keys()


@torch.no_grad()
def test_a_bare_module_is_the_packed_one_and_the_hooked_one(layers):
    linear, x = layers[0], torch.randn(5, 3, 24)
    with packed_linears(layers):
        assert not packed(layers) or bare(linear) is vars(linear)["forward"]
        torch.testing.assert_close(bare(linear)(x), linear(x))
        linear.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        assert bare(linear) is linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_integers_of_8_bits_are_the_nearest(dtype):
    torch.manual_seed(0)
    ties = torch.tensor([[-1.7109375, 0.5703125], [-1.397884488105774, 0.5912621021270752]])  # of lowest and zero point
    usual = torch.randn(5, 3, 24), torch.randn(4, 8).relu() * 1e4, -torch.rand(7) - 3, torch.zeros(2, 2), torch.ones(1)
    for x in (*usual, *ties, *torch.randn(20_000, 2).cumsum(-1)):
        x = x.to(dtype)
        integers, scale, zero = quantized(x)
        assert integers.dtype == torch.uint8 and 0 <= zero <= 255 and integers.shape == x.shape
        assert ((integers.float() - zero) * scale - x.float()).abs().max() <= scale * 0.502
        assert scale <= max(x.max().item(), 0) - min(x.min().item(), 0) or not x.any()
    for damaged in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValueError, match="infinity or NaN"):
            quantized(torch.tensor([1.0, damaged], dtype=dtype))


@pytest.mark.skipif(not computes_int8(), reason="this processor does not multiply 8-bit integers")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_products_of_8_bit_integers(bias, dtype, monkeypatch):
    """Off by the rounding: 1/254 of the largest weight of an output, and 1/508 of the range of x."""
    monkeypatch.setattr(packing_vaswani, "SMALLEST", {torch.int8: 300})
    torch.manual_seed(0)
    attention, x, residual = nn.Module(), torch.randn(5, 3, 24).to(dtype), torch.randn(5, 3, 40).to(dtype)
    attention.is_cross = False
    for name, width in (("q_proj", 16), ("k_proj", 16), ("v_proj", 40)):
        setattr(attention, name, nn.Linear(24, width, bias=bias).to(dtype))
    linear = attention.v_proj
    linear.weight[3] = 0  # no scale

    def results() -> list[torch.Tensor]:
        parts = [*projection(attention)(x), linear(x), relu_of(linear)(x), sum_with(linear)(residual, x)]
        return [*parts, logits_of(linear)(x)[..., :40]]

    expected, before = results(), residual.clone()
    with packed_linears(attention, int8=True):
        found = results()
        assert logits_of(linear)(x).shape[-1] == 256 and logits_of(linear)(x)[..., 40:].isneginf().all()
    assert residual.equal(before)
    assert [part.dtype for part in found] == [dtype] * 6 + [torch.float32]  # logits
    for ours, theirs in zip(found, expected, strict=True):
        assert not ours.equal(theirs)
        assert (ours - theirs).norm() < 0.02 * theirs.norm()
    assert linear(x).equal(expected[3])


@pytest.mark.skipif(not computes_int8(), reason="this processor does not multiply 8-bit integers")
@torch.no_grad()
def test_integers_of_8_bits_only_where_they_gain(layers, monkeypatch):
    monkeypatch.setattr(packing_vaswani, "SMALLEST", {torch.float32: 300, torch.int8: 500})
    x = torch.randn(5, 24)
    hidden = layers[0](x)
    expected = layers[2](hidden)
    with packed_linears(layers, int8=True):
        assert isinstance(layers[0].packed(), packing_vaswani.Int8Product)
        assert 0 < (layers[0](x) - hidden).norm() < 0.02 * hidden.norm()
        assert isinstance(layers[2].packed(), packing_vaswani.Product)
        torch.testing.assert_close(layers[2](hidden), expected)


@torch.no_grad()
def test_models_of_others(monkeypatch):
    monkeypatch.setattr(packing_vaswani, "SMALLEST", dict.fromkeys(packing_vaswani.SMALLEST, 1))
    ones = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 1)
    config = MarianConfig(vocab_size=20, d_model=8, pad_token_id=0, decoder_start_token_id=0, **ones)
    model, source = MarianMTModel(config).eval(), torch.tensor([[4, 5, 0]])
    expected = model(source, decoder_input_ids=source).logits
    with packed_linears(model):
        torch.testing.assert_close(model(source, decoder_input_ids=source).logits, expected)
