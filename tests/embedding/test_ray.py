"""The engine "ray": one cluster of two processors, on which everything that can happen happens."""

import errno
import gc
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import run
from tests.embedding import test_documents
from tests.embedding.layouts import (
    contents,
    read_failures,
    read_rows,
    write_folder,
    write_parquet,
    write_tar,
)
from tests.packages import needed, ray
from vitconvert.demo.demonstration import DIGITS
from vitconvert.embedding import embedder, ray_engine
from vitconvert.embedding.shards import check
from vitconvert.errors import SourceError

__all__ = ["run"]  # a fixture

needed("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray Data's, of its own options
]
IMAGES = DIGITS / "samples"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = str(ROOT)
    found = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=f"/tmp/ray-{os.getpid()}",  # sockets have short names
    )
    yield found.address_info["address"]
    ray.shutdown()
    shutil.rmtree(f"/tmp/ray-{os.getpid()}", ignore_errors=True)


def task_that(
    at_load: Callable[[], None] = lambda: None, at_image: Callable[[str], None] = lambda _name: None
) -> type:
    """A `Task` to which something happens in a worker; being local, it is sent there by value."""
    driver = os.getpid()

    class Eventful(embedder.Task):
        def load(self) -> Any:
            if os.getpid() == driver:
                return super().load()
            at_load()
            loaded = super().load()
            compute = loaded.answers

            def watched(pictures):
                for picture in pictures:
                    at_image(picture.name)
                    yield picture

            loaded.answers = lambda pictures: compute(watched(pictures))
            return loaded

    return Eventful


def rows(output: Path) -> dict[str, Any]:
    table = pq.read_table(output / "features")
    features = table.column("features").combine_chunks().flatten().to_numpy()
    return dict(zip(table.column("key").to_pylist(), features.reshape(len(table), -1), strict=True))


def wait_until_all_is_free() -> None:
    for _ in range(1200):  # two minutes: other tests may compute meanwhile
        gc.collect()  # Ray Data ends the actors of a dataset with the dataset
        if ray.available_resources().get("CPU") == 2:
            return
        time.sleep(0.1)
    raise AssertionError(ray.available_resources())


RAY = ("--engine", "ray", "--threads", 1)


def what_one_engine_began_the_other_goes_on_with(run, monkeypatch):
    Path("samples/0a.png").write_text("meow")
    everything = ("embed", "model", "samples", "--shard-rows", 2, "-q")
    assert run(*everything, "-o", "ours", "--only", "1/2", *RAY).code in (0, 1)
    assert check("ours").problems == ("the last run did not finish",)
    before = check("ours").rows + check("ours").failed
    assert 0 < before < 11
    assert run(*everything, "-o", "ours", "--only", "2/2").code in (0, 1)
    assert check("ours").whole
    shutil.rmtree(next(Path("ours").glob("features")))
    assert run(*everything, "-o", "ours", *RAY, "--workers", 1).code == 1
    assert run(*everything, "-o", "here").code == 1
    Path("samples/0a.png").write_bytes(Path("samples/0.png").read_bytes())
    assert run(*everything, "-o", "ours", "--retry-failed", *RAY).code == 0
    assert check("ours").whole and check("ours").failed == 0
    found, wanted = rows(Path("ours")), rows(Path("here"))
    assert len(found) == 11 and len(wanted) == 10
    largest = max(abs(row).max() for row in wanted.values())
    assert max(abs(found[key] - wanted[key]).max() for key in wanted) < 1e-5 * largest


def archives_are_read_with_what_is_kept(run, monkeypatch):
    images = [path.read_bytes() for path in sorted(IMAGES.iterdir())]
    images[3] = b"meow"
    classes = {"cls": [str(number) for number in range(10)]}
    write_tar(Path("a.tar.gz"), images, classes, mode="w:gz")
    Path("b.tar").write_bytes(b"x" * 2000)
    code, _, err = run("embed", "model", "a.tar.gz", "b.tar", "-o", "tar", "--keep", "cls", *RAY)
    assert code == 1 and "b.tar was given up: This is not a tar archive" in err
    found = read_rows(Path("tar"))
    assert [(row["key"], row["cls"]) for row in found] == [
        (f"a.tar.gz/{n:04d}.jpg", str(n)) for n in range(10) if n != 3
    ]
    assert [row["key"] for row in read_failures(Path("tar"))] == ["a.tar.gz/0003.jpg"]
    # Two workers read one archive, and each tells of its damage.
    write_parquet(Path("a.parquet"), images)
    assert run("embed", "model", "a.parquet", "-o", "parquet", "--shard-rows", 3, *RAY).code == 1
    assert (check("parquet").rows, check("parquet").failed) == (9, 1)
    assert check("parquet").whole
    assert run("embed", "model", "b.tar", "-o", "none", *RAY).err.count("was given up") == 1


