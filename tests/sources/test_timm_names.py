import pytest

from vitconvert.errors import SourceError
from vitconvert.sources.references import HubRepo, WebAddress
from vitconvert.sources.timm_names import resolve_timm


def hub(repo: str) -> HubRepo:
    return HubRepo(repo=repo, revision=None, file=None)


@pytest.mark.parametrize(
    ("name", "full", "place"),
    [
        (
            "vit_base_patch16_224",
            "vit_base_patch16_224.augreg2_in21k_ft_in1k",
            hub("timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
        ),
        (
            "vit_base_patch16_224.augreg_in21k",
            "vit_base_patch16_224.augreg_in21k",
            hub("timm/vit_base_patch16_224.augreg_in21k"),
        ),
        # Two architectures share one repository; the name is what tells them apart.
        (
            "vit_base_patch16_clip_quickgelu_224.openai",
            "vit_base_patch16_clip_quickgelu_224.openai",
            hub("timm/vit_base_patch16_clip_224.openai"),
        ),
        (
            "vit_huge_patch14_gap_224.in1k_ijepa",
            "vit_huge_patch14_gap_224.in1k_ijepa",
            WebAddress(url="https://dl.fbaipublicfiles.com/ijepa/IN1K-vit.h.14-300e.pth.tar"),
        ),
    ],
)
def test_where_timm_keeps_weights(name: str, full: str, place: object) -> None:
    assert resolve_timm(name) == (full, place)


MESSAGES = {
    "zzzzzz": """\
  timm knows no model zzzzzz.
  hint: `vitconvert list '*'` shows them.""",
    "vit_tiny_patch16_224.augreg_in1k": """\
  timm knows no weights augreg_in1k of vit_tiny_patch16_224.
  vit_tiny_patch16_224.augreg_in21k_ft_in1k
  vit_tiny_patch16_224.augreg_in21k
  hint: did you mean timm:vit_tiny_patch16_224.augreg_in21k?""",
    "vit_small_patch16_18x2_224": """\
  timm publishes no weights for vit_small_patch16_18x2_224.
  hint: --no-pretrained builds the model without its weights; --checkpoint PATH reads a file \
that you have.""",
    # The names that come next depend on the release of timm.
    "vit_base_patch16_225": """\
  timm knows no model vit_base_patch16_225.
  hint: did you mean timm:vit_base_patch16_224 or timm:""",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_error_messages(name: str) -> None:
    with pytest.raises(SourceError) as caught:
        resolve_timm(name)
    message = f"error: source-not-found\n{MESSAGES[name]}"
    assert str(caught.value)[: len(message) if message.endswith(":") else None] == message
