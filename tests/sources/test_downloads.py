import re
from pathlib import Path

import pytest

from tests.packages import timm, torchvision
from vitconvert.errors import SourceError
from vitconvert.sources.references import address, collections, publishes_sha256_in_name
from vitconvert.sources.web import file_name, require_https


def test_torchvision_addresses_are_those_of_torchvision() -> None:
    expected = {}
    for name in torchvision.models.list_models(module=torchvision.models, include="vit_*"):
        weights = torchvision.models.get_model_weights(name)
        expected[name] = weights.DEFAULT.url
        expected |= {f"{name}.{entry.name}": entry.url for entry in weights}
    assert len(expected) == 15
    collection = collections()["torchvision"]
    assert {name: address("torchvision", name) for name in collection.files} == expected


def test_dino_addresses_are_among_those_that_timm_knows() -> None:
    names = timm.list_models("vit_*", module="vision_transformer")
    known = {
        cfg.url for name in names for cfg in timm.models.get_arch_pretrained_cfgs(name).values()
    }
    collection = collections()["dino"]
    assert {collection.base + file for file in collection.files.values()} <= known


def test_google_names_say_their_file() -> None:
    for name, file in collections()["google"].files.items():
        stem = Path(file).stem
        # AugReg's files carry their whole training recipe in the name.
        assert name.rsplit("/")[-1].removesuffix("-384").startswith(stem.split("-i21k")[0])
        assert name.endswith("-384") == stem.endswith("res_384")


def test_every_address_is_https_and_names_a_file_of_weights() -> None:
    for prefix, collection in collections().items():
        for name in collection.files:
            url = address(prefix, name)
            require_https(url)
            assert re.fullmatch(r"[\w.+-]+\.(npz|pth)", file_name(url))


def test_where_names_hold_hashes() -> None:
    assert publishes_sha256_in_name("https://download.pytorch.org/models/vit_b_16-c867db91.pth")
    assert not publishes_sha256_in_name("https://example.org/models/vit_b_16-c867db91.pth")
    assert not publishes_sha256_in_name(address("google", "ViT-B_16"))


def test_error_misspelt_name() -> None:
    with pytest.raises(SourceError) as caught:
        address("google", "vit-b16")
    assert (
        str(caught.value)
        == """\
error: source-not-found
  google: has no checkpoint vit-b16.
  hint: did you mean google:ViT-B_16 or google:ViT-L_16 or google:ViT-B_16-224?"""
    )


def test_error_unknown_name_lists_all() -> None:
    with pytest.raises(SourceError) as caught:
        address("dino", "zzz")
    assert (
        str(caught.value)
        == """\
error: source-not-found
  dino: has no checkpoint zzz.
  hint: one of dino_vits16, dino_vits8, dino_vitb16, dino_vitb8, dinov2_vits14, \
dinov2_vits14_reg, dinov2_vitb14, dinov2_vitb14_reg, dinov2_vitl14, dinov2_vitl14_reg, \
dinov2_vitg14, dinov2_vitg14_reg"""
    )