def a_shard_is_redone_or_given_up_while_others_finish(run, monkeypatch):
    unlucky = Path.cwd() / "unlucky"

    def die(name):
        if name == "3.png":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "6.png" and not unlucky.exists():
            unlucky.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(embedder, "Task", task_that(at_image=die))
    everything = ("embed", "model", "samples", "-o", "deadly", "--shard-rows", 2)
    code, _, err = run(*everything, *RAY)
    assert code == 1 and unlucky.exists()
    assert "was given up: its worker died 3 times" in err
    assert "given up: 1\n" in err
    assert check("deadly").problems == ("the last run did not finish",)
    assert len(rows(Path("deadly"))) == 9  # of eleven: two are lost with their shard
    monkeypatch.undo()
    assert run(*everything).code == 0
    assert check("deadly").whole


def processors_that_others_hold_are_an_error(run, monkeypatch):
    assert ray_engine._PATIENCE <= 30
    monkeypatch.setattr(ray_engine, "_PATIENCE", 2)

    class Holder:
        def there(self):
            return True

    holders = [ray.remote(num_cpus=1)(Holder).remote() for _ in range(2)]
    ray.get([holder.there.remote() for holder in holders], timeout=60)
    code, out, err = run("embed", "model", "samples", "-o", "starved", *RAY)
    assert (code, out) == (2, "")
    assert "  No worker got its processors within 2 seconds.\n" in err
    assert "  a worker  1 CPUs, 0 GPUs\n" in err
    for holder in holders:
        ray.kill(holder)


def a_worker_that_fits_nowhere_is_an_error(run, monkeypatch):
    code, out, err = run("embed", "model", "samples", "-o", "x", *RAY, "--cpus-per-worker", 3)
    assert (code, out) == (2, "")
    assert "  The cluster has no room for a worker.\n" in err
    assert "  the cluster  2 CPUs, 0 GPUs\n" in err


def an_interrupt_frees_the_workers(run, monkeypatch):
    begun = Path.cwd() / "begun"

    def hang(name):
        if not begun.exists():
            begun.touch()
            time.sleep(5)  # Ray Data lets a worker finish its shard

    def interrupt():
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(embedder, "Task", task_that(at_image=hang))
    threading.Thread(target=interrupt).start()
    code, _, err = run("embed", "model", "samples", "-o", "stopped", *RAY, "--workers", 1)
    assert code == 130
    assert err.endswith("no shard was finished: the same command begins again.\n\ninterrupted\n")


def an_error_of_a_worker_ends_the_run(run, monkeypatch):
    def fill(name):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(embedder, "Task", task_that(at_image=fill))
    code, out, err = run("embed", "model", "samples", "-o", "full", *RAY, "--workers", 1)
    assert (code, out) == (1, "")
    assert "  The operating system reported: No space left on device.\n" in err
    assert not list(Path("full").glob("features/*"))


