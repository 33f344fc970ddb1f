"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), exactly as published, for Hugging Face.

Importing this package registers the model with transformers' Auto classes.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration_vaswani import VaswaniConfig
from .modeling_vaswani import VaswaniForSeq2SeqLM, VaswaniModel, VaswaniPreTrainedModel

__version__ = "0.1.0"
__all__ = ["VaswaniConfig", "VaswaniForSeq2SeqLM", "VaswaniModel", "VaswaniPreTrainedModel", "__version__"]

AutoConfig.register("vaswani", VaswaniConfig, exist_ok=True)
AutoModel.register(VaswaniConfig, VaswaniModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForSeq2SeqLM, exist_ok=True)
