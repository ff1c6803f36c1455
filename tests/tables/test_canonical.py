"""canonical.toml against the model that it describes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from vitconvert.config import ViTConfig
from vitconvert.model import ViT
from vitconvert.tables.canonical import canonical_tensors, expected_shapes, instance
from vitconvert.tables.dialects import builtin_tables


@st.composite
def configs(draw):
    flag = st.booleans()
    heads, stem, class_token = draw(st.integers(1, 3)), draw(flag), draw(flag)
    width, dim = draw(st.sampled_from([12, 24, 36])), draw(st.integers(1, 13))
    classes, dist_token = draw(st.integers(0, 4)), class_token and draw(flag)
    projected = draw(flag) or heads * dim != width
    poolings = ["avg", "avgmax", "max", "map", "none", *(["token"] if class_token else [])]
    style = draw(st.sampled_from(["google", "resnet_d", "mobileclip"]))
    staged = stem and style != "mobileclip"
    names = (
        *("no_embed_class", "patch_bias", "patch_norm", "patch_pre_norm", "pre_norm", "qkv_bias"),
        *("qk_norm", "mlp_bias", "layer_scale", "final_norm", "fc_norm", "head_bias"),
        *("pool_q_proj", "pool_kv_bias", "pool_mlp"),
    )
    pooling = draw(st.sampled_from(poolings))
    return ViTConfig(
        image_size=(draw(st.integers(32, 90)), draw(st.integers(32, 90))),
        patch_size=(1, 2) if stem else (draw(st.integers(3, 9)), draw(st.integers(3, 9))),
        in_channels=draw(st.integers(1, 5)),
        num_classes=classes,
        embed_dim=width,
        depth=draw(st.integers(1, 12)),
        num_heads=heads,
        head_dim=dim,
        mlp_dim=draw(st.integers(1, 9)),
        activation="gelu",
        norm_eps=1e-6,
        pooling=pooling,
        class_token=class_token,
        dist_token=dist_token,
        dist_head=dist_token and pooling == "token" and classes > 0 and draw(flag),
        num_registers=draw(st.integers(0, 3)),
        position_embedding=draw(st.sampled_from(["learned", "sincos2d", "sincos2d_mae", "none"])),
        stem=stem,
        stem_depths=tuple(draw(st.lists(st.integers(1, 3), max_size=3))) if staged else (),
        stem_width=32,
        stem_style=style,
        attention_proj=projected,
        proj_bias=projected and draw(flag),
        pool_heads=draw(st.sampled_from([1, 2, 4])),
        pool_mlp_dim=draw(st.integers(0, 4)),
        representation_size=draw(st.integers(0, 4)),
        **{name: draw(flag) for name in names},
    )


@settings(max_examples=100)
@given(configs())
def test_expected_tensors_are_those_of_the_model(config):
    state = ViT(config, device="meta").state_dict()
    assert expected_shapes(config) == {name: tuple(t.shape) for name, t in state.items()}


def test_every_condition_is_a_word_of_the_configuration():
    for tensor in canonical_tensors().values():
        assert all(hasattr(ViTConfig, word) or word in _fields() for word in tensor.conditions)


def _fields():
    return ViTConfig.__dataclass_fields__


def test_an_axis_named_with_an_index_is_one_axis_for_each_value():
    tensor = canonical_tensors()["patch_embed.backbone.stages.{s}.blocks.{u}.conv1.weight"]
    assert str(instance(tensor, {"s": 2, "u": 0}).axes) == "mid2 in2_0 1 1"


def test_our_own_files_have_a_place_for_every_tensor():
    ours = builtin_tables()["vit"]
    assert {row.tensor.name.text for row in ours.rows} == set(canonical_tensors())
