"""Tables 1 to 4 of "Attention Is All You Need" (arXiv 1706.03762v7) as data, and the arithmetic behind their columns.

Numbers are the paper's own, whatever we measure; what it leaves unclear is said beside it.
"""

from dataclasses import dataclass, field


# -------------------------------------------------------------------------------------------------------- Table 1, sec. 4
@dataclass(frozen=True)
class LayerCost:
    """Cost of one layer over n positions of width d; k: kernel size, r: neighbourhood of restricted self-attention."""

    layer: str
    complexity: str
    sequential: str
    path: str  # maximum path length between any two positions


TABLE1 = (
    LayerCost("self-attention", "O(n^2 d)", "O(1)", "O(1)"),
    LayerCost("recurrent", "O(n d^2)", "O(n)", "O(n)"),
    LayerCost("convolutional", "O(k n d^2)", "O(1)", "O(log_k n)"),
    LayerCost("self-attention (restricted)", "O(r n d)", "O(1)", "O(n/r)"),
)


def operations_per_layer(layer: str, n: int, d: int, k: int = 3, r: int = 1) -> int:
    """Table 1's complexity column as a number: n^2 d against n d^2 cross at n = d."""
    return {
        "self-attention": n * n * d,
        "recurrent": n * d * d,
        "convolutional": k * n * d * d,
        "self-attention (restricted)": r * n * d,
    }[layer]


# ------------------------------------------------------------------------------------------------------ Table 2, sec. 6.1
@dataclass(frozen=True)
class Translation:
    """newstest2014 BLEU and training cost in FLOPs; None where the paper's cell is empty."""

    model: str
    bleu_en_de: float | None
    bleu_en_fr: float | None
    flops_en_de: float | None = None
    flops_en_fr: float | None = None
    ensemble: bool = False


