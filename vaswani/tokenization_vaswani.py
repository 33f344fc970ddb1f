"""Section 5.1: one vocabulary shared by source and target, learned by byte-pair encoding from both.

The pieces are bytes, so every Unicode text survives encoding and decoding and nothing is unknown. The result is a plain
fast tokenizer of transformers: `AutoTokenizer` loads it from its folder without this package.
"""

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "</s>"  # ids 0 and 1, as in the authors' code
SMALLEST_VOCABULARY = 2 + 256  # the reserved ids and one piece per byte


def check_encodable(lines: Iterable[str]) -> Iterator[str]:
    """Passes lines on; a lone surrogate, which is no Unicode text, raises ValueError naming its line."""
    for number, line in enumerate(lines, start=1):
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"line {number} holds a lone surrogate, U+{ord(line[error.start]):04X}, at character {error.start}: "
                f"it is not valid Unicode and cannot be tokenized; remove it, or decode the text with errors='replace'"
            ) from None
        yield line


def train_tokenizer(
    lines: Iterable[str],
    vocab_size: int,
    *,
    split_digits: bool = False,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Learns byte-level BPE from source and target lines together.

    Args:
        lines: sentences of both languages, raw text.
        vocab_size: entries wanted, reserved ids included; a small corpus may not have so many pieces.
        split_digits: never merge digits, so that a number unseen in training is still read digit by digit.

    Returns:
        A tokenizer that appends `</s>` to every sentence, keeps literal `</s>` or `<pad>` in a text as text, and gives
        the same vocabulary for the same lines on every run.

    Raises:
        ValueError: for a vocabulary that cannot hold the bytes, no text at all, or a lone surrogate.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: {SMALLEST_VOCABULARY} entries are needed for bytes alone"
        )
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split]) if split_digits else split
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    seen = 0

    def counted() -> Iterator[str]:
        nonlocal seen
        for line in check_encodable(lines):
            seen += bool(line)
            yield line

    tokenizer.train_from_iterator(counted(), trainer=trainer)
    if not seen:
        raise ValueError("there is no text to learn a vocabulary from: every line is empty")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        padding_side="right",
    )
