"""The engine "ray": one cluster of two processors, on which everything that can happen happens."""

import errno
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import run
from tests.embedding import test_documents
from tests.packages import ray
from vitconvert.demo.demonstration import DIGITS
from vitconvert.embedding import embedder, ray_engine
from vitconvert.embedding.checking import check
from vitconvert.errors import SourceError

__all__ = ["run"]  # a fixture

IMAGES = DIGITS / "samples"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=f"/tmp/ray-{os.getpid()}",  # sockets have short names
    )
    yield
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
            compute = loaded.features

            def watched(pictures):
                for picture in pictures:
                    at_image(picture.name)
                    yield picture

            loaded.features = lambda pictures: compute(watched(pictures))
            return loaded

    return Eventful


def rows(output: Path) -> dict[str, Any]:
    table = pq.read_table(output / "features")
    features = table.column("features").combine_chunks().flatten().to_numpy()
    return dict(zip(table.column("key").to_pylist(), features.reshape(len(table), -1), strict=True))


def wait_until_all_is_free() -> None:
    for _ in range(100):
        if ray.available_resources().get("CPU") == 2:
            return
        time.sleep(0.1)
    raise AssertionError(ray.available_resources())


RAY = ("--engine", "ray", "--threads", 1)


def a_part_of_the_plan_is_as_the_local_engine_computes_it(run, monkeypatch):
    Path("samples/0a.png").write_text("meow")
    everything = ("embed", "model", "samples", "--shard-rows", 2, "-q")
    assert run(*everything, "-o", "ours", "--plan").code == 0
    assert run(*everything, "-o", "ours", "--only", "1/2", *RAY).code == 1
    assert check("ours").shards == 3
    assert run(*everything, "-o", "ours", *RAY, "--workers", 1).code == 1
    assert run(*everything, "-o", "here").code == 1
    Path("samples/0a.png").unlink()
    assert check("ours").whole and check("ours").failed == 1
    found, wanted = rows(Path("ours")), rows(Path("here"))
    assert found.keys() == wanted.keys() and len(found) == 10
    largest = max(abs(row).max() for row in wanted.values())
    assert max(abs(found[key] - wanted[key]).max() for key in wanted) < 1e-5 * largest


def a_shard_is_redone_or_given_up_while_others_finish(run, monkeypatch):
    monkeypatch.setattr(ray_engine, "_PATIENCE", 20)  # others may keep processors busy
    unlucky = Path.cwd() / "unlucky"

    def die(name):
        if name == "3.png":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "6.png" and not unlucky.exists():
            unlucky.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    deadly = task_that(at_load=lambda: time.sleep(3), at_image=die)
    monkeypatch.setattr(embedder, "Task", deadly)
    everything = ("embed", "model", "samples", "-o", "deadly", "--shard-rows", 2)
    code, _, err = run(*everything, *RAY)
    assert code == 1 and unlucky.exists()
    assert "shard 1 was given up: its worker died 3 times" in err
    assert err.endswith("8 images in 4 shards; given up: 1\n")
    assert check("deadly").problems == ("features/part-000001-of-000005.parquet is missing",)
    assert len(rows(Path("deadly"))) == 8
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
    ray.get([holder.there.remote() for holder in holders])
    code, out, err = run("embed", "model", "samples", "-o", "starved", *RAY)
    assert (code, out) == (2, "")
    assert "  No worker got its processors within 2 seconds.\n" in err
    assert "  a worker  1 CPUs, 0 GPUs\n  free      0 CPUs, 0 GPUs\n" in err
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
        begun.touch()
        time.sleep(60)

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
    assert "  The operating system refused: No space left on device.\n" in err
    assert check("full").shards == 0


def commands_and_the_pipeline_of_the_document(run, monkeypatch):
    for command in test_documents.COMMANDS:
        if "ray" in command:
            assert run(*command).code == 0
    scope = {}
    with warnings.catch_warnings(action="ignore"):  # Ray Data's, of its own options
        exec(compile(test_documents.block_of("ray"), "ray", "exec"), scope)
    found = {Path(row["path"]).name: row["features"] for row in scope["features"]}
    wanted = dict(zip(("one.jpg", "two.png"), scope["rows"], strict=True))
    assert all(abs(found[name] - wanted[name]).max() < 1e-4 for name in wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_cluster(run, tmp_path, monkeypatch, subtests):
    test_documents.make_workplace(tmp_path)
    shutil.copytree(DIGITS, tmp_path / "model")
    shutil.copytree(IMAGES, tmp_path / "samples")
    monkeypatch.chdir(tmp_path)  # relative names lead there in workers too
    for scenario in (
        a_part_of_the_plan_is_as_the_local_engine_computes_it,
        a_shard_is_redone_or_given_up_while_others_finish,
        processors_that_others_hold_are_an_error,
        a_worker_that_fits_nowhere_is_an_error,
        an_interrupt_frees_the_workers,
        an_error_of_a_worker_ends_the_run,
        commands_and_the_pipeline_of_the_document,
    ):
        with subtests.test(scenario.__name__), pytest.MonkeyPatch.context() as patched:
            scenario(run, patched)
            wait_until_all_is_free()


def test_a_worker_answers_before_it_imports_anything():
    sent = ray.cloudpickle.dumps(ray_engine._worker_class())
    code = (
        "import pickle, sys; worker = pickle.load(sys.stdin.buffer)(); worker.alive(); "
        "print({'torch', 'vitconvert', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout == b"set()\n"


def test_what_workers_are_told_is_small():
    work = ray_engine._Work(
        folder=None, plan=None, task=embedder.Task(model="model"), store="float32", base="/"
    )
    assert len(pickle.dumps(work)) < 10_000


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