TABLE2 = (
    Translation("ByteNet", 23.75, None),
    Translation("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    Translation("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    Translation("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    Translation("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    Translation("Deep-Att + PosUnk ensemble", None, 40.4, None, 8.0e20, ensemble=True),
    Translation("GNMT + RL ensemble", 26.30, 41.16, 1.8e20, 1.1e21, ensemble=True),
    Translation("ConvS2S ensemble", 26.36, 41.29, 7.7e19, 1.2e21, ensemble=True),
    Translation("Transformer (base)", 27.3, 38.1, 3.3e18, 3.3e18),
    Translation("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
)

EN_FR_BIG = {
    "abstract and Table 2, arXiv v7": 41.8,
    "section 6.1, arXiv v7": 41.0,
    "abstract, Table 2 and text, NeurIPS 2017": 41.0,
    "abstract, submission": 41.1,
}
"""The paper disagrees with itself on EN-FR: 41.8 is the target, 41.0 the documented alternative."""

SUSTAINED_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
"""Single precision, the footnote of section 6.1."""


def hardware_flops(hours: float, gpus: int = 8, gpu: str = "P100") -> float:
    """Table 2's training cost: time x number of GPUs x sustained FLOPS. 12 hours on 8 P100 are 3.3e18. This is what the
    machines could have computed in that time, 3.5 (base) and 2.4 (big) times what the model needs: see `model_flops`."""
    return hours * 3600 * gpus * SUSTAINED_FLOPS[gpu]


PEAK_FLOPS = {"V100": 125e12, "A100": 312e12, "H100": 989e12, "H200": 989e12}
"""Dense half precision (bfloat16, the V100 float16), as their makers state: of today's machines, to plan with."""

TOKENS_PER_EPOCH = {"de": 1.35e8, "fr": 1.33e9}
"""Target tokens of WMT14 in pieces, by target language; inferred from the logs of fairseq's runs."""


# ------------------------------------------------------------------------------------------------------ Table 3, sec. 6.2
@dataclass(frozen=True)
class Variation:
    """A row: what differs from the base model, and newstest2013 results without checkpoint averaging.

    ppl is per word-piece, unsmoothed, EOS counted. `parameters` is in millions, as printed; None where the cell is empty.
    """

    name: str  # of its file in configs/table3
    group: str
    ppl: float
    bleu: float
    changes: dict = field(default_factory=dict)  # keys of the configs
    parameters: int | None = None
    steps: int = 100_000


BASE = {
    "num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64, "dropout": 0.1,
    "label_smoothing": 0.1, "position_encoding": "interleaved",
}  # fmt: skip

TABLE3 = (
    Variation("base", "base", 4.92, 25.8, {}, 65),
    Variation("a_heads_1", "A", 5.29, 24.9, {"num_heads": 1, "d_k": 512, "d_v": 512}),
    Variation("a_heads_4", "A", 5.00, 25.5, {"num_heads": 4, "d_k": 128, "d_v": 128}),
    Variation("a_heads_16", "A", 4.91, 25.8, {"num_heads": 16, "d_k": 32, "d_v": 32}),
    Variation("a_heads_32", "A", 5.01, 25.4, {"num_heads": 32, "d_k": 16, "d_v": 16}),
    Variation("b_d_k_16", "B", 5.16, 25.1, {"d_k": 16}, 58),
    Variation("b_d_k_32", "B", 5.01, 25.4, {"d_k": 32}, 60),
    Variation("c_layers_2", "C", 6.11, 23.7, {"num_layers": 2}, 36),
    Variation("c_layers_4", "C", 5.19, 25.3, {"num_layers": 4}, 50),
    Variation("c_layers_8", "C", 4.88, 25.5, {"num_layers": 8}, 80),
    Variation("c_d_model_256", "C", 5.75, 24.5, {"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    Variation("c_d_model_1024", "C", 4.66, 26.0, {"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    Variation("c_d_ff_1024", "C", 5.12, 25.4, {"d_ff": 1024}, 53),
    Variation("c_d_ff_4096", "C", 4.75, 26.2, {"d_ff": 4096}, 90),
    Variation("d_dropout_0.0", "D", 5.77, 24.6, {"dropout": 0.0}),
    Variation("d_dropout_0.2", "D", 4.95, 25.5, {"dropout": 0.2}),
    Variation("d_smoothing_0.0", "D", 4.67, 25.3, {"label_smoothing": 0.0}),
    Variation("d_smoothing_0.2", "D", 5.47, 25.7, {"label_smoothing": 0.2}),
    Variation("e_learned_positions", "E", 4.92, 25.7, {"position_encoding": "learned"}),
    Variation(
        "big", "big", 4.33, 26.4,
        {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 213, steps=300_000,
    ),
)  # fmt: skip

TABLE3_VOCABULARY = 40_960
"""Rows of the embedding matrix behind the parameter column: hard-coded in the authors' code for their BPE data, whose
vocabulary has about 37,000 entries. With it, and with biases in the attention projections, every base-derived count comes
out as printed. The big row does not: it has 218.3 million then, and 213 needs about 36,000 rows."""


def parameters(
    *,
    vocab_size: int = TABLE3_VOCABULARY,
    num_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    num_heads: int = 8,
    d_k: int = 64,
    d_v: int = 64,
    attention_bias: bool = True,
    learned_positions: int = 0,
    tied: bool = True,
) -> int:
    """Weights and biases of the Transformer, from its sizes alone. `learned_positions`: rows of each of two tables."""
    attention = 2 * num_heads * (d_k + d_v) * d_model
    if attention_bias:
        attention += num_heads * (2 * d_k + d_v) + d_model
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    encoder_layer, decoder_layer = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    embeddings = (1 if tied else 3) * vocab_size * d_model + 2 * learned_positions * d_model
    return embeddings + num_layers * (encoder_layer + decoder_layer)


def model_flops(
    *,
    vocab_size: int = 37_000,
    num_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    num_heads: int = 8,
    d_k: int = 64,
    d_v: int = 64,
    length: float = 30,
) -> float:
    """FLOPs of training on one source and one target token: 3 x forward, 2 for each multiplication and addition.

    `length` is the mean sentence length, for the attention scores (about 1 %). Base: 381e6; big: 1291e6.
    """
    attention = 2 * d_model * num_heads * (d_k + d_v)
    keys_and_values = d_model * num_heads * (d_k + d_v)
    feed_forward = 2 * d_model * d_ff
    source = num_layers * (attention + feed_forward + keys_and_values)  # the memory is projected once per source token
    target = num_layers * (attention + attention - keys_and_values + feed_forward) + vocab_size * d_model
    scores = 3 * num_layers * 2 * length * num_heads * (d_k + d_v)
    return 3 * (2 * (source + target) + scores)


# ------------------------------------------------------------------------------------------------------ Table 4, sec. 6.3
@dataclass(frozen=True)
class Parser:
    """English constituency parsing, F1 on section 23 of the Wall Street Journal."""

    parser: str
    training: str
    f1: float


TABLE4 = (
    Parser("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    Parser("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    Parser("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    Parser("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    Parser("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    Parser("Zhu et al. (2013)", "semi-supervised", 91.3),
    Parser("Huang & Harper (2009)", "semi-supervised", 91.3),
    Parser("McClosky et al. (2006)", "semi-supervised", 92.1),
    Parser("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    Parser("Transformer (4 layers)", "semi-supervised", 92.7),
    Parser("Luong et al. (2015)", "multi-task", 93.0),
    Parser("Dyer et al. (2016)", "generative", 93.3),
)
