"""Video files as frames, decoded by torchcodec, as the processors of transformers 5.24 do it."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from vitconvert.errors import CorruptFile, MissingPackage, SourceError, UnsafeFile, size_text
from vitconvert.preprocessing.image_files import MOST_MEMORY, allowing

# What counts as a video in a folder; a file that the user names may have any suffix.
VIDEOS = (
    *(".mp4", ".m4v", ".mov", ".3gp", ".mkv", ".webm", ".avi", ".mpg", ".mpeg"),
    *(".ts", ".ogv", ".flv", ".wmv"),
)
# The containers that are read, by their first bytes, and where these are. Their frames are within.
# FFmpeg knows playlists, too, which would have it read other files and addresses.
_CONTAINERS = (
    *((4, kind) for kind in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")),
    (0, b"\x1a\x45\xdf\xa3"),  # Matroska, WebM
    (8, b"AVI "),
    (0, b"\x00\x00\x01\xba"),  # MPEG's program stream, and an elementary one
    (0, b"\x00\x00\x01\xb3"),
    (188, b"\x47"),  # of its transport stream, the second packet
    (0, b"OggS"),
    (0, b"FLV\x01"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),  # ASF: WMV
)
_HEAD = 189
_BYTES = 16  # of memory for a pixel of one frame, while it is decoded and resized
_INSTALL = (
    "pip install torchcodec, and FFmpeg 4 to 9 as your system has it (apt install ffmpeg, "
    "brew install ffmpeg); or write the frames into a folder: ffmpeg -i clip.mp4 clip/%05d.png"
)


class Video(Sequence[Image.Image]):
    """The frames of a file, each decoded when it is asked for, in RGB.

    Raises:
        MissingPackage: torchcodec is not installed, or finds no FFmpeg.
        SourceError: It cannot be read.
        CorruptFile: It is no video, or damaged.
        UnsafeFile: Its frames are too large.
    """

    def __init__(self, path: Path, *, max_pixels: int | None = None) -> None:
        self._path = path
        require_torchcodec()
        _check_container(path)
        from torchcodec.decoders import VideoDecoder

        try:
            self._decoder = VideoDecoder(str(path), seek_mode="exact")
        except Exception as error:  # torchcodec raises several kinds for what FFmpeg refuses
            raise self._damaged(error) from error
        height, width = self._decoder.metadata.height or 0, self._decoder.metadata.width or 0
        pixels, most = height * width, max_pixels or MOST_MEMORY // _BYTES
        if pixels > most:
            raise UnsafeFile(
                "The frames of the video have more pixels than are allowed.",
                evidence={
                    "clip": path,
                    "size": f"{size_text((height, width))} = {pixels:,} pixels",
                    "allowed": f"{most:,} pixels",
                },
                hint=f"{allowing(pixels)} allows it; or save it smaller.",
            )

    def __len__(self) -> int:
        return self._decoder.metadata.num_frames or 0

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        try:
            frame = self._decoder.get_frame_at(index).data  # (3, height, width)
        except Exception as error:
            raise self._damaged(error, frame=index) from error
        return Image.fromarray(frame.permute(1, 2, 0).numpy())

    def _damaged(self, error: Exception, **where: int) -> CorruptFile:
        said = str(error).partition("\n")[0]
        reason = said.rpartition(".cpp:")[2].partition(", ")[2] or said
        evidence = {"clip": self._path, **where, "FFmpeg": reason.replace(str(self._path), "")}
        return CorruptFile("This file cannot be decoded as a video.", evidence=evidence)


def require_torchcodec() -> None:
    """Make sure that videos can be decoded.

    Raises:
        MissingPackage: torchcodec is not installed, or it finds no FFmpeg.
    """
    try:
        import torchcodec
    except ModuleNotFoundError as error:
        raise MissingPackage("Video files are decoded by torchcodec.", hint=_INSTALL) from error
    except Exception as error:  # before 0.16, where a library that it loads is not there
        reason = str(error).partition("\n")[0]
        raise MissingPackage(
            "torchcodec cannot be loaded.", evidence={"torchcodec": reason}, hint=_INSTALL
        ) from error
    if getattr(torchcodec, "ffmpeg_major_version", 0) is None:
        raise MissingPackage("torchcodec finds no FFmpeg.", hint=_INSTALL)


def _check_container(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise SourceError(f"{error.strerror}.", evidence={"clip": path}) from error
    if not any(head[at:].startswith(begin) for at, begin in _CONTAINERS):
        raise CorruptFile(
            "This file is no video that is read.",
            evidence={"clip": path, "read": "MP4, MOV, Matroska, WebM, AVI, MPEG, Ogg, FLV, WMV"},
        )
