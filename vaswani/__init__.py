"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), exactly as published, for Hugging Face.

Importing this package registers the model with transformers' Auto classes, and its pipeline as "vaswani-translation".
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
from transformers.pipelines import PIPELINE_REGISTRY

from .configuration_vaswani import VaswaniConfig
from .modeling_vaswani import VaswaniForSeq2SeqLM, VaswaniModel, VaswaniPreTrainedModel
from .pipeline_vaswani import VaswaniTranslationPipeline

__version__ = "0.1.0"
__all__ = [
    "VaswaniConfig",
    "VaswaniForSeq2SeqLM",
    "VaswaniModel",
    "VaswaniPreTrainedModel",
    "VaswaniTranslationPipeline",
    "__version__",
]

AutoConfig.register("vaswani", VaswaniConfig, exist_ok=True)
AutoModel.register(VaswaniConfig, VaswaniModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForSeq2SeqLM, exist_ok=True)
PIPELINE_REGISTRY.register_pipeline(
    "vaswani-translation", pipeline_class=VaswaniTranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text"
)
