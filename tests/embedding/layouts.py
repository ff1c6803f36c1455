"""The same images in a folder, a list, a tar, and a Parquet file; and what an output holds."""

import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def contents(count: int, bad=()) -> list[bytes]:
    """The contents of files that the null model takes for images; some are none."""
    return [b"bad" if i in bad else f"image {i}".encode() for i in range(count)]


def write_folder(folder: Path, images: list[bytes], *, suffix: str = ".jpg") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        (folder / f"{number:04d}{suffix}").write_bytes(image)
    return folder


def write_tree(folder: Path, images: list[bytes], classes=("cat", "dog")) -> Path:
    for number, name in enumerate(classes):
        write_folder(folder / name, images[number :: len(classes)])
    return folder


def write_tar(
    path: Path, images: list[bytes], beside: dict[str, list[str]] | None = None, *, mode: str = "w"
) -> Path:
    """A tar of WebDataset: 0000.jpg, and beside it 0000.cls and the like."""
    with tarfile.open(path, mode) as archive:
        for number, image in enumerate(images):
            add(archive, f"{number:04d}.jpg", image)
            for suffix, texts in (beside or {}).items():
                add(archive, f"{number:04d}.{suffix}", texts[number].encode())
    return path


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_parquet(
    path: Path, images: list, *, layout: str = "datasets", group: int = 2, columns=None, **how
) -> Path:
    """A Parquet file of Hugging Face datasets, with its metadata or without; or plain bytes."""
    if layout == "bytes":
        column = pa.array(images, pa.binary())
    else:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        rows = [None if i is None else {"bytes": i, "path": None} for i in images]
        column = pa.array(rows, kind)
    table = pa.table({**(columns or {}), "image": column})
    if layout == "datasets":
        features = {"image": {"_type": "Image"}}
        stated = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": stated})
    pq.write_table(table, path, row_group_size=group, **how)
    return path


def read_rows(output: Path, data: str = "features") -> list[dict]:
    """All rows of an output, shard after shard."""
    parts = sorted((Path(output) / data).glob("*.parquet"))
    return [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]


def read_failures(output: Path) -> list[dict]:
    return read_rows(output, "failed")


def left_over(output: Path) -> list[str]:
    """What lies in tmp/ besides locks."""
    return [p.name for p in (Path(output) / "tmp").rglob("*") if p.suffix != ".lock"]
