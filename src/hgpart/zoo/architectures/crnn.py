"""CRNN (Shi, Bai and Yao, 2015): words in images, by convolutions and LSTMs over columns."""

from __future__ import annotations

from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import named

CLASSES = 37  # ten digits, 26 letters, and the blank of connectionist temporal classification
UNITS = 256


class CRNN(nn.Module):
    """Convolutions, two bidirectional LSTMs over the columns of their maps, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = named(
            conv1=nn.Conv2d(1, 64, 3, padding=1),
            relu1=nn.ReLU(inplace=True),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(64, 128, 3, padding=1),
            relu2=nn.ReLU(inplace=True),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(128, 256, 3, padding=1),
            relu3=nn.ReLU(inplace=True),
            conv4=nn.Conv2d(256, 256, 3, padding=1),
            relu4=nn.ReLU(inplace=True),
            pool4=nn.MaxPool2d((2, 1)),
            conv5=nn.Conv2d(256, 512, 3, padding=1),
            norm5=nn.BatchNorm2d(512),
            relu5=nn.ReLU(inplace=True),
            conv6=nn.Conv2d(512, 512, 3, padding=1),
            norm6=nn.BatchNorm2d(512),
            relu6=nn.ReLU(inplace=True),
            pool6=nn.MaxPool2d((2, 1)),
            conv7=nn.Conv2d(512, 512, 2),
            relu7=nn.ReLU(inplace=True),
        )
        self.recurrent = nn.LSTM(512, UNITS, num_layers=2, bidirectional=True)
        self.classifier = nn.Linear(2 * UNITS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of each class (dimension 1) in each column, of images that are 32 pixels high."""
        columns = self.features(images).squeeze(2).permute(2, 0, 1)
        made, _ = self.recurrent(columns)
        scores: Tensor = self.classifier(made)
        return scores.permute(1, 2, 0)


def crnn() -> nn.Module:
    """CRNN for 32 x 100 grey images: 8,723,749 parameters, scores of 37 classes in 24 columns.

    Widths, kernels and pooling are those of table 1 of the paper, whose windows of 1 x 2 (it names
    widths first) halve the height alone.
    """
    return CRNN()
