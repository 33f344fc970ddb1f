"""Numbers that a reader of the paper can check by hand, computed by our layers."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM
from vaswani.embedding_vaswani import sinusoids
from vaswani.modeling_vaswani import VaswaniAttention, VaswaniEncoderLayer, eager_attention_forward


@pytest.fixture
def small_layer():
    """d_model = 2, d_ff = 3, one head."""
    return VaswaniEncoderLayer(VaswaniConfig(d_model=2, d_ff=3, num_heads=1), 0).eval()


@pytest.fixture(scope="module")
def base():
    with torch.device("meta"):
        return VaswaniForSeq2SeqLM(VaswaniConfig()).model


def attend(query, key, value, scaling=1.0, mask=None):
    """One head, one sentence: (L, d_k), (S, d_k), (S, d_v) -> (L, d_v) and the weights (L, S)."""
    module = torch.nn.Module().eval()
    q, k, v = (x[None, None] for x in (query, key, value))
    output, weights = eager_attention_forward(module, q, k, v, mask, scaling=scaling)
    return output[0, :, 0], weights[0, 0]


def test_add_and_norm(small_layer):
    """Section 3.1: LayerNorm((2, 0) + (1, 1)) = LayerNorm((3, 1)) = (1, -1)."""
    with torch.no_grad():  # a sub-layer whose output is (1, 1) whatever its input
        small_layer.self_attn.out_proj.weight.zero_()
        small_layer.self_attn.out_proj.bias.fill_(1.0)
    seen = []
    small_layer.self_attn_layer_norm.register_forward_hook(lambda module, args, output: seen.append(output))
    small_layer(torch.tensor([[[2.0, 0.0]]]), None)
    torch.testing.assert_close(seen[0], torch.tensor([[[1.0, -1.0]]]), rtol=0, atol=1e-5)


def test_scores_become_shares_that_blend_the_values():
    """Equation (1): scores (2, 1, 0.5) give the shares (0.63, 0.23, 0.14)."""
    query, key = torch.tensor([[1.0]]), torch.tensor([[2.0], [1.0], [0.5]])
    value = torch.tensor([[100.0, 0.0], [0.0, 100.0], [100.0, 100.0]])
    output, weights = attend(query, key, value)
    torch.testing.assert_close(weights, torch.tensor([[0.63, 0.23, 0.14]]), rtol=0, atol=5e-3)
    torch.testing.assert_close(output, torch.tensor([[63 + 14.0, 23 + 14.0]]), rtol=0, atol=0.5)


def test_scores_are_divided_by_the_root_of_d_k():
    """Equation (1): with d_k = 4, q = (1, 1, 1, 1) and k = (2, 2, 2, 2) the score is 8 / 2 = 4."""
    attention = VaswaniAttention(VaswaniConfig(d_model=4, num_heads=1), 0)
    output, _ = attend(
        torch.ones(1, 4), torch.stack((torch.full((4,), 2.0), torch.zeros(4))), torch.eye(2), scaling=attention.scaling
    )
    expected = math.exp(4) / (math.exp(4) + 1)
    torch.testing.assert_close(output, torch.tensor([[expected, 1 - expected]]))
    assert VaswaniAttention(VaswaniConfig(d_k=16), 0).scaling == 0.25  # of d_k, not of d_model / h


def test_feed_forward(small_layer):
    """Equation (2): x = (1, -1), x W_1 = (1, -1, -2), of which max(0, .) keeps (1, 0, 0), times W_2 = (2, 0)."""
    with torch.no_grad():
        small_layer.fc1.weight.copy_(torch.tensor([[1.0, 0, -1], [0, 1, 1]]).T)
        small_layer.fc2.weight.copy_(torch.tensor([[2.0, 0], [0, 1], [1, 1]]).T)
        small_layer.fc1.bias.zero_()
        small_layer.fc2.bias.zero_()
    small_layer.final_layer_norm = torch.nn.Identity()
    x = torch.tensor([1.0, -1.0])
    assert (small_layer.feed_forward(x) - x).tolist() == [2.0, 0.0]


def test_parameters_of_one_sublayer(base):
    layer = base.decoder.layers[0]
    for attention in (layer.self_attn, layer.encoder_attn):
        weights = [linear.weight.numel() for linear in attention.children()]
        assert weights == 4 * [512 * 512] and sum(weights) == 1_048_576
        assert sum(p.numel() for p in attention.parameters()) == 1_048_576 + 4 * 512
    feed_forward = (*layer.fc1.parameters(), *layer.fc2.parameters())
    assert sum(p.numel() for p in feed_forward) == 2 * 512 * 2048 + 2048 + 512 == 2_099_712


def test_parameters_of_the_embedding(base):
    assert base.shared.weight.numel() == 37_000 * 512 == 18_944_000


def test_positional_encoding_values():
    """Section 3.5, d_model = 512."""
    table = sinusoids(20, 512)
    assert table[0, :4].tolist() == [0, 1, 0, 1]
    assert table[1, 0].item() == pytest.approx(math.sin(1)) == pytest.approx(0.841, abs=5e-4)
    assert table[1, 1].item() == pytest.approx(math.cos(1)) == pytest.approx(0.540, abs=5e-4)
    assert table[10, 128].item() == pytest.approx(0.841, abs=5e-4)  # 10000^(128/512) = 10
    assert table[10, 129].item() == pytest.approx(0.540, abs=5e-4)


def test_wavelengths_run_from_two_pi_to_ten_thousand_two_pi():
    """Section 3.5: a geometric progression; the text's ends just short of 10000 * 2 pi, tensor2tensor's there."""
    for layout, last in (("interleaved", 10000 ** (510 / 512)), ("tensor2tensor", 10000.0)):
        slowest = sinusoids(2, 512, layout)[1, 510 if layout == "interleaved" else 255].item()
        assert math.asin(slowest) == pytest.approx(1 / last)
    blocks = sinusoids(8, 16, "tensor2tensor")
    assert blocks[1, 0].item() == pytest.approx(0.841, abs=5e-4) and blocks[1, 8].item() == pytest.approx(
        0.540, abs=5e-4
    )
    second = 10000 ** (-1 / 7)  # d_model / 2 - 1 = 7 steps
    assert (blocks[3, 1].item(), blocks[3, 9].item()) == pytest.approx((math.sin(3 * second), math.cos(3 * second)))


@pytest.mark.parametrize("k", [1, 7, 30])
def test_a_shifted_position_is_a_linear_function(k):
    """Section 3.5: PE(pos + k) is PE(pos), each (sine, cosine) pair rotated by the angles of PE(k)."""
    table = sinusoids(100, 64)
    sine, cosine = table[k, 0::2], table[k, 1::2]
    rotation = torch.zeros(64, 64, dtype=torch.float64)
    for i in range(32):
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cosine[i], sine[i]], [-sine[i], cosine[i]]])
    torch.testing.assert_close(table[:-k] @ rotation.T, table[k:])


def scores(d_k: int, scaling: float, keys: int = 32, queries: int = 2000) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares of random queries and keys of unit variance, and the queries, which collect gradients."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(queries, d_k, generator=generator, dtype=torch.float64, requires_grad=True)
    key = torch.randn(keys, d_k, generator=generator, dtype=torch.float64)
    _, weights = attend(query, key, torch.eye(keys, dtype=torch.float64), scaling)
    return weights, query


@pytest.mark.parametrize("d_k", [4, 64, 512])
def test_dot_products_grow_with_d_k_and_the_scale_undoes_it(d_k):
    """Footnote 4: q . k has variance d_k, so scaled by 1/sqrt(d_k) it has variance 1."""
    scaling = VaswaniAttention(VaswaniConfig(d_k=d_k, d_v=1), 0).scaling
    for factor, variance in ((1.0, d_k), (scaling, 1.0)):
        logarithms = scores(d_k, factor, keys=512, queries=500)[0].log()
        differences = logarithms[:, 0::2] - logarithms[:, 1::2]  # of two scores: twice the variance
        assert differences.var().item() / 2 == pytest.approx(variance, rel=0.1)


def test_without_the_scale_softmax_saturates_and_its_gradient_collapses():
    """Section 3.2.1, d_k = 512: the largest share averages above 0.9, and the gradient through it all but vanishes."""
    largest, flow = {}, {}
    for scaling in (1.0, 512**-0.5):
        weights, query = scores(512, scaling)
        shares = weights.max(dim=-1).values
        shares.sum().backward()
        largest[scaling] = shares.mean().item()
        flow[scaling] = (query.grad.norm(dim=-1) / scaling).median().item()  # with respect to the scores themselves
    assert largest[1.0] > 0.9 and largest[512**-0.5] < 0.4
    assert flow[1.0] < flow[512**-0.5] / 20


@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_causal_mask_is_exactly_lower_triangular(length):
    model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=30, d_model=16, d_ff=8, num_layers=2, num_heads=2)).eval()
    model.set_attn_implementation("eager")
    ids = torch.arange(2, 2 + length)[None]
    outputs = model(ids, decoder_input_ids=ids, output_attentions=True)
    lower = torch.ones(length, length).tril().bool()
    for weights in outputs.decoder_attentions:
        assert (weights[..., ~lower] == 0).all() and (weights[..., lower] > 0).all()
    for weights in (*outputs.encoder_attentions, *outputs.cross_attentions):
        assert (weights > 0).all()


def test_self_attention_costs_less_than_recurrence_up_to_length_d():
    """Table 1: n^2 d of QK^T against n d^2 of one d x d matrix per position, a projection here, cross at n = d."""
    d = 64
    attention = VaswaniAttention(VaswaniConfig(d_model=d, num_heads=1), 0)
    attention.config._attn_implementation = "eager"
    for n in (32, 64, 128):
        with FlopCounterMode(display=False) as counter:
            attention(torch.randn(1, n, d))
        operations = counter.get_flop_counts()["Global"]
        products = sum(count for op, count in operations.items() if "bmm" in str(op))  # QK^T, and the weights times V
        projections = sum(count for op, count in operations.items() if "addmm" in str(op))  # W^Q, W^K, W^V, W^O
        assert (
            products == 2 * 2 * n * n * d and projections == 4 * 2 * n * d * d
        )  # a multiplication and an addition each
        assert (products / 2 < projections / 4) == (n < d) and (products / 2 == projections / 4) == (n == d)