def commands_and_the_pipeline_of_the_document(run, monkeypatch):
    for command in test_documents.COMMANDS:
        if "ray" in command:
            assert run(*command).code == 0
    scope = {}
    exec(compile(test_documents.block_of("ray"), "ray", "exec"), scope)
    found = {Path(row["path"]).name: row["features"] for row in scope["features"]}
    wanted = dict(zip(("one.jpg", "two.png"), scope["rows"], strict=True))
    assert all(abs(found[name] - wanted[name]).max() < 1e-4 for name in wanted)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    test_documents.make_workplace(tmp_path)
    shutil.copytree(DIGITS, tmp_path / "model")
    shutil.copytree(IMAGES, tmp_path / "samples")
    monkeypatch.chdir(tmp_path)  # relative names lead there in workers too
    logging.disable()  # pytest would keep what Ray Data logs, with frames that hold its actors
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.coverage  # a minute
@pytest.mark.usefixtures("cluster", "workplace")
def test_a_cluster(run, subtests):
    for scenario in (
        what_one_engine_began_the_other_goes_on_with,
        archives_are_read_with_what_is_kept,
        a_shard_is_redone_or_given_up_while_others_finish,
        a_worker_that_fits_nowhere_is_an_error,
        an_error_of_a_worker_ends_the_run,
    ):
        wait_until_all_is_free()
        with subtests.test(scenario.__name__), pytest.MonkeyPatch.context() as patched:
            scenario(run, patched)


@pytest.mark.coverage
@pytest.mark.usefixtures("cluster", "workplace")
@pytest.mark.parametrize(
    "scenario",
    [
        commands_and_the_pipeline_of_the_document,
        processors_that_others_hold_are_an_error,
        an_interrupt_frees_the_workers,
    ],
)
def test_a_cluster_that_is_free_again(run, scenario):
    with pytest.MonkeyPatch.context() as patched:
        scenario(run, patched)
    wait_until_all_is_free()


