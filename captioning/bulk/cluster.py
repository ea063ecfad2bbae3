"""Joins or starts a Ray cluster, uploads the code to it, and places actors on its machines."""

import glob
import os
import signal
import socket
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from captioning.bulk.request import require
from captioning.captioners.registry import CAPTIONERS
from captioning.runtime.errors import UserError, one_line

ROOT = Path(__file__).resolve().parents[2]
# The project's folders that are uploaded for the actors. The libraries are not uploaded: each
# machine must have them installed.
CODE = {"captioning", "decoding", "smile", "adapters", "configs"}
CODE |= {module.partition(".")[0] for module in CAPTIONERS.values()}
CPUS = 4  # the fewest CPU cores of an actor without a GPU; a smaller machine gets one actor
SHARDS_PER_ACTOR = 16  # the most shards that an actor captions at once
STORE_BYTES = 256 << 20  # size of Ray's object store if we start Ray; it only holds captions
TIMEOUT_S = 10  # for a cluster's head to accept a connection and to answer
TOKEN = (
    "the cluster requires a token; copy ~/.ray/auth_token from its head machine to this machine, "
    "and type: export RAY_AUTH_MODE=token"
)
# An empty HTTP/2 SETTINGS frame, the first frame that client and server send (RFC 9113, 6.5).
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


class Machine(NamedTuple):
    """A machine of the cluster that is alive.

    id, name: Ray's id of the machine and its host name. actors: how many actors fit on the machine.
    resources: keyword arguments of Ray that reserve one actor's GPU and CPU cores.
    """

    id: str
    name: str
    actors: int
    resources: dict[str, float]


class Cluster:
    """A Ray cluster. `device` is the kind of device on which its actors run.

    address: "auto", or HOST:PORT of a cluster to which this machine belongs. With None, `join`
    starts Ray on this machine, and `close` stops it. device: auto, cpu or cuda. The constructor
    raises UserError.
    """

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
        """Connect to the cluster unless already connected. Raises UserError."""
        if self.joined:
            return
        import ray
        from ray._raylet import GcsClient

        if self.address is not None:
            _check_address(self.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning
        # Under `ray job submit`, let the runtime_env below replace the job's.
        os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
        own = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        others = [f"/{glob.escape(p.name)}" for p in ROOT.iterdir() if p.name not in CODE]
        # Pass on the variable that `tune_process` has set: libgomp reads it when an actor loads
        # torch.
        variables = {k: v for k, v in os.environ.items() if k == "GOMP_SPINCOUNT"}
        before = signal.getsignal(signal.SIGTERM)  # to be restored, because ray.init replaces it
        try:
            if self.address not in (None, "auto") and os.environ.get("RAY_AUTH_MODE") != "token":
                # Fails at once if a token is required, whereas ray.init would retry for 20 s.
                GcsClient(address=self.address)
            ray.init(
                self.address or "local",
                runtime_env={
                    "working_dir": str(ROOT),
                    "excludes": [*others, "__pycache__"],
                    "env_vars": variables,
                },
                logging_level="ERROR",
                log_to_driver=False,
                **({} if self.address else own),
            )
        except Exception as error:  # ray raises many types: no cluster, wrong version, full disk
            ray.shutdown()
            where = f"--ray-address {self.address}" if self.address else "ray on this machine"
            refused = "auth_token" in f"{error} {error.__cause__}"
            reason = TOKEN if refused else one_line(error, 300)
            raise UserError(f"{where}: {reason}") from error
        finally:
            signal.signal(signal.SIGTERM, before)
        # Silence Ray's long report of a lost actor. `ActorPool` logs one line instead.
        ray._private.worker.print_to_stdstream = lambda *args, **kwargs: None
        self.joined = True

    def machines(self) -> list[Machine]:
        """Return the machines that are alive and large enough for an actor."""
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
        """Request an actor of the class `kind` on a machine, and return Ray's handle of the actor.

        Ray starts the actor when the machine has free resources. The class is called with the
        working directory.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = ray.remote(kind).options(
            max_concurrency=SHARDS_PER_ACTOR,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
            **machine.resources,
        )
        return options.remote(os.getcwd())

    def close(self) -> None:
        """Stop the actors, and Ray if this program started it."""
        if self.joined:
            import ray

            ray.shutdown()
            self.joined = False

    def _nodes(self) -> list[dict[str, Any]]:
        import ray

        return [node for node in ray.nodes() if node["Alive"]]


def _check_address(address: str) -> None:
    """Raise UserError unless a gRPC server answers at the address.

    Without this check, Ray would retry for a minute, then end the process.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(
            f"--ray-address is {address}; it has to be auto or HOST:PORT, such as node1:6379, on "
            "a machine of that cluster"
        )
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS)
            answer = connection.recv(len(SETTINGS))
    except (OSError, OverflowError, ValueError) as error:
        raise UserError(
            f"--ray-address {address}: no server answers ({error}); type: ray start --head"
        ) from error
    if answer[3:4] != SETTINGS[3:4] and os.environ.get("RAY_USE_TLS") != "1":
        raise UserError(
            f"--ray-address {address}: the server there is not Ray; give the port of Ray's head"
        )
