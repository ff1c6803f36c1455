"""From any dialect to any other and back: a function that both can hold survives byte for byte."""

import itertools

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from tests.sampling import sampled
from tests.small_models import tiny_config
from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.facts.accounts import check_accounts
from vitconvert.facts.fact import state
from vitconvert.facts.gathering import gather_facts
from vitconvert.facts.materialise import materialise
from vitconvert.facts.plan import plan_reading
from vitconvert.programs.target import fit_target
from vitconvert.tables.binding import bind
from vitconvert.tables.canonical import expected_shapes
from vitconvert.tables.dialects import builtin_tables

# What a dialect's own files cannot show, and a reader is told.
TOLD = (
    *("num_heads", "head_dim", "image_size", "patch_size", "in_channels", "pool_heads"),
    *("pooling", "activation", "norm_eps", "position_embedding", "norm", "block_order"),
    *("rope", "rope_indexing", "rope_temperature", "rope_half", "final_norm", "num_registers"),
)
GATED = {"gated_mlp": True, "activation": "silu"}
SCALED = {"layer_scale": True}
KINDS = (
    *({}, {}, {}, {}, GATED, SCALED, GATED | SCALED),
    *(
        {"branches": 2},
        {"block_order": "post_norm"},
        {"block_order": "res_post_norm"},
        {"block_order": "parallel"},
        {"norm": "rms", "norm_bias": False},
    ),
    *({"differential": True}, {"differential": True, "block_order": "parallel"}),
    *({"attention_norm": True, "mlp_norm": True}, {"num_registers": 2, **SCALED}),
    *({"relative_positions": "block", **SCALED}, {"relative_positions": "shared"}),
    *({"rope": "axial"}, {"rope": "dinov3", **SCALED}, {"rope": "mixed", **SCALED}),
)


@st.composite
def configs(draw):
    """Plain ViTs of the kinds that projects have: mostly what several dialects hold."""
    flag = st.booleans()
    heads, dim = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    class_token = draw(flag)
    lucidrains, map_pooling = draw(flag), draw(st.integers(0, 3)) == 0
    computed = draw(st.integers(0, 3)) == 0
    width = draw(st.sampled_from([8, 12, 20])) if lucidrains or computed else heads * dim
    width += -width % 4 if computed else 0
    assume(not map_pooling or width % heads == 0)
    representation = 0 if lucidrains else draw(st.sampled_from([0, 0, 5, width]))
    kind = draw(st.sampled_from(KINDS))
    assume("rope" not in kind or dim % 4 == 0)
    assume("differential" not in kind or dim % 2 == 0)
    assume("relative_positions" not in kind or class_token)
    fields = {
        "image_size": draw(st.sampled_from([(12, 12), (12, 8), (13, 9)])),
        "patch_size": draw(st.sampled_from([(4, 4), (4, 2)])),
        "in_channels": draw(st.sampled_from([1, 3, 4])),
        "num_classes": draw(st.sampled_from([0, 2, 5])),
        "embed_dim": width,
        "depth": draw(st.integers(1, 12)),
        "num_heads": heads,
        "head_dim": dim,
        "mlp_dim": draw(st.integers(1, 9)),
        "activation": "gelu",
        "norm_eps": 1e-6,
        "pooling": "map" if map_pooling else "token" if class_token else "avg",
        "class_token": class_token,
        "no_embed_class": draw(flag),
        "position_embedding": "sincos2d" if computed else "learned",
        "patch_pre_norm": lucidrains,
        "patch_norm": lucidrains,
        "qkv_bias": not lucidrains,
        "proj_bias": not (lucidrains and computed),
        "representation_size": representation,
    }
    return ViTConfig(**fields | kind)


def told(config):
    return {name: getattr(config, name) for name in TOLD if getattr(config, name) is not None}


def holders(config):
    """The dialects in which a reader who is told so much finds the same function."""
    for table in builtin_tables().values():
        try:
            target = fit_target(table, config, named=state(told(config), "user"), only=False)
        except (NotRepresentable, ConflictingFact, MissingFact):
            continue
        yield table, target.plan


def random_tensors(config, seed, dtype, keyless):
    """Random numbers under canonical names; keys may have a bias of zero, as some projects' do."""
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_shapes(config).items()
    tensors = {n: torch.randn(shape, generator=generator).to(dtype) for n, shape in shapes}
    for name, tensor in tensors.items():
        if keyless and name.endswith("qkv.bias"):
            tensor.unflatten(0, (3, -1))[1] = 0
    return tensors


def as_read(table, shapes, config):
    """A table laid over shapes, and what a reader finds, knowing only what he is told."""
    binding = bind(table, shapes)
    return binding, gather_facts(binding, state(told(config), "user")).config()


def through(table, plan, canonical, config):
    """Write to a dialect and read back."""
    theirs = materialise(plan, canonical.__getitem__)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.items()}
    binding, found = as_read(table, shapes, config)
    assert binding.fits
    check_accounts(binding, found, table.name)
    assert len(theirs) == binding.explained + len(binding.ignored)
    return materialise(plan_reading(binding, found), theirs.__getitem__)


@pytest.mark.parametrize("dtype", sampled([torch.bfloat16, torch.float32], 2, "slow"), ids=str)
@settings(max_examples=10, phases=[Phase.generate])
@given(configs(), st.integers(0, 1000), st.booleans())
def test_there_and_back_through_every_pair(dtype, config, seed, keyless):
    canonical = random_tensors(config, seed, dtype, keyless)
    several = []
    for table, plan in holders(config):
        if plan.zeros and not keyless:
            with pytest.raises(NotRepresentable, match="leaves out a part that is not zero"):
                materialise(plan, canonical.__getitem__)
        else:
            several.append((table, plan))
    once = {table.name: through(table, plan, canonical, config) for table, plan in several}
    for (first, _), (second, plan) in itertools.permutations(several, 2):
        twice = through(second, plan, once[first.name], config)
        assert twice.keys() == canonical.keys()
        for name, tensor in canonical.items():
            assert twice[name].dtype == dtype, name
            assert torch.equal(twice[name], tensor), (first.name, second.name, name)


def test_the_kinds_are_held_by_many_dialects():
    """Otherwise the property above would be about nothing; `test_dialects` writes every dialect."""
    held = {table.name for kind in KINDS for table, _ in holders(tiny_config(**kind))}
    assert len(held) > 30
