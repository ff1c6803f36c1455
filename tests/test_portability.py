"""What Linux has and Windows or macOS have not, found by reading the sources, and played here."""

import ast
import io
import ntpath
import os
import re
import subprocess
import sys
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import pytest

from tests.cli.conftest import run
from tests.conftest import NEED_POSIX
from vitconvert.atomic_write import portable_name
from vitconvert.cli.report import named_after, reader_is_gone, refused_by_system
from vitconvert.demo.demonstration import DIGITS
from vitconvert.documents import read_bytes, write_json
from vitconvert.embedding import folders, sources
from vitconvert.errors import OutputExists, SourceError, as_typed, is_address
from vitconvert.formats.shards import leads_out
from vitconvert.sources.references import looks_like_path, parse_reference

__all__ = ["run"]  # a fixture

ROOT = Path(__file__).parents[1]
SHIPPED = sorted(
    path for place in ("vitconvert", "docs", ".ci") for path in (ROOT / place).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Modules and names that Windows lacks (docs.python.org/3.14, "Availability").
MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
NAMES = {
    "os": "O_CLOEXEC O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC chown chroot"
    " copy_file_range fchmod fchown fdatasync fork forkpty getegid geteuid getgid getgroups"
    " getloadavg getpgid getsid getuid killpg lchown lockf mkfifo mknod nice openpty posix_fadvise"
    " posix_fallocate posix_spawn pread preadv pwrite pwritev register_at_fork"
    " sched_getaffinity sched_setaffinity sendfile setsid statvfs sync sysconf uname wait3 wait4",
    "signal": "SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP"
    " SIGUSR1 SIGUSR2 SIGWINCH alarm pause pthread_kill pthread_sigmask setitimer sigwait",
    "mmap": "MAP_ANONYMOUS MAP_NORESERVE MAP_POPULATE MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE",
    "socket": "AF_UNIX socketpair",
    "time": "tzset",
}
LACKING = {(module, name) for module, names in NAMES.items() for name in names.split()}
ARGUMENTS = {"dir_fd", "src_dir_fd", "dst_dir_fd", "preexec_fn", "pass_fds", "start_new_session"}
WORDS = (
    rf"\b({'|'.join([*MODULES, *ARGUMENTS, *(name for _, name in LACKING)])})\b|/(dev|tmp|proc)/"
)
GUARDS = re.compile(r"sys\.platform|os\.name|hasattr\((os|signal|time), ")


def lacking(tree):
    """Lines with what Windows lacks, that no condition on the system, or getattr, stands around."""
    guarded = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp) and GUARDS.search(ast.unparse(node.test)):
            guarded.update(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        match node:
            case _ if id(node) in guarded:
                continue
            case ast.Import(names=names):
                found = [name.name for name in names if name.name in MODULES]
            case ast.ImportFrom(module=module, names=names):
                found = [module] if module in MODULES else []
                found += [n.name for n in names if (module, n.name) in LACKING]
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                found = [f"{module}.{name}"] if (module, name) in LACKING else []
            case ast.keyword(arg=name):
                found = [name] if name in ARGUMENTS else []
            case ast.Constant(value=str(text)):
                found = [text] if text.startswith(("/dev/", "/tmp/", "/proc/")) else []
            case _:
                continue
        yield from ((node, name) for name in found)


# Where a file of the system that is not there is an answer like another.
ASKED_FOR = {
    "vitconvert/machine.py": {"/proc/cpuinfo"},
    "vitconvert/inference/processes.py": {"/dev/shm"},
}


def test_what_windows_lacks_is_called_under_a_condition():
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '?')} {name}"
        for path in SHIPPED
        for node, name in lacking(parsed(path, WORDS))
        if name not in ASKED_FOR.get(path.relative_to(ROOT).as_posix(), ())
    ]
    assert not found, "guard it by sys.platform, hasattr or getattr"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import fcntl", ["fcntl"]),
        ("from os import fork", ["fork"]),
        ("import os\nos.open('a', os.O_RDONLY | os.O_NONBLOCK)", ["os.O_NONBLOCK"]),
        ("signal.signal(signal.SIGHUP, stop)", ["signal.SIGHUP"]),
        ("os.open('a', 0, dir_fd=3)", ["dir_fd"]),
        ("open('/dev/null')", ["/dev/null"]),
        ("if sys.platform != 'win32':\n    import fcntl", []),
        ("n = os.getloadavg() if hasattr(os, 'getloadavg') else 0", []),
        ("getattr(os, 'O_NONBLOCK', 0)", []),
    ],
)
def test_the_search_finds_each_kind(source, names):
    assert [name for _, name in lacking(ast.parse(source))] == names


