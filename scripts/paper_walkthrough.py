# %%
"""The paper beside the code: "Attention Is All You Need", section by section, with the lines that implement it.

    python scripts/paper_walkthrough.py                       # the whole walk, a quarter of a minute on one core
    python scripts/paper_walkthrough.py --section 3.2 5.3     # parts of it
    python scripts/paper_walkthrough.py --figures FOLDER      # pictures too: positions, learning rate, attention

Every section says in our words what the paper says, quotes the code as it stands in the package, and computes something
that shows it. Each line "holds:" is a check; if one does not hold, the walk says so and ends with exit code 1. The file
is also a notebook of cells (`# %%`: VS Code, Jupytext). Change a line of the model and see what the paper says to that.
"""

import argparse
import builtins
import functools
import inspect
import math
import os
import sys
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM, paper
from vaswani.batching import TokenBatches
from vaswani.cldr_corpus import generate as generate_corpus
from vaswani.dropout_vaswani import VaswaniDropout
from vaswani.embedding_vaswani import VaswaniEmbedding, sinusoids
from vaswani.generation_vaswani import EXTRA_LENGTH, GnmtPenalty, VaswaniGenerationMixin
from vaswani.loss import label_smoothed_cross_entropy
from vaswani.modeling_vaswani import (
    VaswaniAttention,
    VaswaniDecoder,
    VaswaniDecoderLayer,
    VaswaniEncoder,
    VaswaniEncoderLayer,
    VaswaniModel,
    eager_attention_forward,
    shift_right,
)
from vaswani.objective import Objective
from vaswani.optim import adam, learning_rate, set_rate
from vaswani.run_config import UserError, exit_code
from vaswani.search_vaswani import beam_search
from vaswani.tokenization_vaswani import train_tokenizer

NOTEBOOK = hasattr(builtins, "__IPYTHON__")
PAD, EOS = 0, 1
SECTIONS = {}  # number -> (title, function)


def section(number: str, title: str):
    """Makes a function a section, its docstring the text. In a notebook each is a cell and runs at once."""

    def register(function):
        SECTIONS[number] = title, function
        if NOTEBOOK:
            walk(number)
        return function

    return register


def walk(number: str) -> None:
    title, function = SECTIONS[number]
    print(f"\n{'=' * 100}\n{number}  {title}\n{'=' * 100}\n{inspect.cleandoc(function.__doc__)}\n")
    torch.manual_seed(0)
    with torch.no_grad():
        function()


def quote(thing, first: str = "", last: str = "") -> None:
    """Prints the code of a function or class as it stands: all, or the line with `first`, or from there to `last`."""
    lines, number = inspect.getsourcelines(thing)
    missing = len(lines)
    begin = next((i for i, line in enumerate(lines) if first in line), missing)
    behind = [i for i, line in enumerate(lines) if i >= begin and (last or first) in line]
    end = (behind or [missing])[0] if first else missing - 1
    if end == missing:
        raise AssertionError(f"{thing.__qualname__} has the quoted lines, from {first!r} to {(last or first)!r}")
    path = Path(inspect.getsourcefile(inspect.unwrap(thing)))
    print(f"  {path.parent.name}/{path.name}")
    for i in range(begin, end + 1):
        print(f"  {number + i:4} | {lines[i].rstrip()}")
    print()


def holds(claim: str, truth: bool) -> None:
    if not truth:
        raise AssertionError(claim)
    print(f"  holds: {claim}")


def same(claim: str, ours: torch.Tensor, by_hand: torch.Tensor) -> None:
    furthest = float((ours - by_hand).abs().max())
    holds(f"{claim} (to {furthest:.0e})", torch.allclose(ours.double(), by_hand.double(), rtol=1e-4, atol=1e-5))


def grid(weights: torch.Tensor, rows: str, columns: str) -> None:
    """Numbers from 0 to 1 as text: one row for each query, one column for each key, the darker the more."""
    print("       " + " ".join(columns))
    for name, row in zip(rows, weights.tolist(), strict=True):
        print(f"     {name} " + " ".join(".:-=+*#%@"[min(8, int(9 * weight))] for weight in row))


