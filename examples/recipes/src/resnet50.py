"""ResNet-50 v1.5 with DistributedDataParallel on images made up on the GPU: how fast the GPUs are without a data path.

    torchrun --nproc-per-node gpu resnet50.py --batch 256 --precision fp16

Channels last, automatic mixed precision, SGD with momentum. The images stay the same, so that the loss falls.
"""

from __future__ import annotations

import argparse

import loop
import torch
from plain import PlainTask
from torch import nn
from torch.nn import functional

CLASSES = 1000
MULTIPLY_ADDS = 4.09e9
"""Of one image of 224 pixels, forward. Source: docs.pytorch.org, torchvision.models.resnet50, GFLOPS of its weights (it
counts a multiplication with its addition as one)."""


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce, self.reduce_norm = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        # v1.5: the stride is in the 3 × 3 convolution
        self.middle, self.middle_norm = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.expand, self.expand_norm = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.reduce_norm(self.reduce(images)), inplace=True)
        hidden = functional.relu(self.middle_norm(self.middle(hidden)), inplace=True)
        return functional.relu(self.expand_norm(self.expand(hidden)) + self.shortcut(images), inplace=True)


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 * 2**stage
            for block in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(inputs, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Mean loss. `images`: (batch, 3, size, size), `classes`: (batch,)."""
        features = self.blocks(self.stem(images)).mean((2, 3))
        return functional.cross_entropy(self.out(features).float(), classes)


class Images(PlainTask):
    unit = "images"
    clip = None

    def __init__(self, options: argparse.Namespace, processes: loop.Processes) -> None:
        super().__init__(options, processes)
        self.operations = 3 * 2 * MULTIPLY_ADDS if options.image_size == 224 else None
        self.shape = {"model": "resnet50"}
        self.conditions = {
            "model": "resnet50",
            "image_size": options.image_size,
            "parallel": "ddp",
            "data": "synthetic",
        }
        self.learning_rate = options.learning_rate or 0.1 * self.samples / 256
        torch.backends.cudnn.benchmark = True  # the fastest convolutions for this size
        torch.manual_seed(options.seed)
        model = ResNet50().to(memory_format=torch.channels_last)
        if options.compile:
            model.compile()
        self.model = self.replicate(model)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), self.learning_rate, momentum=0.9, weight_decay=5e-5, fused=True
        )
        torch.manual_seed(options.seed + 1 + processes.rank)
        size = options.image_size
        images = torch.randn(options.batch, 3, size, size, device=self.device)
        self.images = images.to(memory_format=torch.channels_last)
        self.classes = torch.randint(CLASSES, (options.batch,), device=self.device)

    def loss(self, first_sample: int, count: int) -> torch.Tensor:
        del first_sample, count  # the same images again
        return self.model(self.images, self.classes)


def main() -> None:
    parser = loop.options(__doc__, batch=256, no_checkpoints=True)
    parser.add_argument("--image-size", type=int, default=224, help="pixels")
    loop.main(parser, Images)


if __name__ == "__main__":
    main()