def parsed(path, words):
    """A source that has one of these words; what has none is not worth parsing."""
    text = path.read_text(encoding="utf-8")
    return ast.parse(text if re.search(words, text) else "")


def imported(path):
    """Modules of the tests that a module may import, as files."""
    for module, names in re.findall(
        r"^\s*from (tests[\w.]*) import ([\w, ]+)", path.read_text(encoding="utf-8"), re.MULTILINE
    ):
        place = ROOT / module.replace(".", "/")
        yield place.with_suffix(".py")
        yield from (place / f"{name.strip()}.py" for name in names.split(","))


def test_tests_that_windows_cannot_run_are_left_out_there():
    others = [path for path in TESTS if path != Path(__file__)]
    imports = {path: {*imported(path)} for path in others}
    needing = {
        path
        for path in others
        if any(not name.startswith("/") for _, name in lacking(parsed(path, WORDS)))
    }
    while more := {path for path in others if needing & imports[path]} - needing:
        needing |= more
    tests = {path for path in needing if path.name.startswith("test_")}
    found = [path.relative_to(ROOT / "tests").as_posix() for path in tests]
    marked = {name for name in found if "mark.posix" in (ROOT / "tests" / name).read_text("utf-8")}
    assert {*found} - marked == {*NEED_POSIX}, "mark them `posix`, or name them in conftest.py"


