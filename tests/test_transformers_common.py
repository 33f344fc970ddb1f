"""transformers' own common tests, ModelTesterMixin and ConfigTester, over our model and, to compare skips, over Marian.

They are no module of the installed package, but its source distribution carries them. To run this file:

    pip download --no-deps --no-binary :all: transformers==5.24.0 -d DIR
    tar xzf DIR/transformers-5.24.0.tar.gz -C DIR
    pip install parameterized
    VASWANI_TRANSFORMERS_TESTS=DIR/transformers-5.24.0 pytest -m slow tests/test_transformers_common.py
"""

import os
import re
import sys
import types
import unittest
import unittest.mock
from pathlib import Path

import pytest

FOLDER = os.environ.get("VASWANI_TRANSFORMERS_TESTS")
if not FOLDER or not (Path(FOLDER) / "tests" / "test_modeling_common.py").is_file():
    pytest.skip("VASWANI_TRANSFORMERS_TESTS is no unpacked transformers source distribution", allow_module_level=True)
pytest.importorskip("parameterized")
pytestmark = pytest.mark.slow

from transformers import MarianConfig, MarianModel, MarianMTModel  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

from vaswani import VaswaniConfig, VaswaniForSeq2SeqLM, VaswaniModel  # noqa: E402


def _package(name: str, **members) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


# The distribution leaves these three modules out: nothing of theirs can run, but the common tests import them.
_package("transformers_tests").__path__ = [str(Path(FOLDER) / "tests")]
_package("transformers_tests.exporters")
_package("transformers_tests.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
_package("transformers_tests.generation")
_package("transformers_tests.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
_package("transformers_tests.utils")
_package(
    "transformers_tests.utils.test_configuration_utils",
    config_common_kwargs={
        "return_dict": False,
        "output_hidden_states": True,
        "dtype": "float16",
        "chunk_size_feed_forward": 5,
        "architectures": ["BertModel"],
        "id2label": {0: "label"},
        "label2id": {"label": "0"},
    },
)
from transformers_tests.generation.test_utils import GenerationTesterMixin  # noqa: E402

with unittest.mock.patch("transformers.utils.direct_transformers_import"):  # it would load the repository's __init__.py
    from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin, ids_tensor  # noqa: E402

# Several common tests look a class up by its name, and skip or do nothing for one that they do not know.
modeling_auto.MODEL_MAPPING_NAMES["vaswani"] = "VaswaniModel"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["vaswani"] = "VaswaniForSeq2SeqLM"


class Inputs:
    """What ModelTesterMixin asks for: a small config and a batch of inputs; the same for both models."""

    batch_size, seq_length, is_training = 13, 7, True
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size = 99, 16, 2, 4, 8
    pad_token_id, eos_token_id, max_position_embeddings = 0, 1, 40

    def __init__(self, config_class):
        self.config_class = config_class

    def get_config(self):
        common = {
            "vocab_size": self.vocab_size,
            "d_model": self.hidden_size,
            "max_position_embeddings": self.max_position_embeddings,
            "pad_token_id": self.pad_token_id,
            "eos_token_id": self.eos_token_id,
            "decoder_start_token_id": self.pad_token_id,
        }
        layers, heads, width = self.num_hidden_layers, self.num_attention_heads, self.intermediate_size
        if self.config_class is VaswaniConfig:
            return VaswaniConfig(num_layers=layers, num_heads=heads, d_ff=width, **common)
        return MarianConfig(
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=width,
            decoder_ffn_dim=width,
            **common,
        )

    def prepare_config_and_inputs_for_common(self):
        source, target = (
            ids_tensor([self.batch_size, self.seq_length], self.vocab_size).clamp(min=2) for _ in range(2)
        )
        source[:, -1] = self.eos_token_id
        ones = source.ne(self.pad_token_id)
        return self.get_config(), {
            "input_ids": source,
            "attention_mask": ones,
            "decoder_input_ids": target,
            "decoder_attention_mask": ones,
        }


class Common(ModelTesterMixin, GenerationTesterMixin):
    __test__ = False  # pytest shall collect only the first of the two below
    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True  # or the test that re-initialises every weight skips itself
    config_class = None

    def setUp(self):
        self.model_tester = Inputs(self.config_class)
        sizes = {"d_model": 16, "vocab_size": 99}
        self.config_tester = ConfigTester(self, config_class=self.config_class, **sizes)

    def test_config(self):
        self.config_tester.run_common_tests()


class TestVaswani(Common, unittest.TestCase):
    __test__ = True
    config_class = VaswaniConfig
    all_model_classes = (VaswaniModel, VaswaniForSeq2SeqLM)


class Marian(Common, unittest.TestCase):  # only its skips are of interest
    config_class = MarianConfig
    all_model_classes = (MarianModel, MarianMTModel)


def skips(case: type[unittest.TestCase], names: list[str]) -> set[tuple[str, str]]:
    """(test, reason) of what skips itself, a test or a part of one, with the models' names taken out of the reason."""
    result = unittest.TestResult()
    unittest.TestSuite(case(name) for name in names).run(result)
    plain = [(getattr(test, "test_case", test), reason) for test, reason in result.skipped]
    model = r"(vaswani\.|transformers\.models\.marian\.)?(modeling_\w+\.)?(Vaswani|Marian)(ForSeq2SeqLM|MTModel|Model)"
    return {(test.id().split(".")[-1], re.sub(model, "Model", reason)) for test, reason in plain}


def test_nothing_is_skipped_that_marian_runs():
    ours = skips(TestVaswani, unittest.TestLoader().getTestCaseNames(TestVaswani))
    theirs = skips(Marian, sorted({name for name, _ in ours}))
    assert len(ours) > 20  # the recording works
    assert ours - theirs == set()
