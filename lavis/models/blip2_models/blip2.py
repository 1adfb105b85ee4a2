"""The parts of a BLIP-2 model, made from config: vision encoder, Q-Former, language model, tokenizers.

All three networks are Transformers' own. This module adds what LAVIS does differently: the vision encoder has no final
norm (LAVIS keeps it outside, as `ln_vision`, eps 1e-5, float32), and a Q-Former that reads no text has no text branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertTokenizer,
    InstructBlipQFormerConfig,
    InstructBlipQFormerModel,
    InstructBlipVisionConfig,
    InstructBlipVisionModel,
    PreTrainedModel,
)

from lavis.common.errors import ConfigError, MissingFileError, first_sentence, unknown
from lavis.models import fast_llm
from lavis.models.base_model import BaseModel
from lavis.models.blip2_models import adapters
from lavis.models.blip2_models.conv_encoder import ConvEncoder, ConvEncoderConfig
from lavis.models.blip2_models.emac_config import frozen_parts, package_path
from lavis.models.blip2_models.text import load_llm_tokenizer
from lavis.models.decoding import forget_decoding

LN_VISION_EPS = 1e-5  # nn.LayerNorm's default, which LAVIS uses; the blocks of the vision encoder have 1e-6
# EVA-CLIP-g as InstructBLIP has it (the class's default sizes); from this initializer_range random weights can train.
VisionEncoder = InstructBlipVisionModel | ConvEncoder
CONV = "conv"  # the project's own small encoder (`conv_encoder`)
# `custom`: sizes of one's own, all from `vit_config`.
VIT_MODELS = {"eva_clip_g": {"initializer_range": 0.02}, "custom": {"initializer_range": 0.02}}


class Float32LayerNorm(nn.LayerNorm):
    """Layer norm computed in float32 whatever comes in; the result has the input's dtype (LAVIS's `ln_vision`)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of `x`."""
        # The weights, too: on a CPU torch refuses weights of another type beside float32 numbers.
        weight, bias = self.weight.float(), self.bias.float()
        return F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).type_as(x)


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """ConfigError or MissingFileError, naming the config key, if Transformers refuses its value."""
    try:
        yield
    except OSError as error:
        raise MissingFileError(f"model.{key}: {first_sentence(error)}") from error
    # ZeroDivisionError comes of 0 heads, RuntimeError of a negative size (torch's).
    except (
        *(TypeError, ValueError, KeyError, ZeroDivisionError, RuntimeError),
        *(SafetensorError, StrictDataclassError),
    ) as error:
        raise ConfigError(f"model.{key}: {first_sentence(error)}") from error


def init_vision_encoder(
    vit_model: str, img_size: int, sizes: Mapping[str, Any], precision: str
) -> tuple[VisionEncoder, Float32LayerNorm]:
    """The vision transformer without a final norm, or the convolutional encoder (`conv`), and `ln_vision`.

    `sizes` overrides fields of `InstructBlipVisionConfig`, or of `ConvEncoderConfig`. Random weights; checkpoints come
    later.
    """
    if vit_model == CONV:
        with _naming("vit_config"):
            convolutions = ConvEncoder(ConvEncoderConfig(**{**sizes, "image_size": img_size}))
        convolutions.to(getattr(torch, precision))
        return convolutions, Float32LayerNorm(convolutions.config.hidden_size, eps=LN_VISION_EPS)
    if vit_model not in VIT_MODELS:
        raise ConfigError(unknown("model.vit_model", vit_model, (*VIT_MODELS, CONV)))
    with _naming("vit_config"):
        config = InstructBlipVisionConfig(**{**VIT_MODELS[vit_model], **sizes, "image_size": img_size})
    if not isinstance(config.patch_size, int) or img_size % config.patch_size:
        raise ConfigError(f"model.img_size: {img_size} is not a multiple of the patch size {config.patch_size}")
    with _naming("vit_config"):
        encoder = InstructBlipVisionModel(config)
    # LAVIS normalises behind the encoder (`ln_vision`), not in it.
    parts: Any = encoder  # Transformers' types do not allow another class of norm
    parts.post_layernorm = nn.Identity()
    parts.to(getattr(torch, precision))
    return encoder, Float32LayerNorm(config.hidden_size, eps=LN_VISION_EPS)


def init_qformer(
    num_query_token: int, vision_width: int, sizes: Mapping[str, Any], reads_text: bool
) -> tuple[InstructBlipQFormerModel, nn.Parameter]:
    """The Q-Former and its query tokens (1, Q, width); without word embeddings unless it `reads_text`."""
    with _naming("qformer_config"):
        config = InstructBlipQFormerConfig(**{**sizes, "encoder_hidden_size": vision_width})
        qformer = InstructBlipQFormerModel(config)
    if not reads_text:
        parts: Any = qformer  # Transformers' types do not allow None, its code does
        # The queries have feed-forward layers of their own (`*_query`); these are the text's.
        parts.embeddings.word_embeddings = None
        parts.embeddings.position_embeddings = None
        for layer in parts.encoder.layer:
            layer.intermediate = None
            layer.output = None
    # The queries are what the Q-Former reads of an image: as many vectors as the language model gets image tokens.
    # As in LAVIS: normal numbers with BERT's `initializer_range` as their deviation, and learned from there.
    queries = nn.Parameter(torch.zeros(1, num_query_token, config.hidden_size))
    nn.init.normal_(queries, std=config.initializer_range)
    return qformer, queries


class QFormer(nn.Module):
    """A Q-Former that is called as LAVIS's: `qformer.bert(query_embeds=…, encoder_hidden_states=…)`."""

    def __init__(self, qformer: InstructBlipQFormerModel) -> None:
        super().__init__()
        self.qformer = qformer

    def bert(self, input_ids: Tensor | None = None, **inputs: Any) -> Any:
        """Transformers' output: `last_hidden_state` (N, queries and text, width), `pooler_output`."""
        return self.qformer(input_ids, **inputs)