def text_files(tree):
    """Calls that read or write text without saying its encoding, or how its lines end."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        said = {keyword.arg for keyword in node.keywords}
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        method = isinstance(node.func, ast.Attribute)
        if name == "write_text" and len(node.args) == 1 and {"encoding", "newline"} - said:
            if ast.unparse(node.func) != "formatter.write_text":  # click's
                yield node
        elif name == "read_text" and not node.args and "encoding" not in said:
            yield node
        elif name in ("open", "fdopen", "NamedTemporaryFile"):
            at = 0 if method and name == "open" else 1
            mode = (
                node.args[at].value
                if len(node.args) > at and isinstance(node.args[at], ast.Constant)
                else ""
            )
            if isinstance(mode, str) and re.fullmatch(r"[rwxa]\+?t?", mode):
                wanted = {"encoding"} if mode[0] == "r" else {"encoding", "newline"}
                if wanted - said and "devnull" not in ast.unparse(node):
                    yield node


def test_text_is_utf_8_and_has_the_same_bytes_on_every_system():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}"
        for path in SHIPPED
        for node in text_files(parsed(path, r"_text\(|open\(|NamedTemp"))
        if "archive.open" not in ast.unparse(node)  # of zipfile, which has bytes alone
    ]
    assert not found, "say encoding=, and newline= where it is written"


@pytest.mark.parametrize(
    "source",
    ["p.write_text(t)", "p.write_text(t, encoding='utf-8')", "p.read_text()", "p.open('w')"],
)
def test_the_search_finds_text_files(source):
    assert list(text_files(ast.parse(source)))


def test_json_ends_its_lines_alike_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "linesep", "\r\n")
    write_json(tmp_path / "a.json", {"é": 1})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "é": 1\n}\n'.encode()


def test_names_in_the_repository_are_possible_on_every_system():
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, check=False).stdout.decode()
    names = listed.split("\0")[:-1] or [p.relative_to(ROOT).as_posix() for p in SHIPPED + TESTS]
    assert [n for n in names if any(part != portable_name(part) for part in n.split("/"))] == []
    assert len({name.casefold() for name in names}) == len(names)
    assert max(map(len, names)) < 150  # below a folder, within the 260 letters of Windows


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vit-base.v2", "vit-base.v2"),
        ("model:v1.pth", "model_v1.pth"),
        ('a<b>c"d|e?f*g\\h/i\nj', "a_b_c_d_e_f_g_h_i_j"),
        ("CON", "_CON"),
        ("nul.tar", "_nul.tar"),
        ("com1.safetensors", "_com1.safetensors"),
        ("console.pt", "console.pt"),
        ("ends. .", "ends"),
        ("été", "été"),
    ],
)
def test_a_name_that_every_system_can_have(text, name):
    assert portable_name(text) == name
    assert not any(part in '<>:"/\\|?*' for part in name)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("https://host.org/dir/vit.pth?sig=SECRET", "vit"),
        ("https://host.org/a%3Ab.safetensors", "a_b"),
        ("timm:aux", "_aux"),
        ("org/vit-base.v2", "vit-base.v2"),
        ("..", "model"),
    ],
)
def test_what_is_written_is_named_so_that_it_can_be(model, name):
    assert named_after(model) == name


@pytest.mark.parametrize("place", ["s3://bucket/x", "https://host/x", "gs://b"])
def test_an_address_is_one_also_as_a_path_of_windows(place):
    assert is_address(str(PureWindowsPath(place)))
    assert is_address(place)


@pytest.mark.parametrize(
    "text",
    [r"C:\models\vit", "C:/models/vit", "c:vit", r"models\vit", r".\vit", r"\\server\share\vit"],
)
def test_a_path_of_windows_is_no_scheme_and_no_repository(text):
    assert looks_like_path(text)
    assert not is_address(text)
    assert leads_out(text) == (text[:1] != "m" and not text.startswith("."))
    with pytest.raises(SourceError, match="no file or directory") as caught:
        parse_reference(text)
    assert "timm:" not in caught.value.hint


def test_commands_are_quoted_for_the_shell_that_is_there(monkeypatch):
    words = ["vitconvert", "inspect", "my photos/it's.pth"]
    assert as_typed(*words) == """vitconvert inspect 'my photos/it'"'"'s.pth'"""
    monkeypatch.setattr(sys, "platform", "win32")
    assert as_typed(*words) == 'vitconvert inspect "my photos/it\'s.pth"'


def test_a_reader_that_is_gone_has_two_words_on_windows(monkeypatch):
    invalid = OSError(22, "Invalid argument")
    assert reader_is_gone(BrokenPipeError(32, "Broken pipe"))
    assert not reader_is_gone(invalid)
    monkeypatch.setattr(sys, "platform", "win32")
    assert reader_is_gone(invalid)
    assert not reader_is_gone(OSError(22, "Invalid argument", "a.pth"))
    assert "Invalid argument" in str(refused_by_system(invalid))


def test_json_is_read_where_files_have_no_o_nonblock(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_NONBLOCK", raising=False)
    (tmp_path / "config.json").write_bytes(b"{}\r\n\x1a")  # Ctrl-Z ends a file of text there
    assert read_bytes(tmp_path / "config.json") == b"{}\r\n\x1a"


class Locks:
    """`msvcrt.locking` of Windows, by Linux's locks of bytes that belong to an open file."""

    LK_NBLCK = 2

    def locking(self, descriptor, mode, count):
        import fcntl
        import struct

        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
        except OSError:
            raise PermissionError(13, "Permission denied") from None


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="locks of open files are Linux's")
@pytest.mark.parametrize("system", ["linux", "win32"])
def test_locks_are_shared_or_alone(system, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "msvcrt", Locks())
    monkeypatch.setattr(sys, "platform", system)
    path = tmp_path / "output.lock"

    def held(*, shared):
        return folders._locked(path, shared=shared)

    def refused(*, shared):
        with pytest.raises(OutputExists, match="Another run"), held(shared=shared):
            pass

    with held(shared=True), held(shared=True), held(shared=True):
        refused(shared=False)
    with held(shared=False):
        refused(shared=True)
        refused(shared=False)
    with held(shared=False):
        pass


