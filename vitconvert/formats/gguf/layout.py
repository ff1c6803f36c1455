"""The numbers of GGUF, for reading and writing. Source: gguf 0.19, `gguf/constants.py`."""

from collections.abc import Mapping

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # of tensors, unless the metadata say otherwise
MOST_AXES = 4  # GGML_MAX_DIMS
LONGEST_NAME = 63  # bytes; GGML_MAX_NAME counts a zero at the end

DTYPES: Mapping[int, str] = {
    0: "float32",
    1: "float16",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    30: "bfloat16",
}
"""torch's name of each type of tensors that has a number for each element."""

BLOCKS: Mapping[int, tuple[str, int, int]] = {
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    20: ("iq4_nl", 32, 18),
    23: ("iq4_xs", 256, 136),
}
"""Types that are quantised: name, elements of a block, and its bytes."""

PACKED: Mapping[str, str] = {"q8_0": "eight_bit_blocks"}
"""What follows the name of a tensor that is quantised in a type whose weights are computed."""

OTHERWISE = "packed_blocks"
"""What follows the names of all others."""

NUMBERS: Mapping[int, str] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""struct's format of each type of metadata that is one number."""

UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
