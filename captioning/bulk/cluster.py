"""The machines of a Ray cluster: joined or started, the code brought to them, actors placed."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from captioning.bulk.request import require
from captioning.runtime.errors import UserError, one_line

ROOT = Path(__file__).resolve().parents[2]
# What an actor imports and reads of the project; the libraries have to be on its machine.
CODE = ("captioning", "decoding", "smile", "adapters", "BLIP", "baselines", "vlm", "configs")
CPUS = 4  # of an actor on a machine without a GPU, where it has as many
SHARDS_AT_ONCE = 16  # of an actor, at most: one for each process that reads
STORE_BYTES = 256 << 20  # of a Ray of our own; captions are all that it holds
ANSWER_S = 10
TOKEN = (
    "the cluster asks for a token; copy ~/.ray/auth_token from its first machine to this one, and "
    "type: export RAY_AUTH_MODE=token"
)
SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # with which both sides of gRPC begin: RFC 9113, 6.5


class Machine(NamedTuple):
    """A machine that lives. actors: how many it has room for, each with those `resources`."""

    id: str
    name: str
    actors: int
    resources: dict[str, float]


class Cluster:
    """address: "auto" or HOST:PORT, of a cluster that this machine is in; None is a Ray of our own
    on this machine, which ends with the program. device: auto, cpu or cuda. Raises UserError."""

    def __init__(self, address: Optional[str], device: str):
        require("ray", "--engine ray")
        if device not in ("auto", "cpu", "cuda"):
            raise UserError(f"--device is {device}; with --engine ray it is auto, cpu or cuda")
        self.address = address
        self.joined = False
        gpus = torch.cuda.is_available()
        if address is not None and device != "cpu":
            self.join()
            gpus = any("GPU" in node["Resources"] for node in self._nodes())
        if device == "cuda" and not gpus:
            raise UserError("--device is cuda, and no machine has a GPU; add one or use cpu")
        self.device = torch.device("cuda" if gpus and device != "cpu" else "cpu")

    def join(self) -> None:
        """Be in the cluster from now on. Raises UserError."""
        if self.joined:
            return
        import ray
        from ray._raylet import GcsClient

        if self.address is not None:
            _look(self.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or ray warns of it
        os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")  # of `ray job submit`
        own = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        before = signal.getsignal(signal.SIGTERM)  # which ray takes for itself
        try:
            if self.address not in (None, "auto") and os.environ.get("RAY_AUTH_MODE") != "token":
                GcsClient(address=self.address)  # ray.init tries for 20 s to do without a token
            with _code() as folder:
                ray.init(
                    self.address or "local",
                    runtime_env={"working_dir": folder},
                    logging_level="ERROR",
                    log_to_driver=False,
                    **({} if self.address else own),
                )
        except Exception as error:  # of many types: no such cluster, another version, a full disk
            ray.shutdown()
            where = f"--ray-address {self.address}" if self.address else "ray on this machine"
            refused = "auth_token" in f"{error} {error.__cause__}"
            reason = TOKEN if refused else one_line(error, 300)
            raise UserError(f"{where}: {reason}") from error
        finally:
            signal.signal(signal.SIGTERM, before)
        # A lost actor is told of in a line, by us; ray would print a paragraph.
        ray._private.worker.print_to_stdstream = lambda *given, **named: None
        self.joined = True

    def machines(self) -> list[Machine]:
        """Those that live now and can caption."""
        found = []
        for node in self._nodes():
            has = node["Resources"]
            gpus, cpus = int(has.get("GPU", 0)), int(has.get("CPU", 0))
            if self.device.type == "cuda":
                actors, resources = gpus, {"num_gpus": 1, "num_cpus": 0}
            else:
                actors = min(cpus, max(1, cpus // CPUS))
                resources = {"num_cpus": cpus // max(actors, 1)}
            if actors:
                name = node["NodeManagerHostname"]
                found.append(Machine(node["NodeID"], name, actors, resources))
        return found

    def actor(self, kind: type, machine: Machine) -> Any:
        """Ask for an actor on that machine, which begins once it has room."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = ray.remote(kind).options(
            max_concurrency=SHARDS_AT_ONCE + 1,  # and to be told to stop
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
            **machine.resources,
        )
        return options.remote(os.getcwd())

    def close(self) -> None:
        """End the actors, and a Ray of our own."""
        if self.joined:
            import ray

            ray.shutdown()
            self.joined = False

    def _nodes(self) -> list[dict[str, Any]]:
        import ray

        return [node for node in ray.nodes() if node["Alive"]]


def _look(address: str) -> None:
    """Raise UserError unless somebody answers; ray would try for a minute, and end the process."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(
            f"--ray-address is {address}; it has to be auto or HOST:PORT, such as node1:6379, on "
            "a machine of that cluster"
        )
    try:
        with socket.create_connection((host, int(port)), ANSWER_S) as connection:
            connection.settimeout(ANSWER_S)
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS)
            answer = connection.recv(len(SETTINGS))
    except (OSError, OverflowError, ValueError) as error:
        raise UserError(
            f"--ray-address {address}: nobody answers ({error}); start one with `ray start --head`"
        ) from error
    if answer[3:4] != SETTINGS[3:4] and os.environ.get("RAY_USE_TLS") != "1":
        raise UserError(f"--ray-address {address}: what answers is not Ray; give the head's port")


@contextlib.contextmanager
def _code() -> Iterator[str]:
    """A folder of what actors need of the project, for ray to bring to every machine."""
    with tempfile.TemporaryDirectory(prefix="captioning") as folder:
        for name in CODE:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=ignore)
        yield folder