def test_keys_have_slashes_on_every_system(monkeypatch):
    windows = SimpleNamespace(sep="\\", path=ntpath, getcwd=lambda: r"C:\work")
    monkeypatch.setattr(sources, "os", windows)
    monkeypatch.setattr(ntpath, "abspath", lambda n: ntpath.normpath(ntpath.join(r"C:\work", n)))
    layout = sources.Layout(base=r"C:\work", columns={}, kept={})
    names = [rf"photos\{kind}\{i}.jpg" for kind in ("cat", "dog") for i in range(3)]
    wanted = [name.replace("\\", "/") for name in names]
    assert layout.keys(names) == wanted
    assert [layout.key(name) for name in names] == wanted
    assert layout.key(r"c:\WORK\a.jpg") == "a.jpg"
    assert layout.key(r"D:\other\a.jpg") == "D:/other/a.jpg"
    assert sources._above([r"C:\a", r"D:\b"]) is None


def test_a_file_url_is_a_path(tmp_path, monkeypatch):
    assert folders.folder_at(f"file://{tmp_path}/a%20b").path == tmp_path / "a b"
    from nturl2path import url2pathname

    monkeypatch.setattr(folders, "url2pathname", url2pathname)
    assert str(folders.folder_at("file:///C:/a%20b").path) == r"C:\a b"


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437"])
def test_lists_of_names_are_read_by_their_bytes(encoding, run, monkeypatch):
    typed = io.TextIOWrapper(io.BytesIO("nirgends-é.pth\r\n".encode()), encoding=encoding)
    monkeypatch.setattr(sys, "stdin", typed)
    answer = run("inspect", "-", "--lines")
    assert "nirgends-\\u00e9.pth" in answer.out


# Raises where an open or mapped file is renamed or removed, or its folder, as Windows does; and has
# none of the names that Windows lacks, once the standard library is imported.
LIKE_WINDOWS = """
import os, sys
DIGITS, OUT, LACKING = sys.argv[1:4]
import vitconvert, torch, timm, safetensors.torch, tempfile, shutil, subprocess, multiprocessing

def opened(place):
    place = os.path.realpath(place)
    descriptors = []
    for number in os.listdir("/proc/self/fd"):
        try: descriptors.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError: pass
    with open("/proc/self/maps") as maps: mapped = [line.split(maxsplit=5)[5:] for line in maps]
    names = [*descriptors, *(rest[0].strip() for rest in mapped if rest)]
    return {n for n in names if n == place or n.startswith(place + "/")}

looking = False
def refuse(event, arguments):
    global looking
    if looking or event not in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree"): return
    looking = True
    places = arguments[: 2 if event == "os.rename" else 1]
    held = [o for p in places if os.path.isabs(os.fspath(p)) for o in opened(p)]
    looking = False
    if held: raise PermissionError(13, "is used by another process", held[0])

sys.addaudithook(refuse)
from vitconvert.cli import vitconvert as command, run
for words in [
    ["demo"],
    ["convert", DIGITS, "--to", "timm", "-o", f"{OUT}/timm"],
    ["convert", f"{OUT}/timm", "--to", "vit", "-o", f"{OUT}/vit"],
    ["convert", DIGITS, "--to", "timm", "-o", f"{OUT}/timm", "--force"],
    ["embed", DIGITS, f"{DIGITS}/samples", "-o", f"{OUT}/e.safetensors"],
    ["embed", DIGITS, f"{DIGITS}/samples", "-o", f"{OUT}/e.safetensors", "--force"],
    ["attention", DIGITS, f"{DIGITS}/samples/3.png", "-o", f"{OUT}/maps"],
    ["golden", DIGITS, "--pixels", "-o", f"{OUT}/pixels"],
]:
    code = run(command, words)
    assert code == 0, (code, words)
    for name in LACKING.split():  # after the demo: some packages that it opens want them
        if hasattr(os, name): delattr(os, name)
"""


@pytest.mark.coverage
@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which files are open")
def test_no_open_file_is_renamed_or_removed(tmp_path):
    names = [name for name in NAMES["os"].split() if not name.startswith(("fork", "posix", "wait"))]
    arguments = [str(DIGITS), str(tmp_path), " ".join(names)]
    done = subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
