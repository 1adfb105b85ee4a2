"""A small convolutional vision encoder that says which types of things it sees, in the place of a vision transformer.

A vision transformer learns from nothing slowly; convolutions know from the start that an object looks alike wherever
it is. This encoder (`model.vit_model: conv`) has the transformer's interface: one feature vector for each patch of 16
pixels, behind a first one for the whole image. Its features are its findings: value k is near 1 if the patch shows
class k.

    image (N, 3, S, S) -> stem, stride 4 -> two halvings, with residual 3 x 3 convolutions between -> scores (N, D, P)
    feature k = sigmoid(score k - score 0), of the whole image the largest of all patches -> (N, 1 + P, D)

Class 0 is "nothing", so feature 0 is always 1/2: a norm behind the encoder (`ln_vision`) must not blow up what is left
of an image in which there is nothing.

Shapes: N images, S their side (a multiple of 16), P = (S / 16)² patches in rows, D classes (`hidden_size`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from transformers.modeling_outputs import BaseModelOutput

from lavis.common.errors import ConfigError

PATCH = 16  # pixels


class ConvEncoderConfig:
    """Sizes: `channels` and `depths` (residual convolutions) at strides 4, 8 and 16; `hidden_size` classes.

    `batch_norm` is for training from random weights; `ConvEncoder.folded` puts it into the convolutions afterwards.
    """

    def __init__(
        self,
        image_size: int = 224,
        hidden_size: int = 59,
        channels: Sequence[int] = (48, 128, 192),
        depths: Sequence[int] = (1, 1, 3),
        patch_size: int = PATCH,
        batch_norm: bool = False,
    ) -> None:
        if patch_size != PATCH or image_size % PATCH:
            raise ConfigError(
                f"model.vit_config: a conv encoder has patches of {PATCH} pixels, not {patch_size}, and images of "
                f"whole patches, not of {image_size} pixels"
            )
        if len(channels) != 3 or len(depths) != 3 or min(*channels, hidden_size) < 1 or min(depths) < 0:
            raise ConfigError("model.vit_config: a conv encoder has three `channels` and three `depths`, none negative")
        self.image_size, self.patch_size, self.hidden_size = image_size, patch_size, hidden_size
        self.channels, self.depths, self.batch_norm = tuple(channels), tuple(depths), batch_norm
        self.num_hidden_layers = 3 + sum(depths)


class ConvEncoder(nn.Module):
    """The encoder; `last_hidden_state` is (N, 1 + P, D)."""

    def __init__(self, config: ConvEncoderConfig) -> None:
        super().__init__()
        self.config = config
        first, second, third = config.channels
        norm = config.batch_norm
        # 7 pixels wide, 4 apart: windows overlap, so that no edge falls between two of them. (N, C, S / 4, S / 4)
        self.stem = _convolution(3, first, 4, norm, side=7)
        stages: list[nn.Module] = [_Residual(first, norm) for _ in range(config.depths[0])]
        # Then (N, C', S / 8, S / 8), and (N, C'', S / 16, S / 16): one place for each patch.
        stages += [_convolution(first, second, 2, norm), *(_Residual(second, norm) for _ in range(config.depths[1]))]
        stages += [_convolution(second, third, 2, norm), *(_Residual(third, norm) for _ in range(config.depths[2]))]
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(third, config.hidden_size)  # (`head` would be EVA-CLIP's, which is left out)

    def folded(self) -> ConvEncoder:
        """The same function without batch norm, whose stored means and deviations become part of the convolutions."""
        sizes = {name: getattr(self.config, name) for name in ("image_size", "hidden_size", "channels", "depths")}
        other = ConvEncoder(ConvEncoderConfig(**sizes)).to(self.dtype)
        for block, theirs in zip(_convolutions(other), _convolutions(self), strict=True):
            convolution = theirs[0]
            if self.config.batch_norm:
                # W' = W g / sqrt(var + eps) for each output channel, with g the norm's weight; its mean goes into the
                # bias. On copies: this encoder stays as it is.
                convolution = fuse_conv_bn_eval(copy.deepcopy(theirs[0]).eval(), copy.deepcopy(theirs[1]).eval())
            block[0].load_state_dict(convolution.state_dict())
        other.classifier.load_state_dict(self.classifier.state_dict())
        return other.eval()

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype

    def scores(self, pixel_values: Tensor) -> Tensor:
        """Scores of the classes in each patch, (N, D, P), of normalised images (N, 3, S, S)."""
        grid = self.stages(self.stem(pixel_values.contiguous(memory_format=torch.channels_last)))  # (N, C, side, side)
        return self.classifier(grid.flatten(2).transpose(1, 2)).transpose(1, 2)

    def forward(self, pixel_values: Tensor, **_: Any) -> BaseModelOutput:
        """Features of normalised images (N, 3, S, S)."""
        scores = self.scores(pixel_values)
        # sigmoid(a - b) is the softmax over class k and "nothing" alone: several classes may share a patch.
        found = torch.sigmoid(scores - scores[:, :1]).transpose(1, 2)  # (N, P, D)
        # The largest of all patches and not their mean: a thing covers few patches, whatever the size of the image.
        return BaseModelOutput(last_hidden_state=torch.cat([found.amax(1, keepdim=True), found], dim=1))


class _Residual(nn.Module):
    """x + convolution(x)."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.convolution = _convolution(width, width, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convolution(x)


def _convolution(inputs: int, outputs: int, stride: int, norm: bool, side: int = 3) -> nn.Sequential:
    """Convolution, batch norm if wanted, ReLU; channels last, in which convolutions are fastest on CPUs."""
    convolution = nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=not norm)
    between = [nn.BatchNorm2d(outputs)] if norm else []
    made: Any = nn.Sequential(convolution, *between, nn.ReLU(inplace=True))
    return made.to(memory_format=torch.channels_last)  # a keyword that torch's own types do not have


def _convolutions(encoder: ConvEncoder) -> list[Any]:
    return [encoder.stem, *(stage.convolution if isinstance(stage, _Residual) else stage for stage in encoder.stages)]
