"""Hugging Face's models of images, by their configurations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hgpart
from hgpart.errors import MissingPackageError, ModelError
from hgpart.run.training.scores import class_scores
from hgpart.zoo import load_model

SMALL = {
    "architectures": ["ViTForImageClassification"],
    "num_hidden_layers": 1,
    "hidden_size": 48,
    "num_attention_heads": 3,
    "intermediate_size": 96,
    "image_size": 16,
    "patch_size": 8,
}


def config(folder: Path, **facts: Any) -> str:
    (folder / "config.json").write_text(json.dumps({**SMALL, **facts}))
    return f"hf:{folder}"


def test_without_transformers_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackageError, match=r"hf:CONFIG needs .*: pip install transformers"):
        load_model(config(tmp_path))


def test_a_configuration_makes_a_model_that_is_divided(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model, shape = load_model(config(tmp_path))
    assert shape == (3, 16, 16)
    images = torch.randn(2, *shape)
    placed = hgpart.place(model, hgpart.partition_model(model, images, k=2))
    assert torch.allclose(placed(images).logits, model(images).logits, atol=1e-5)
    assert class_scores(placed(images), 2).shape == (2, 2)


def test_labels_beside_images_and_a_loss_inside(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    # Without it the forward pass writes it into the configuration, which is refused.
    model, _ = load_model(config(tmp_path, problem_type="single_label_classification"))
    texts = ["pixel_values=3,16,16", "labels=:int64:2"]
    placed = hgpart.place(model, k=2, example=hgpart.example_inputs(model, texts))
    batch = {"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.tensor([0, 1, 1])}
    assert torch.allclose(placed(**batch).loss, model(**batch).loss)


def test_a_model_of_something_else_says_no_shape(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    facts = {"architectures": ["BertModel"], "vocab_size": 50}
    assert load_model(config(tmp_path, **facts), device="meta")[1] is None


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"architectures": None}, "names no class"),
        ({"architectures": ["Nothing"]}, "has no Nothing"),
    ],
)
def test_other_configurations_are_refused(
    facts: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ModelError, match=message):
        load_model(config(tmp_path, **facts))
    with pytest.raises(ModelError, match="can't be read"):
        load_model("hf:nowhere")
