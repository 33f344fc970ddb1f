"""The paper's equations a second time, in float64, sentence by sentence and head by head, with no code of ours.

`transformer` takes the weights as a dict under the names of the model's state dict; all else is written from section 3.
"""

import math

import pytest
import torch
from torch import Tensor

CONFIGS = {
    "paper": {},
    "tensor2tensor": {"position_encoding": "tensor2tensor"},
    "learned": {"position_encoding": "learned"},
    "d_k and d_v": {"d_k": 3, "d_v": 7, "num_heads": 3},
    "no biases": {"attention_bias": False},
    "untied, eps, depth": {"tie_word_embeddings": False, "layer_norm_eps": 1e-2, "num_decoder_layers": 1},
}


# -------------------------------------------------------------------------------------------------- the equations
def softmax(scores: list[Tensor]) -> list[Tensor]:
    largest = max(score.item() for score in scores)
    powers = [(score - largest).exp() for score in scores]
    return [power / sum(powers) for power in powers]


def linear(w: dict, name: str, x: Tensor) -> Tensor:
    """x W + b; the stored matrix is W transposed."""
    y = torch.einsum("i,oi->o", x, w[f"{name}.weight"])
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(w: dict, name: str, x: Tensor, eps: float) -> Tensor:
    mean = sum(x) / len(x)
    variance = sum((x - mean) ** 2) / len(x)
    return (x - mean) / (variance + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def multi_head(w: dict, name: str, h: int, queries: list, memory: list, causal: bool) -> list[Tensor]:
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, each head softmax(q k^T / sqrt(d_k)) V."""
    outputs = []
    for position, x in enumerate(queries):
        visible = memory[: position + 1] if causal else memory
        q, heads = linear(w, f"{name}.q_proj", x).chunk(h), []
        keys = [linear(w, f"{name}.k_proj", y).chunk(h) for y in visible]
        values = [linear(w, f"{name}.v_proj", y).chunk(h) for y in visible]
        for i in range(h):
            weights = softmax([torch.dot(q[i], key[i]) / math.sqrt(len(q[i])) for key in keys])
            heads.append(sum(weight * value[i] for weight, value in zip(weights, values, strict=True)))
        outputs.append(linear(w, f"{name}.out_proj", torch.cat(heads)))
    return outputs


def position(w: dict, stack: str, pos: int, d: int, encoding: str) -> Tensor:
    if encoding == "learned":
        return w[f"model.{stack}.embed_positions.weight"][pos]
    pe = torch.zeros(d, dtype=torch.float64)
    for i in range(d // 2):
        if encoding == "interleaved":
            angle, sine, cosine = pos / 10000 ** (2 * i / d), 2 * i, 2 * i + 1
        else:
            angle, sine, cosine = pos / 10000 ** (i / (d / 2 - 1)), i, d // 2 + i
        pe[sine], pe[cosine] = math.sin(angle), math.cos(angle)
    return pe


def embed(w: dict, stack: str, ids: list[int], encoding: str) -> list[Tensor]:
    matrix = w[f"model.{stack}.embed_tokens.weight"]
    d = matrix.shape[1]
    return [
        (torch.zeros(d, dtype=torch.float64) if token == 0 else matrix[token] * math.sqrt(d))
        + position(w, stack, pos, d, encoding)
        for pos, token in enumerate(ids)
    ]


def layer(w: dict, name: str, h: int, eps: float, x: list, memory: list | None) -> list[Tensor]:
    """Each sub-layer: LayerNorm(x + Sublayer(x)). With a memory it is a decoder layer."""
    decoder = memory is not None
    y = multi_head(w, f"{name}.self_attn", h, x, x, causal=decoder)
    x = [layer_norm(w, f"{name}.self_attn_layer_norm", a + b, eps) for a, b in zip(x, y, strict=True)]
    if decoder:
        y = multi_head(w, f"{name}.encoder_attn", h, x, memory, causal=False)
        x = [layer_norm(w, f"{name}.encoder_attn_layer_norm", a + b, eps) for a, b in zip(x, y, strict=True)]
    inner = [linear(w, f"{name}.fc1", a) for a in x]
    y = [linear(w, f"{name}.fc2", torch.where(a > 0, a, torch.zeros_like(a))) for a in inner]
    return [layer_norm(w, f"{name}.final_layer_norm", a + b, eps) for a, b in zip(x, y, strict=True)]


def transformer(w: dict, config, source: list[int], target: list[int]) -> Tensor:
    """Logits (T, V) of one sentence pair without padding; the target is already shifted right."""
    h, eps, encoding = config.num_heads, config.layer_norm_eps, config.position_encoding
    memory = embed(w, "encoder", source, encoding)
    for i in range(config.num_layers):
        memory = layer(w, f"model.encoder.layers.{i}", h, eps, memory, None)
    x = embed(w, "decoder", target, encoding)
    for i in range(config.num_decoder_layers):
        x = layer(w, f"model.decoder.layers.{i}", h, eps, x, memory)
    return torch.stack([torch.einsum("d,vd->v", y, w["lm_head.weight"]) for y in x])


def cross_entropy(logits: list[Tensor], labels: list[list[int]]) -> Tensor:
    terms = []
    for sentence, tokens in zip(logits, labels, strict=True):
        for scores, token in zip(sentence, tokens, strict=True):
            terms.append(-softmax(list(scores))[token].log())
    return sum(terms) / len(terms)


# ------------------------------------------------------------------------------------------------------ the batch
SOURCES, LABELS = [[5, 9, 3, 12, 1], [7, 1], [4, 4, 11, 1]], [[6, 8, 1], [2, 10, 3, 5, 1], [9, 1]]


def padded(rows: list[list[int]], filler: int) -> torch.LongTensor:
    return torch.tensor([row + [filler] * (max(map(len, rows)) - len(row)) for row in rows])


def reference_weights(model, requires_grad: bool = False) -> dict[str, Tensor]:
    """Float64 copies; a matrix with several names stays one tensor, so that its gradients add up."""
    copies = {id(p): p.detach().double().clone().requires_grad_(requires_grad) for p in model.parameters()}
    return {name: copies[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}


def reference_logits(model, weights: dict[str, Tensor]) -> list[Tensor]:
    targets = [[0, *labels[:-1]] for labels in LABELS]
    return [transformer(weights, model.config, *pair) for pair in zip(SOURCES, targets, strict=True)]


def our_loss(model) -> Tensor:
    """Of our logits, in their own type: transformers' loss functions compute in float32."""
    logits = model(padded(SOURCES, 0), labels=padded(LABELS, -100)).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), padded(LABELS, -100).flatten())