class Blip2Base(BaseModel):
    """LAVIS's base class of BLIP-2 models, for those of third parties; Blip2Emac is put together from its config."""

    @classmethod
    def init_tokenizer(cls, truncation_side: str = "right", name_or_path: str = "bert-base-uncased") -> BertTokenizer:
        """The Q-Former's tokenizer with [DEC] added; MissingFileError if it can be read from nowhere."""
        tokenizer = init_bert_tokenizer(name_or_path)
        tokenizer.truncation_side = truncation_side
        return tokenizer

    @classmethod
    def init_Qformer(  # noqa: N802  (LAVIS's name)
        cls, num_query_token: int, vision_width: int, cross_attention_freq: int = 2, **sizes: Any
    ) -> tuple[QFormer, nn.Parameter]:
        """A Q-Former with random weights, of BERT's size or other `sizes`, and its query tokens (1, Q, width).

        Cross attention to images (N, P, `vision_width`) is in every `cross_attention_freq`-th layer.
        """
        # Every second layer is BLIP-2's choice (Li et al. 2023, arXiv:2301.12597, section 3.1).
        sizes = {"cross_attention_frequency": cross_attention_freq, **sizes}
        qformer, queries = init_qformer(num_query_token, vision_width, sizes, reads_text=True)
        return QFormer(qformer), queries


def disabled_train(self: nn.Module, mode: bool = True) -> nn.Module:
    """In place of a frozen module's `train`, as in LAVIS: it stays in the mode in which it is."""
    return self