@pytest.mark.coverage
def test_drivers_that_are_killed_lose_and_double_nothing(cluster, tmp_path, whole):
    draw, kills = random.Random(5), 0
    samples = [path.read_bytes() for path in sorted(IMAGES.iterdir())]
    images = [*samples * 60, b"meow"]
    sources = [write_folder(tmp_path / "images", images[:300], suffix=".png")]
    sources.append(write_tar(tmp_path / "a.tar", images[300:]))
    command = [sys.executable, "-m", "vitconvert", "embed", DIGITS, *sources, "-o", "output"]
    command += ["--shard-rows", "5", *RAY, "--address", cluster, "--json"]
    while kills < 40:
        running = subprocess.Popen(
            list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for line in running.stdout:
            if json.loads(line)["what"] == "begun":
                break
        try:
            running.wait(draw.uniform(1, 12))
        except subprocess.TimeoutExpired:
            running.kill()
            kills += 1
        running.communicate()
        if running.returncode >= 0:
            found = read_rows(tmp_path / "output")
            assert len({row["key"] for row in found}) == len(found) == 600
            assert [row["key"][-8:] for row in read_failures(tmp_path / "output")] == ["0300.jpg"]
            whole(tmp_path / "output")
            shutil.rmtree(tmp_path / "output")


@pytest.fixture
def nodes(monkeypatch) -> Iterator[Any]:
    """A cluster of two nodes on this machine, each with one processor."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    each = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    found = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
    found.add_node(**each)
    found.wait_for_nodes()
    yield found
    found.shutdown()


def works(node: Any) -> bool:
    """Whether one of our workers runs there."""
    pids = ",".join(str(info.process.pid) for info in node.all_processes["raylet"])
    command = [shutil.which("pgrep"), "-P", pids, "-f", "MapWorker"]
    return not subprocess.run(command, capture_output=True).returncode


@pytest.mark.coverage
def test_a_node_that_dies_loses_and_doubles_nothing(nodes, tmp_path, whole):
    samples = [path.read_bytes() for path in sorted(IMAGES.iterdir())]
    write_folder(tmp_path / "images", [*samples * 30, b"meow"], suffix=".png")
    command = [sys.executable, "-m", "vitconvert", "embed", str(DIGITS), "images", "-o", "output"]
    command += ["--shard-rows", "5", *map(str, RAY), "--address", nodes.address, "--json"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    (second,) = nodes.worker_nodes
    told = []
    for line in running.stdout:
        told.append(json.loads(line)["what"])
        if second.any_processes_alive() and told.count("shard") >= 3 and works(second):
            nodes.remove_node(second, allow_graceful=False)
    assert running.wait() == 1 and not second.any_processes_alive()
    assert told.count("shard") == 61
    found = read_rows(tmp_path / "output")
    assert len({row["key"] for row in found}) == len(found) == 300
    assert [row["key"][-8:] for row in read_failures(tmp_path / "output")] == ["0300.png"]
    whole(tmp_path / "output")


# Why Ray Data's own readers and checkpoints are not used.


def written_twice(make: Callable[[], Any], folder: Path) -> int:
    """How many rows there are after a dataset was written, and once more, with checkpoints."""
    from ray.data.checkpoint import CheckpointConfig

    context = ray.data.DataContext.get_current()
    for _ in range(2):
        context.checkpoint_config = CheckpointConfig(
            id_column="path",
            checkpoint_path=str(folder / "checkpoint"),
            delete_checkpoint_on_success=False,
        )
        try:
            make().write_parquet(str(folder / "output"))
        finally:
            context.checkpoint_config = None
    return len(pq.read_table(folder / "output"))


def finished_images_are_not_read_again(tmp_path):
    log = tmp_path / "log"

    class Logged(ray.data.Datasource):
        def estimate_inmemory_data_size(self):
            return 100

        def get_read_tasks(self, parallelism, *_args, **_options):
            def read():
                with log.open("a") as file:
                    file.write("read\n")
                return [pa.table({"path": ["a", "b"], "bytes": [b"1", b"2"]})]

            stated = ray.data.block.BlockMetadata(
                num_rows=2, size_bytes=100, input_files=None, exec_stats=None
            )
            return [ray.data.ReadTask(read, stated)]

    if written_twice(lambda: ray.data.read_datasource(Logged()), tmp_path) == 2:
        assert log.read_text() == "read\n"


def names_of_a_list_are_not_doubled(tmp_path):
    names = [{"path": str(number)} for number in range(10)]
    assert written_twice(lambda: ray.data.from_items(names), tmp_path) == 10


def count_of_archives(tmp_path: Path) -> int:
    write_tar(tmp_path / "a.tar", contents(4))
    cut = write_tar(tmp_path / "whole.tar", contents(4)).read_bytes()[: 3 * 1024 + 600]
    (tmp_path / "b.tar").write_bytes(cut)
    given = [str(tmp_path / name) for name in ("a.tar", "b.tar")]
    return ray.data.read_webdataset(given, decoder=None).count()


def a_damaged_archive_is_given_up_alone(tmp_path):
    assert count_of_archives(tmp_path) >= 4


def images_before_the_damage_are_kept(tmp_path):
    context = ray.data.DataContext.get_current()
    context.max_errored_blocks = -1
    try:
        assert count_of_archives(tmp_path) == 7
    finally:
        context.max_errored_blocks = 0


@pytest.mark.coverage
@pytest.mark.usefixtures("cluster")
@pytest.mark.xfail(strict=True, reason="Ray Data 2.60 does not")
@pytest.mark.parametrize(
    "promise",
    [
        finished_images_are_not_read_again,
        names_of_a_list_are_not_doubled,
        a_damaged_archive_is_given_up_alone,
        images_before_the_damage_are_kept,
    ],
)
def test_what_ray_data_alone_would_keep(tmp_path, promise):
    promise(tmp_path)


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `ray.init` is called with."""
    calls: list[dict[str, Any]] = []
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **arguments: calls.append(arguments))
    monkeypatch.setattr("ray.shutdown", lambda: None)
    return calls


def test_nothing_is_reported_to_anybody(no_cluster):
    with ray_engine._cluster(None):
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert [call["include_dashboard"] for call in no_cluster] == [False]


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_error_no_cluster_at_the_address(no_cluster, prefix):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"{prefix}127.0.0.1:{port}"
    with pytest.raises(SourceError) as error, ray_engine._cluster(address):
        pass
    assert error.value.evidence["address"] == address
    assert not no_cluster


@pytest.mark.parametrize(
    ("device", "gpus", "hint"),
    [
        ("cpu", 1, "--device cuda uses them."),
        ("cuda", 0, "--gpus-per-worker 1 asks for one."),
    ],
)
def test_error_gpus_that_are_not_used_or_not_asked_for(run, tmp_path, device, gpus, hint):
    output = ("-o", tmp_path / "x", "--engine", "ray", "--device", device)
    code, out, err = run("embed", DIGITS, IMAGES, *output, "--gpus-per-worker", gpus)
    assert (code, out) == (2, "")
    assert "  The workers' GPUs and the device do not fit together.\n" in err
    assert err.endswith(f"  hint: {hint}\n")
