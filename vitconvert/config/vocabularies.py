"""The words that fields of ViTConfig may have as values; timm's where there is one."""

from collections.abc import Mapping

ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh")
POOLINGS = ("token", "avg", "avgmax", "max", "map", "token_avg", "prefix_avg", "none")
POSITIONS = (
    "learned",
    "grid",  # learned for a grid of their own, fitted to the image's (naflexvit, Qwen3-VL)
    "class_grid",  # the same after a row for a class token, which is kept and not used (ViTDet)
    "one",  # learned, the same for every patch: V-JEPA 2.1's embedding of clips, or of images
    "axes",  # learned for rows and for columns, and added (naflexvit's factorised, Gemma 4)
    "sincos2d",  # big_vision `posemb_sincos_2d`: frequencies 1 down to 1/temperature
    "sincos2d_mae",  # MAE `get_2d_sincos_pos_embed`, AIMv2: the last frequency is left out
    "sincos1d",  # Vaswani et al. along the sequence, as in tutorials; MAE-pytorch along the patches
    "none",
)
NORMS = ("layer", "rms")
BLOCK_ORDERS = (
    "pre",  # norm of what a branch reads (timm, Hugging Face, torch's norm_first=True)
    "post_norm",  # norm of the sum, post-LN (torch's norm_first=False, the original Transformer)
    "res_post_norm",  # norm of what a branch gives (Swin v2, timm's ResPostBlock)
    "sandwich",  # norms of what a branch reads and of what it gives (Gemma 4)
    "parallel",  # attention and MLP read the same tokens, through one matrix (timm "xp", ViT-22B)
)
ROPES = (
    "none",
    "axial",  # timm RotaryEmbeddingCat: EVA-02, PE, rope-ViT; positions scaled to a reference grid
    "dinov3",  # timm RotaryEmbeddingDinoV3: patch centres in [-1, 1]
    "vjepa2",  # V-JEPA 2: time, rows and columns turn a third of a head's channels each
    # V-JEPA 2.1: the same of pairs of channels, rows and columns scaled to the grid of 256 pixels
    "vjepa2_1",
    "mixed",  # timm RotaryEmbeddingMixed: learned frequencies, for each block and head
)
ROPE_INDEXINGS = ("ij", "xy")
RELATIVE_POSITIONS = (
    "none",
    "block",  # BEiT: each block has a table of what is added to the scores
    "shared",  # one table for all blocks
    "block_mlp",  # timm's vit_relpos: an MLP makes it of the logarithms of offsets (Swin V2)
    "shared_mlp",
    "decomposed",  # ViTDet, SAM: q times a vector for the offset of rows, and one of columns
)
STANDARDISED_STEMS = ("google", "timm", "jeonsworld")  # the same weights, computed in three ways
MOBILECLIP_STEMS = (
    "mobileclip",
    "mobileclip_padded",
)  # timm's, and Apple's, with a border of zeros
STEM_STYLES = (
    *STANDARDISED_STEMS,
    "resnet_d",  # timm ResNet-D: batch norms, a root of three convolutions, averaged shortcuts
    *MOBILECLIP_STEMS,  # MobileCLIP-B: two convolutions with batch norms and GELU
)
RESAMPLINGS = (
    "bicubic_antialias",  # timm `resample_abs_pos_embed`
    "bicubic",  # Hugging Face ViT, DeiT, MAE, MSN, I-JEPA; Meta MAE, DeiT
    "bicubic_align_corners",  # torchvision `interpolate_embeddings`
    "bicubic_offset",  # Meta DINO, DINOv2 without registers: (new + 0.1) / old as scale
    "bilinear",  # Hugging Face DPT
    "bilinear_antialias",  # Hugging Face SigLIP 2 (NaFlex)
    "bilinear_align_corners",  # Google, big_vision, jeonsworld: scipy.ndimage.zoom(order=1)
)
OWN_RESAMPLINGS = (
    *RESAMPLINGS,
    "tile",  # SAM 3: the grid is repeated
    "first",  # Gemma 4, M2D, EAT: the first rows and columns of a larger grid
    "bucketed",  # Idefics 2 and 3, SmolVLM, Phi-4: that of the bucket of a patch's share of a side
    "bucketed_divided",  # MiniCPM-V: the same of shares that are rounded otherwise
)
RELATIVE_RESAMPLINGS = (
    "geometric",  # timm `resize_rel_pos_bias_table`, after BEiT's fine-tuning
    "bilinear",  # Hugging Face BEiT and Data2VecVision, after MiDaS 3.1
)
PROBLEM_TYPES = (
    "none",  # nobody says: as of one label of several
    "single_label_classification",
    "multi_label_classification",  # any number of labels: a sigmoid of each logit
    "regression",  # the numbers themselves
)
# The fields whose value is a word of a vocabulary.
VOCABULARIES: Mapping[str, tuple[str, ...]] = {
    "activation": ACTIVATIONS,
    "representation_activation": ACTIVATIONS,
    "pooling": POOLINGS,
    "position_embedding": POSITIONS,
    "position_resampling": OWN_RESAMPLINGS,
    "stem_style": STEM_STYLES,
    "norm": NORMS,
    "block_order": BLOCK_ORDERS,
    "rope": ROPES,
    "rope_indexing": ROPE_INDEXINGS,
    "relative_positions": RELATIVE_POSITIONS,
    "relative_resampling": RELATIVE_RESAMPLINGS,
    "problem_type": PROBLEM_TYPES,
}