def init_bert_tokenizer(name_or_path: str) -> BertTokenizer:
    """The Q-Former's BERT tokenizer with [DEC] added; cuts on the left, as InstructBLIP does."""
    # A case directory or a folder of one's own may hold the vocabulary alone, which `from_pretrained` does not take.
    vocabulary = Path(name_or_path) / "vocab.txt"
    if vocabulary.is_file():
        tokenizer = BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
    else:
        try:
            tokenizer = BertTokenizer.from_pretrained(name_or_path)
        except OSError as error:
            raise MissingFileError(
                f"model.bert_tokenizer: {name_or_path!r} is neither a folder with vocab.txt nor a hub id that can "
                "be read"
            ) from error
    # A game's newest step is the end of the prompt.
    tokenizer.truncation_side = "left"
    tokenizer.add_special_tokens({"bos_token": "[DEC]"})
    return tokenizer


def init_llm(name_or_path: str, sizes: Mapping[str, Any], weights: str, dtype: str, rows: int) -> PreTrainedModel:
    """A causal language model with at least `rows` embedding rows.

    From `sizes` (a Transformers config with its `model_type`) with random weights, or from a folder or hub id.
    `weights` names a state dict (.safetensors or .pth, plain Transformers names) that is loaded on top. ConfigError if
    a folder's files lack weights, or words of the tokenizer.
    """
    torch_dtype: torch.dtype = getattr(torch, dtype)
    if not sizes and not weights:
        if not name_or_path:
            raise ConfigError("model.llm_model is empty: name a folder or hub id, or give model.llm_config")
        with _naming("llm_model"):
            # `trust_remote_code=False`, not left out: Transformers would ask at the terminal, for 15 s, whether to run
            # the folder's own Python code.
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                name_or_path, dtype=torch_dtype, output_loading_info=True, trust_remote_code=False
            )
        llm, report = loaded
        # Transformers warns of weights that the files lack, and leaves them random.
        if missing := sorted(report["missing_keys"]):
            raise ConfigError(
                f"model.llm_model: the files of {name_or_path} lack {len(missing)} weights that its config.json asks "
                f"for ({missing[0]}, …): download or copy the folder again"
            )
        if rows > llm.config.vocab_size + 1:  # one more: [PAD]
            raise ConfigError(
                f"model.llm_tokenizer: it has {rows} tokens, the language model {name_or_path} knows "
                f"{llm.config.vocab_size}: take the tokenizer that belongs to it"
            )
    else:
        with _naming("llm_config" if sizes else "llm_model"):
            config = (
                AutoConfig.for_model(**sizes)
                if sizes
                else AutoConfig.from_pretrained(name_or_path, trust_remote_code=False)
            )
            llm = AutoModelForCausalLM.from_config(config).to(torch_dtype)
        fast_llm.autocast_rotary(llm)
    forget_decoding(llm)
    # Models with attention of their own (BLOOM, CodeGen) would get no causal mask under another name; those that
    # Transformers runs without `sdpa` (Gemma 2) need what neither it nor ours computes, such as capped scores.
    if llm._supports_attention_backend and llm.config._attn_implementation == "sdpa":
        llm.set_attn_implementation(fast_llm.ATTENTION)
    # The tokenizer may add [PAD] behind the vocabulary. Pads are masked, so its embedding needs no good beginning.
    if llm.config.vocab_size < rows:
        llm.resize_token_embeddings(rows, mean_resizing=False)
    # `fast_llm.token_logps` takes logits from the output embeddings' product alone.
    # A scale of 1 changes nothing (Granite has such sizes); a capping of 1 does, and the pass below shows it.
    keys = ("final_logit_softcapping", "logit_scale", "logits_scaling")
    scaled = [k for k in keys if (getattr(llm.config, k, None) or 1) != 1]
    if scaled:
        raise ConfigError(f"the language model scales its logits ({scaled[0]}), which Blip2Emac does not support")
    if not fast_llm.supports(llm) and llm.device.type != "meta":
        key = "llm_config" if sizes else "llm_model"
        if fast_llm.cache_name(llm) is None:  # RWKV: each new token would be read as if nothing stood before it
            raise ConfigError(
                f"model.{key}: a {type(llm).__name__} takes no cache of a prompt that it has read (past_key_values), "
                "from which Blip2Emac writes an answer: take another language model"
            )
        with _naming(key):  # the first forward pass: sizes that do not fit one another show here
            is_plain = _has_plain_head(llm)
        if not is_plain:
            raise ConfigError(
                f"model.{key}: the logits of a {type(llm).__name__} are not the product of its decoder's output and "
                "its output embeddings (another head, or scaled), which Blip2Emac does not support"
            )
    return llm