def small(tiny_model, case: str, implementation: str, dtype: torch.dtype):
    options = {"vocab_size": 13, "d_model": 12, "d_ff": 10, "num_heads": 2, "max_position_embeddings": 8}
    return tiny_model(**options | CONFIGS[case], attn_implementation=implementation).to(dtype)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("case", CONFIGS)
def test_logits_equal_the_equations(tiny_model, case, dtype, tolerance, implementation):
    model = small(tiny_model, case, implementation, dtype)
    logits = model(padded(SOURCES, 0), labels=padded(LABELS, -100)).logits
    for ours, reference in zip(logits, reference_logits(model, reference_weights(model)), strict=True):
        torch.testing.assert_close(ours[: len(reference)].double(), reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-4)])
@pytest.mark.parametrize("case", CONFIGS)
def test_gradients_equal_the_equations(tiny_model, case, dtype, tolerance, implementation):
    model = small(tiny_model, case, implementation, dtype)
    loss = our_loss(model)
    loss.backward()
    weights = reference_weights(model, requires_grad=True)
    reference = cross_entropy(reference_logits(model, weights), LABELS)
    reference.backward()
    torch.testing.assert_close(loss.double(), reference, rtol=tolerance, atol=tolerance)
    for name, parameter in model.named_parameters():
        ours, theirs = parameter.grad.double(), weights[name].grad
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_gradients_equal_finite_differences(tiny_model, implementation):
    """No differentiation by anyone: the loss is moved a little along random directions, every parameter in each."""
    model = small(tiny_model, "paper", implementation, torch.float64)
    our_loss(model).backward()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        moved = []
        with torch.no_grad():
            for step in (1e-5, -2e-5):
                parameter += step * direction
                moved.append(our_loss(model).item())
            parameter += 1e-5 * direction
        slope = (parameter.grad * direction).sum().item()
        assert (moved[0] - moved[1]) / 2e-5 == pytest.approx(slope, rel=1e-6, abs=1e-8), name