def small_model() -> VaswaniForSeq2SeqLM:
    """A Transformer of two layers, not trained; "eager" attention returns its weights. Biases and gains are random, so
    that no check holds because of a zero or a one."""
    sizes = {
        "vocab_size": 28,
        "d_model": 16,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
        "attn_implementation": "eager",
    }
    model = VaswaniForSeq2SeqLM(VaswaniConfig(**sizes)).eval()
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.uniform_(0.5, 1.5)
    return model


def ids(*words: str) -> torch.Tensor:
    """Letters as token ids, 2 to 27, EOS behind each word, padding behind that: (B, L)."""
    rows = [[ord(letter) - 95 for letter in word] + [EOS] for word in words]
    return torch.tensor([row + [PAD] * (max(map(len, rows)) - len(row)) for row in rows])


def text(tokens: torch.Tensor) -> str:
    """Letters for ids; $ is EOS, _ padding and the start of the decoder."""
    return "".join("_$"[i] if i < 2 else chr(i + 95) for i in tokens.tolist())


# %%
@section("3.1", "Encoder and decoder stacks")
def stacks():
    """Encoder and decoder are stacks of N = 6 equal layers. A sub-layer is attention or feed-forward; around each goes
    a residual connection, and LayerNorm comes after the sum (later models moved it before the sub-layer):

        LayerNorm(x + Sublayer(x)),    everything d_model = 512 wide
    """
    quote(VaswaniEncoderLayer.forward)
    quote(VaswaniDecoderLayer.forward, "attended, _ = self.self_attn", "return")
    model, source, target = small_model(), ids("walk", "the"), ids("paper", "code")

    def layer_norm(x, norm):
        centred = x - x.mean(-1, keepdim=True)
        return norm.weight * centred / (centred.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() + norm.bias

    x, layer = torch.randn(1, 5, 16), model.model.encoder.layers[0]
    after_attention = layer_norm(x + layer.self_attn(x)[0], layer.self_attn_layer_norm)
    feed_forward = layer.fc2(torch.relu(layer.fc1(after_attention)))
    by_hand = layer_norm(after_attention + feed_forward, layer.final_layer_norm)
    same("an encoder layer is two times LayerNorm(x + Sublayer(x))", layer(x, None), by_hand)
    memory, output = model.model.encoder(source).last_hidden_state, model(source, labels=target)
    for name, tensor in (("source ids", source), ("memory, the encoder's output", memory), ("logits", output.logits)):
        print(f"         {name:30} {tuple(tensor.shape)}")
    base = VaswaniConfig()
    sizes = (base.num_layers, base.num_decoder_layers, base.d_model)
    holds(f"the default configuration is the base model: N = {sizes[0]}, d_model = {sizes[2]}", sizes == (6, 6, 512))


# %%
@section("3.2.1", "Scaled dot-product attention")
def scaled_dot_product_attention():
    """A query is compared with all keys; the softmax of the comparisons weights the values:

        Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                                  (1)

    Why the root: of independent components with mean 0 and variance 1, a dot product has variance d_k. Unscaled, wide
    heads would drive the softmax to where one weight is nearly 1 and the gradients nearly 0.
    """
    quote(eager_attention_forward)
    attention = VaswaniAttention(VaswaniConfig(), layer_idx=0).eval()
    q, k, v = torch.randn(3, 64), torch.randn(5, 64), torch.randn(5, 64)
    rows = []
    for query in q:
        scores = [math.exp(float(query @ key) / math.sqrt(64)) for key in k]
        rows.append(sum(score / sum(scores) * value for score, value in zip(scores, v, strict=True)))
    ours, _ = eager_attention_forward(attention, q[None, None], k[None, None], v[None, None], None, attention.scaling)
    same("equation (1), one query at a time", ours[0, :, 0], torch.stack(rows))
    print("\n               variance of q.k     largest of 10 weights   d weight / d score")
    print("          d_k  unscaled  scaled     unscaled  scaled       unscaled  scaled")
    for d_k in (4, 64, 1024):
        scores = (torch.randn(4000, 1, d_k) * torch.randn(4000, 10, d_k)).sum(-1)
        both = scores, scores / math.sqrt(d_k)
        variance = [float(x.var()) for x in both]
        largest = [float(x.softmax(-1).amax(-1).mean()) for x in both]
        slope = [float((x.softmax(-1) * (1 - x.softmax(-1))).mean()) for x in both]
        print(
            "         {:4}  {:8.1f}{:8.2f}     {:8.2f}{:8.2f}       {:8.4f}{:8.4f}".format(
                d_k, *variance, *largest, *slope
            )
        )
        if abs(variance[0] / d_k - 1) > 0.1 or abs(variance[1] - 1) > 0.1:
            raise AssertionError(f"the variance is {d_k}, and scaled it is 1")
    holds("the variance is about d_k, and scaled about 1", True)
    holds("at d_k = 1024 the unscaled softmax passes on a tenth of the gradient or less", slope[0] < slope[1] / 10)


# %%
@section("3.2.2", "Multi-head attention")
def multi_head_attention():
    """Not one attention over 512 dimensions but h = 8 over 64 each, each with its own projections:

        MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O,    head_i = Attention(Q W^Q_i, K W^K_i, V W^V_i)

    With d_k = d_v = d_model / h this costs as much as one wide head. The h matrices W^Q_i stand side by side in one.
    """
    quote(VaswaniAttention.__init__, "self.q_proj", "self.out_proj")
    quote(VaswaniAttention.forward, "attend = ", "return")
    attention = small_model().model.encoder.layers[0].self_attn
    x, (h, d_k), heads = torch.randn(6, 16), (2, 8), []
    for i in range(h):
        own = slice(i * d_k, (i + 1) * d_k)  # rows of a torch Linear are the columns of the paper's W
        q, k, v = (
            x @ linear.weight[own].T + linear.bias[own]
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        heads.append((q @ k.T / math.sqrt(d_k)).softmax(-1) @ v)
    by_hand = torch.cat(heads, -1) @ attention.out_proj.weight.T + attention.out_proj.bias
    same("two heads, one at a time, joined and projected", attention(x[None])[0][0], by_hand)
    with torch.device("meta"):
        sizes = [
            sum(weight.numel() for weight in VaswaniAttention(VaswaniConfig(num_heads=h), 0).parameters())
            for h in (1, 8, 32)
        ]
    holds(f"1, 8 or 32 heads: the same {sizes[0]:,} parameters", len(set(sizes)) == 1)


# %%
@section("3.2.3", "Three uses of attention, and what each may see")
def three_uses():
    """Encoder self-attention sees the whole source. Decoder self-attention sees its own and earlier positions only, so
    that position i depends on outputs before i: all else gets -inf before the softmax. In encoder-decoder attention
    queries come from the decoder, keys and values from the encoder. Padding, which only fills up a batch, is hidden
    from all.
    """
    quote(VaswaniDecoder.forward, "mask = create_causal_mask", "layer(")
    quote(shift_right)
    model, source, target = small_model(), ids("see", "longer"), ids("mask", "no")
    shifted = shift_right(target, model.config)
    seen = model(source, decoder_input_ids=shifted, output_attentions=True)
    real, length = source[0].ne(PAD).float(), target.shape[1]
    for name, weights, queries, keys, expected in (
        ("encoder", seen.encoder_attentions, source[0], source[0], real.expand(source.shape[1], -1)),
        ("decoder", seen.decoder_attentions, shifted[0], shifted[0], torch.ones(length, length).tril()),
        ("encoder-decoder", seen.cross_attentions, shifted[0], source[0], real.expand(length, -1)),
    ):
        visible = (weights[0][0] > 0).float()  # of the first layer and sentence: (heads, queries, keys)
        print(f"\n       {name}: @ where the weight is above 0; $ is EOS, _ padding or the start")
        grid(visible[0], text(queries), text(keys))
        holds(f"{name} attention sees what it should, and no more", bool((visible == expected).all()))
    changed = shifted.clone()
    changed[:, 3] = 9
    later = model(source, decoder_input_ids=changed).logits
    same("another token at position 3 changes nothing before it", later[:, :3], seen.logits[:, :3])
    holds("and does change what follows", not torch.allclose(later[:, 3:], seen.logits[:, 3:]))


# %%
@section("3.3", "Position-wise feed-forward networks")
def feed_forward():
    """Two linear layers with a ReLU in between:

        FFN(x) = max(0, x W_1 + b_1) W_2 + b_2                                             (2)

    The inner width is d_ff = 2048. The weights are the same at every position, others in every layer.
    """
    quote(VaswaniEncoderLayer.feed_forward)
    layer, x = small_model().model.encoder.layers[0], torch.randn(6, 16)
    w1, b1, w2, b2 = layer.fc1.weight.T, layer.fc1.bias, layer.fc2.weight.T, layer.fc2.bias
    ffn = torch.stack([(row @ w1 + b1).clamp(min=0) @ w2 + b2 for row in x])
    same("equation (2), one position at a time", layer.feed_forward(x), layer.final_layer_norm(x + ffn))
    order = torch.randperm(6)
    same("positions reordered: outputs reordered", layer.feed_forward(x[order]), layer.feed_forward(x)[order])


# %%
@section("3.4", "Embeddings and softmax")
def embeddings_and_softmax():
    """One matrix E serves three times: source embedding, target embedding and, transposed, the projection before the
    softmax. Where it embeds it is multiplied by sqrt(d_model):

        x = sqrt(d_model) E[token],    p = softmax(decoder output E^T)
    """
    quote(VaswaniEmbedding.forward)
    quote(VaswaniModel, "self.shared = ")
    model = small_model()
    source, E = ids("share"), model.lm_head.weight
    users = (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head)
    holds("the three are one matrix in memory", len({user.weight.data_ptr() for user in users}) == 1)
    same("embeddings are its rows times sqrt(16)", model.model.encoder.embed_tokens(source), 4 * E[source])
    hidden = model.model(source, decoder_input_ids=source).last_hidden_state
    same("logits are dot products with its rows", model(source, decoder_input_ids=source).logits, hidden @ E.T)
    wide = VaswaniForSeq2SeqLM(VaswaniConfig(num_layers=1, vocab_size=1000))
    size = [float(states.pow(2).mean().sqrt()) for states in (wide.lm_head.weight, wide.lm_head.weight * 512**0.5)]
    print(f"         root mean square of a new matrix {size[0]:.3f}, times sqrt(512) {size[1]:.2f}; of sinusoids 0.71")
    holds("scaled, words are about as large as positions, neither drowns the other", 0.7 < size[1] < 1.3)


# %%
@section("3.5", "Positional encoding")
def positional_encoding():
    """Attention does not know order, so each position has a vector that is added to its embedding. Every pair of
    columns is a point on a circle, the wavelengths a geometric progression from 2 pi to about 10000 x 2 pi:

        PE(pos, 2i) = sin(pos / 10000^(2i/d_model)),    PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model))

    For a fixed offset k, PE(pos + k) is a linear function of PE(pos): each pair is turned by an angle that depends on k
    only.
    """
    quote(sinusoids)
    d, k, table = 16, 7, sinusoids(40, 16)
    angle = [[pos / 10000 ** (2 * (column // 2) / d) for column in range(d)] for pos in range(40)]
    by_hand = [[math.cos(a) if column % 2 else math.sin(a) for column, a in enumerate(row)] for row in angle]
    same("the formula, one entry at a time", table, torch.tensor(by_hand, dtype=torch.float64))
    print("\n       positions 0 to 39 from left to right, columns 0 to 15 downwards")
    grid((table.T + 1) / 2, "0123456789abcdef", "0123456789" * 4)
    turn = torch.zeros(d, d, dtype=torch.float64)
    for i in range(d // 2):
        cos, sin = math.cos(k / 10000 ** (2 * i / d)), math.sin(k / 10000 ** (2 * i / d))
        turn[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cos, -sin], [sin, cos]])
    same(f"one matrix takes every PE(pos) to PE(pos + {k})", table[k:], table[:-k] @ turn)
    encoder, source = small_model().model.encoder, ids("order")
    words, positions = encoder.embed_tokens(source), table[: source.shape[1]].float()
    order = torch.tensor([3, 1, 4, 0, 5, 2])
    bag, shuffled = (encoder(inputs_embeds=x - positions).last_hidden_state for x in (words, words[:, order]))
    same("positions taken away, the encoder's output is that of a bag of words", shuffled, bag[:, order])
    ordered, shuffled = (encoder(inputs_embeds=x).last_hidden_state for x in (words, words[:, order]))
    holds("with them, order matters", not torch.allclose(shuffled, ordered[:, order], atol=0.1))


# %%
@section("4", "Why self-attention (Table 1)")
def why_self_attention():
    """Three costs of a layer over n positions of width d: operations, steps that must wait for each other, and how many
    layers or steps lie between two positions. Self-attention connects all of them in one; it is cheaper than recurrence
    while n < d.
    """
    quote(paper.operations_per_layer)
    heads = ("per layer", "sequential", "path", "n = 30", "n = 512", "n = 5000")
    print(f"         {'layer':30}" + "".join(f"{head:>12}" for head in heads))
    for row in paper.TABLE1:
        numbers = "".join(f"{paper.operations_per_layer(row.layer, n, d=512, r=64):12.1e}" for n in (30, 512, 5000))
        print(f"         {row.layer:30}{row.complexity:>12}{row.sequential:>12}{row.path:>12}{numbers}")
    attention = VaswaniAttention(VaswaniConfig(attn_implementation="eager"), layer_idx=0)
    for n in (30, 60):
        states = torch.randn(1, 8, n, 64)  # h = 8, d_k = 64: d = 512
        with FlopCounterMode(display=False) as counter:
            eager_attention_forward(attention, states, states, states, None, attention.scaling)
        counted, table = counter.get_total_flops(), paper.operations_per_layer("self-attention", n, 512)
        holds(f"n = {n}: {counted:,} operations counted, 4 n^2 d: two products, multiply and add", counted == 4 * table)
    x = torch.randn(1, 30, 512)
    with torch.enable_grad():
        x.requires_grad_()
        attention(x)[0][0, -1].sum().backward()
    holds("one layer: the last position depends on each of the 30", bool((x.grad[0].abs().amax(-1) > 0).all()))


# %%
@section("5.1", "Training data and batching")
def data_and_batching():
    """One byte-pair vocabulary for both languages (about 37,000 units for English-German). Sentences of similar length
    share a batch, about 25,000 source and 25,000 target tokens each. Here: the embedded corpus, 1,000 units, 1,000
    tokens.
    """
    quote(TokenBatches.epoch)
    pairs = generate_corpus(train_pairs=4000, valid_pairs=0, test_pairs=0)["train"]
    tokenizer = train_tokenizer([pair[lang] for pair in pairs for lang in ("en", "de")], 1000)
    for lang in ("en", "de"):
        pieces = tokenizer(pairs[0][lang])["input_ids"]
        print(f"         {lang}: " + "|".join(tokenizer.decode([piece]) for piece in pieces))
        holds("decoded, it is the text again", tokenizer.decode(pieces, skip_special_tokens=True) == pairs[0][lang])
    source, target = (
        torch.tensor([len(pieces) for pieces in tokenizer([pair[lang] for pair in pairs])["input_ids"]]).numpy()
        for lang in ("en", "de")
    )
    batches = TokenBatches(source, target, tokens_per_batch=1000)
    rows = [batch.micro_batches[0] for batch in batches.epoch(0)]
    for batch in rows[:5]:
        lengths = [f"{side[batch].min():2} to {side[batch].max():2}" for side in (source, target)]
        print(
            f"         {len(batch):3} pairs, source {lengths[0]}, target {lengths[1]} long: {target[batch].sum()} target tokens"
        )
    holds("an epoch has every pair once", sorted(i for batch in rows for i in batch) == list(range(len(pairs))))
    mean = target.sum() / len(rows)
    holds(f"a batch has {mean:.0f} target tokens on average", abs(mean / 1000 - 1) < 0.05)
    mixed = [batch.numpy() for batch in torch.randperm(len(pairs)).tensor_split(len(rows))]
    ours, other = (1 - mean * len(x) / sum(len(batch) * target[batch].max() for batch in x) for x in (rows, mixed))
    holds(f"padding of the target: {ours:.1%} by length, {other:.1%} at random", ours < other / 3)


# %%
@section("5.3", "Optimizer")
def optimizer():
    """Adam with beta1 = 0.9, beta2 = 0.98, epsilon = 1e-9. The learning rate rises linearly for warmup_steps = 4000
    updates, then falls with the inverse square root of the step:

        lrate = d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5)                        (3)
    """
    quote(learning_rate)
    quote(adam)
    peak = 512**-0.5 * 4000**-0.5
    for step in (1, 1000, 2000, 4000, 8000, 16_000, 50_000, 100_000):
        rate = learning_rate(step, d_model=512)
        print(f"         step {step:7,}  {rate:.2e}  {'#' * round(60 * rate / peak)}")
    rates = [learning_rate(step, 512) for step in range(1, 20_001)]
    holds(f"the peak is at step 4,000: {peak:.1e}", max(rates) == rates[3999] and math.isclose(rates[3999], peak))
    holds("half of it at 2,000 and 16,000", all(math.isclose(rates[i - 1], peak / 2) for i in (2000, 16_000)))
    weight, m, v = torch.nn.Parameter(torch.randn(5)), torch.zeros(5), torch.zeros(5)
    by_hand, ours = weight.clone(), adam([weight])
    for step in range(1, 6):
        weight.grad = torch.randn(5)
        set_rate(ours, learning_rate(step, 512, warmup_steps=5))
        m, v = 0.9 * m + 0.1 * weight.grad, 0.98 * v + 0.02 * weight.grad**2
        by_hand -= learning_rate(step, 512, 5) * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-9)
        ours.step()
    same("five updates by hand are those of the optimizer", weight, by_hand)


# %%
@section("5.4", "Regularisation")
def regularisation():
    """Residual dropout, P_drop = 0.1: on each sub-layer's output before it is added, and on the sums of embeddings and
    positions. Label smoothing, 0.1: the right token gets 0.9 of the target distribution, the rest is spread. The model
    learns to be less sure, which hurts perplexity and helps BLEU.
    """
    quote(VaswaniEncoder.forward, "x = self.dropout(")
    quote(label_smoothed_cross_entropy, "smoothed = F.cross_entropy")
    dropped = VaswaniDropout(0.1).train()(torch.ones(500_000))
    share, mean = float((dropped == 0).float().mean()), float(dropped.mean())
    holds(f"{share:.3f} of the values are dropped, the mean stays {mean:.3f}", abs(share - 0.1) < 0.01 > abs(mean - 1))
    right, target = torch.tensor([2]), torch.full((1, 5), 0.1 / 5)
    target[0, 2] += 0.9
    for token, probability in enumerate(target[0].tolist()):
        print(f"         token {token}  {probability:.2f}  {'#' * round(60 * probability)}{'  right' * (token == 2)}")
    logits = torch.randn(1, 5)
    loss = label_smoothed_cross_entropy(logits, right, 0.1)
    same("the loss is the cross entropy with that target", loss.smoothed, -(target * logits.log_softmax(-1)).sum())
    with torch.enable_grad():
        best = target.log().requires_grad_()
        label_smoothed_cross_entropy(best, right, 0.1).smoothed.backward()
    same("its gradient vanishes where the model gives 0.92, not 1", best.grad, torch.zeros(1, 5))
    exact, sure = (label_smoothed_cross_entropy(x, right, 0.1) for x in (target.log(), 3 * target.log()))
    print(f"         probability of the right token: {float((-exact.nll).exp()):.3f} {float((-sure.nll).exp()):.3f}")
    print(f"         smoothed loss:                  {float(exact.smoothed):.3f} {float(sure.smoothed):.3f}")
    better, worse = bool(sure.nll < exact.nll), bool(sure.smoothed > exact.smoothed)
    holds("surer has the better perplexity and the worse loss", better and worse)


# %%
@functools.cache
@torch.enable_grad()
def toy() -> VaswaniForSeq2SeqLM:
    """Section 5 in ten lines: one layer learns in 600 updates to spell backwards. Its words are random letters."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 28, "d_model": 64, "d_ff": 128, "num_layers": 1, "num_heads": 4, "dropout": 0.0}
    model = VaswaniForSeq2SeqLM(VaswaniConfig(**sizes, attn_implementation="eager")).train()
    objective, optimizer = Objective(model, epsilon=0.1), adam(model.parameters())
    for step in range(1, 601):
        letters = torch.randint(2, 28, (64, int(torch.randint(3, 9, ()))))
        source, target = (torch.nn.functional.pad(x, (0, 1), value=EOS) for x in (letters, letters.flip(1)))
        loss = objective(source, source.ne(PAD), target)
        optimizer.zero_grad()
        (loss.smoothed / loss.tokens).backward()
        set_rate(optimizer, learning_rate(step, d_model=64, warmup_steps=100, factor=0.5))
        optimizer.step()
        if step in (1, 100, 200, 300, 400, 500, 600):
            print(f"         step {step:3}  perplexity {float((loss.nll / loss.tokens).exp()):6.2f}")
    return model.eval()


def attention_of(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Encoder-decoder attention while words are spelt backwards: (B, layers, heads, T, S)."""
    return torch.stack(toy()(source, labels=target, output_attentions=True).cross_attentions, dim=1)


# %%
@section("6", "Results, at the size of a toy: training, and what attention looks at")
def results():
    """The paper trains on millions of pairs; here everything above comes together in a loop, seconds long. To spell a
    word backwards the decoder must look at the right letter, so its attention can be read, as the paper's figures 3 to
    5 are.
    """
    quote(toy, "objective, optimizer", "optimizer.step()")
    letters = torch.randint(2, 28, (200, 6), generator=torch.Generator().manual_seed(1))
    source, target = (torch.nn.functional.pad(x, (0, 1), value=EOS) for x in (letters, letters.flip(1)))
    output = torch.nn.functional.pad(toy().generate(source), (0, 8))[:, 1:8]
    share = float((output == target).all(1).float().mean())
    holds(f"{share:.0%} of 200 unseen words of six letters are spelt backwards", share > 0.8)
    looked_at = attention_of(source, target).mean((1, 2)).argmax(-1)[:, :6]  # mean of layers and heads
    share = float((looked_at == torch.arange(5, -1, -1)).float().mean())
    holds(f"at {share:.0%} of their letters, attention is greatest where the letter stands in the source", share > 0.8)
    word = "vaswani"
    print(f"\n       {word}: rows are output letters, columns source letters, mean of all heads")
    grid(attention_of(ids(word), ids(word[::-1]))[0].mean((0, 1)), word[::-1] + "$", word + "$")


# %%
@section("6.1", "Machine translation: beam search and length penalty")
def beam_search_and_length_penalty():
    """Beam 4; at most 50 tokens more than the source; hypotheses ranked by log-probability over a penalty (Wu et al.
    2016), since every further token lowers the probability:

        score(Y) = log p(Y) / lp(Y),    lp(Y) = ((5 + |Y|) / 6)^alpha,    alpha = 0.6
    """
    quote(GnmtPenalty.at)
    quote(beam_search, "penalty = ")
    quote(beam_search, "both = ")
    quote(VaswaniGenerationMixin._limits, "return lengths +")
    lengths = torch.tensor([1, 5, 10, 20, 40])
    print("         length  " + "".join(f"{n:7}" for n in lengths.tolist()))
    print("         penalty " + "".join(f"{lp:7.2f}" for lp in GnmtPenalty(0.6).at(lengths).tolist()))
    same("the formula", GnmtPenalty(0.6).at(lengths), torch.tensor([((5 + n) / 6) ** 0.6 for n in lengths.tolist()]))
    short, long = (-4.0, 5), (-4.6, 9)  # (log p, length)
    scores = [[log_p / GnmtPenalty(alpha).at(n) for log_p, n in (short, long)] for alpha in (0.0, 0.6)]
    holds("of -4.0 at 5 tokens and -4.6 at 9, alpha 0 ranks the short one first", scores[0][0] > scores[0][1])
    holds("and alpha 0.6 the long one", scores[1][0] < scores[1][1])
    silent = small_model()
    silent.lm_head.weight[EOS] = 0  # never the likeliest token, so outputs end at their limit
    longest = silent.generate(ids("limit")).shape[1] - 1  # without the start
    holds(f"from 6 source tokens at most 6 + {EXTRA_LENGTH}", longest == 6 + EXTRA_LENGTH == 56)
    model, search = toy(), {"num_beams": 4, "length_penalty": 0.6}
    search |= {"return_dict_in_generate": True, "output_sequences_scores": True}
    for name in ("vaswani", "shazeer", "parmar", "jones", "gomez", "kaiser"):
        best = model.generate(ids(name), **search)
        labels = best.sequences[:, 1:]
        log_p = model(ids(name), labels=labels).logits.log_softmax(-1).gather(-1, labels[..., None]).sum()
        score = log_p / ((5 + labels.shape[1]) / 6) ** 0.6
        same(f"{name:8} {text(labels[0]):10} score {float(score):6.3f}", best.sequences_scores[0], score)


# %%
@section("6.2", "Model variations (Table 3): how large the models are")
def model_variations():
    """Each row changes something of the base model: heads (A), d_k (B), size (C), dropout and smoothing (D), learned
    positions (E). The column of parameters comes out with biases in the attention projections and 40,960 rows in the
    embedding.
    """
    quote(paper.parameters, "attention = ", "return")
    counts, formula = {}, {}
    for row in paper.TABLE3:
        options = {key: value for key, value in (paper.BASE | row.changes).items() if key != "label_smoothing"}
        with torch.device("meta"):  # shapes without memory
            model = VaswaniForSeq2SeqLM(VaswaniConfig(vocab_size=paper.TABLE3_VOCABULARY, **options))
        learned = {"learned_positions": 1024} if options.pop("position_encoding") == "learned" else {}
        del options["dropout"]
        counts[row.name], formula[row.name] = model.num_parameters(), paper.parameters(**options, **learned)
        millions, changes = counts[row.name] / 1e6, ", ".join(f"{key} {value}" for key, value in row.changes.items())
        print(f"         {row.name:20}{row.parameters or '':4} in print {millions:6.1f} million here  {changes}")
    holds("the formula gives the number that each model has", formula == counts)
    printed = {row.name: row.parameters for row in paper.TABLE3 if row.parameters and row.name != "big"}
    holds("in millions, they are those in print", printed == {name: round(counts[name] / 1e6) for name in printed})
    rows = paper.parameters(num_layers=6, d_model=1024, d_ff=4096, num_heads=16, vocab_size=36_000)
    holds("but big: 213 million need some 36,000 rows", round(rows / 1e6) == 213 != round(counts["big"] / 1e6))


# %%
def figures(folder: Path) -> None:
    """Draws the positional encoding, the learning rate and the attention of the toy's heads."""
    from matplotlib.figure import Figure

    from vaswani.plots import attention_heads

    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    figure.colorbar(axes.imshow(sinusoids(100, 128), cmap="RdBu", aspect="auto", interpolation="nearest"))
    axes.set(xlabel="column", ylabel="position", title="Positional encoding, section 3.5")
    figure.savefig(folder / "positional_encoding.png", dpi=130)
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes, steps = figure.subplots(), range(1, 20_001, 20)
    for d_model, warmup in ((512, 4000), (512, 8000), (1024, 4000)):
        rates = [learning_rate(step, d_model, warmup) for step in steps]
        axes.plot(steps, rates, label=f"d_model {d_model}, warmup_steps {warmup:,}")
    axes.set(xlabel="step (optimizer updates)", ylabel="learning rate", title="Learning rate, section 5.3")
    axes.legend(frameon=False)
    figure.savefig(folder / "learning_rate.png", dpi=130)
    word = "vaswani"
    with torch.no_grad():
        weights = attention_of(ids(word), ids(word[::-1]))[0].numpy()
    title = "Encoder-decoder attention, spelling backwards"
    attention_heads(weights, [*word, "$"], [*word[::-1], "$"], folder / "attention.png", title)
    print(f"\nfigures: {folder}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", nargs="+", default=[""], help="which, with all below: 3.2 is 3.2.1 to 3.2.3")
    parser.add_argument("--figures", type=Path, help="a folder for pictures")
    options, broken = parser.parse_args(argv), []

    def run() -> None:
        chosen = []
        for wanted in options.section:
            found = [number for number in SECTIONS if not wanted or f"{number}.".startswith(f"{wanted}.")]
            if not found:
                raise UserError(f"there is no section {wanted} in the walk: choose from {', '.join(SECTIONS)}")
            chosen += found
        torch.set_num_threads(1)  # models this small lose time on more
        for number in SECTIONS:
            if number in chosen:
                try:
                    walk(number)
                except AssertionError as error:  # the others may hold, and show what is broken
                    print(f"  DOES NOT HOLD: {error}")
                    broken.append(number)
        if options.figures:
            figures(options.figures)
        print("\ndoes not hold: section " + ", ".join(broken) if broken else "\neverything holds")

    try:
        return exit_code(run) or int(bool(broken))
    except BrokenPipeError:  # whoever read us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__" and not NOTEBOOK:
    sys.exit(main())