@torch.no_grad()
def _has_plain_head(llm: PreTrainedModel) -> bool:
    """Whether logits are what the output embeddings make of the decoder's last hidden states, and nothing else.

    Reads two tokens in both ways in which the model is called, so what `llm` cannot do is raised here.
    """
    decoder: Any = llm.get_decoder()
    # Transformers names the whole model of Llama 4, and ModernBERT's output embeddings.
    if decoder is llm or isinstance(decoder, nn.Linear):
        return False
    ids = torch.tensor([[1, 2]], device=llm.device)
    read: list[Tensor] = []
    shown: list[Tensor] = []

    def answer(_: nn.Module, inputs: tuple[Tensor, ...], made: Tensor) -> Tensor:
        # In the head's place: numbers whose scaling or capping shows. The logits of a random model are near 0.
        read.append(inputs[0].float())
        shown.append(torch.linspace(-64, 64, made.shape[-1], device=made.device, dtype=made.dtype).expand_as(made))
        return shown[0]

    end: Any = llm.get_output_embeddings()
    training, hook = llm.training, end.register_forward_hook(answer)
    try:
        logits = llm.eval()(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state.float()
    # As acting reads a prompt: MiniMax takes no cache but its own, and says so.
    embeds, positions = llm.get_input_embeddings()(ids), torch.arange(2, device=llm.device)[None]
    fast_llm.make_runner(llm).prefill(embeds, torch.ones_like(ids), positions, room=1)
    llm.train(training)
    if hidden.shape != read[0].shape or logits.shape != shown[0].shape:
        return False
    return torch.allclose(hidden, read[0], rtol=1e-2, atol=1e-2) and torch.equal(logits.float(), shown[0].float())


def parts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Blip2Emac` that complete `options` describe; random weights for all that no file brings yet."""
    key = "llm_tokenizer" if options["llm_tokenizer"] else "llm_model"
    tokenizer = load_llm_tokenizer(package_path(options[key]), f"model.{key}")
    encoder, ln_vision = init_vision_encoder(
        options["vit_model"], options["img_size"], options["vit_config"], options["vit_precision"]
    )
    # InstructBLIP's Q-Former reads the instruction beside the image (Dai et al. 2023, arXiv:2305.06500). Its word
    # embeddings have a row for each word of BERT and one for [DEC], which the tokenizer adds.
    reads_text = options["qformer_text_input"]
    bert = init_bert_tokenizer(options["bert_tokenizer"]) if reads_text else None
    qformer_sizes = {**options["qformer_config"], **({"vocab_size": len(bert)} if bert else {})}
    qformer, queries = init_qformer(options["num_query_token"], encoder.config.hidden_size, qformer_sizes, reads_text)
    llm = init_llm(
        package_path(options["llm_model"]),
        options["llm_config"],
        options["llm_weights"],
        options["llm_dtype"],
        len(tokenizer),
    )
    if options["adaptor_tuning"]:
        adapters.tune_adaptors(qformer, queries)
    same = (
        "max_txt_len",
        "max_output_txt_len",
        "avg_log_probs",
        "mix_ratio",
        "prompt",
        "low_memory",
        "cut_prompts",
        "kept_prompts_mib",
    )
    return {
        "visual_encoder": encoder,
        "ln_vision": ln_vision,
        "qformer": qformer,
        "query_tokens": queries,
        "llm_model": llm,
        "llm_tokenizer": tokenizer,
        "qformer_tokenizer": bert,
        "frozen": frozen_parts(options),
        "amp": getattr(torch, options["amp"]) if options["amp"] else None,
        **{key: options[key] for key in same},
    }
