"""Groups of options that several commands have; each knows what its options ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import hgpart
from hgpart.cli.forms import keyed, one_value, yes_or_no
from hgpart.cli.grouping import Options
from hgpart.cli.options import InputTexts, Names, Texts, Timeout, Whole, WholeOrAuto
from hgpart.cli.processes import device_of_each
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError, not_one_of
from hgpart.run.processes.transports import TRANSPORTS
from hgpart.schedule_wanted import Scheduling, scheduling_of

if TYPE_CHECKING:
    from hgpart.cli.named_model import NamedModel
    from hgpart.partition.problem.constraints import Constraints


STEERED = ("pin", "together", "apart", "no_split", "constraints")  # where layers must lie
COUNTED = ("input_shape", "batch_size", "modelling", "work")  # which hypergraph it is, but slices
THREADS, TIMEOUT = "threads", 300.0
SWITCHES: dict[str, Callable[[str], Any]] = {
    **{"grain": str, "linear": str, "norms": str, "training": yes_or_no},
    **{"input_vertex": yes_or_no, "output_vertex": yes_or_no, "bytes_per_element": int},
}


@dataclass(frozen=True, kw_only=True)
class Vertices(Options):
    """How a model becomes a hypergraph.

    Attributes
    ----------
    slices : S
        Number of slices of the batch; a device may compute a filter for some slices only.
    modelling : KEY=VALUE,...
        How the model becomes a hypergraph. grain=coarse (a vertex per filter) or fine (one per
        input channel of each filter); linear=neuron (a vertex per output of a linear layer) or
        layer (one for the whole layer); norms=slice or batch (what the statistics of batch norms
        cover); training=yes or no (parameters have gradients, which travel); input-vertex=yes or no
        and output-vertex=yes or no (sending the inputs and the result counts); bytes-per-element=N
        (default: each tensor's own). The first value of each is the default.
    """

    panel: ClassVar[str] = "What is counted"
    slices: Whole = "1"
    modelling: str | None = None
    input_shape: InputTexts = None

    def modelling_of(self, batch_size: int) -> hgpart.Modelling:
        """These options for batches of a size, checked."""
        values, settings = keyed("--modelling", self.modelling, **SWITCHES)
        if values:
            raise ArgumentError(f"--modelling {values[0]}: accepted is KEY=VALUE, as in grain=fine")
        slices = 1 if self.slices == "auto" else self.slices
        return hgpart.Modelling(batch_size=batch_size, slices=slices, **settings)


@dataclass(frozen=True, kw_only=True)
class Counting(Vertices):
    """How a model becomes a hypergraph, and how its work is measured.

    Attributes
    ----------
    bands : B
        Number of bands of rows of each layer's maps; a device may compute a filter for some rows
        only, and is sent the rows at the border. See 'hgpart trace --rows'.
    batch_size : N
        Samples per batch.
    work : flops|profile|FILE
        Measure of load: flops (multiply-accumulates), profile (seconds, measured now), or a file
        of 'hgpart profile'. Append ,device=DEVICE to profile on another device than the CPU, and
        ,save=FILE to keep the figures for a later --work FILE.
    """

    bands: Whole = "1"
    batch_size: int = 32
    work: str = "flops"

    def modelling_of(self, batch_size: int) -> hgpart.Modelling:
        """These options for batches of a size, checked."""
        bands = 1 if self.bands == "auto" else self.bands
        return replace(super().modelling_of(batch_size), bands=bands)

    def check_work(self) -> None:
        """Refuse a --work that can't be measured or read, before the model is traced."""
        source, device, _ = self.work_asked()
        if device is not None and source != "profile":
            raise ArgumentError(f"--work {self.work}: only profile measures on a device")
        if source not in ("flops", "profile") and not Path(source).is_file():
            raise not_one_of("work", source, ("flops", "profile"), "and a file that exists")

    def measured(
        self,
        stage: Stages,
        named: NamedModel,
    ) -> hgpart.Work:
        """The work that --work asks for, kept in a file where that is asked for, too."""
        from hgpart.work.layer_times import load_any_work

        source, device, kept = self.work_asked()
        graph = named.graph
        profiled = (named.module, named.traced) if source == "profile" else None
        with stage("work", spinner=False):  # profiling shows its own progress
            if source == "flops":
                work = hgpart.flops(graph)
            elif profiled is not None:
                size, where = self.batch_size, device or "cpu"
                work = hgpart.profile(*profiled, graph, batch_size=size, device=where)
            else:
                work = load_any_work(source, graph, self.batch_size)
            if kept is not None:
                hgpart.files.save_work(work, graph, kept)
        return work

    def work_asked(self) -> tuple[str, str | None, Path | None]:
        """The source of --work, the device to profile on, and the file to keep the work in."""
        if Path(self.work).is_file():
            return self.work, None, None
        values, settings = keyed("--work", self.work, device=str, save=Path)
        source = one_value("--work", self.work, values)
        return source or "flops", settings.get("device"), settings.get("save")

    @property
    def kept_work(self) -> Path | None:
        """The file to keep the work in."""
        return self.work_asked()[2]


@dataclass(frozen=True, kw_only=True)
class AnyCounting(Counting):
    """The same with --slices auto and --bands auto.

    Attributes
    ----------
    slices : S|auto
        Number of slices of the batch; a device may compute a filter for some slices only. auto:
        the number that saves the most traffic.
    bands : B|auto
        Number of bands of rows of each layer's maps; a device may compute a filter for some rows
        only, and is sent the rows at the border. See 'hgpart trace --rows'. auto: the number that
        saves the most traffic; 1 where none saves any.
    """

    slices: WholeOrAuto = "1"
    bands: WholeOrAuto = "1"


@dataclass(frozen=True, kw_only=True)
class Steering(Options):
    """Where layers must lie.

    LAYER is a layer that 'hgpart trace' lists, a module with layers in it such as layer1, or a
    pattern such as features.*; the model's input and its result are layers, too.

    Attributes
    ----------
    pin : LAYER=DEVICES
        Compute a layer on these devices only, as in features.0=0, 'features.*=0-3', input=0, or
        'features.0[0:32]=0,1' for some of its filters. Repeat the option for other layers.
    together : LAYER,LAYER,...
        Compute these layers whole on one and the same device: all filters, samples and rows.
    apart : LAYER,LAYER,...
        Let no device compute any of two of these.
    no_split : LAYER
        Compute each of these layers whole on one device.
    constraints : FILE
        Read such constraints from a JSON file; those of the options hold, too.
    """

    panel: ClassVar[str] = "Where layers must lie"
    pin: Texts = None
    together: Texts = None
    apart: Texts = None
    no_split: Texts = None
    constraints: Path | None = None

    def wanted(self) -> Constraints:
        """These constraints, with those of the file."""
        from hgpart.partition.problem.constraints import constraints, load_constraints

        said = constraints(
            self.pin or (), self.together or (), self.apart or (), self.no_split or ()
        )
        return said if self.constraints is None else load_constraints(self.constraints).also(said)


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """The schedule of a step.

    Attributes
    ----------
    micro_batches : M
        Micro-batches per batch. Default: those of the plan or of the schedule file; run and
        train choose where there are none, other commands take 1.
    schedule : RULE|FILE
        Order of work in a step: sequential, gpipe, 1f1b, zero-bubble, greedy, or a file of 'hgpart
        show --schedule RULE -o FILE'; or training without a flush between steps: async, in one
        order; dynamic, in which idle parts take what is ready, another order in each run; or turns,
        the same with each batch whole on the devices of one slice of the plan, in turn. Append
        ,in-flight=N for the batches that each part may have begun under these (default 2),
        ,stash=no to keep no older weights for them, and ,recompute=yes to run forward passes again
        in backward where that saves memory. Default: the plan's, or else greedy.
    """

    panel: ClassVar[str] = "A step"
    micro_batches: str | None = None
    schedule: str | None = None

    def scheduling(self, planned: Scheduling | None = None) -> Scheduling:
        """The schedule that is asked for, by default that of a plan."""
        rule, settings = self.schedule, dict[str, Any]()
        if rule is not None and not Path(rule).is_file():
            values, settings = keyed(
                "--schedule", rule, in_flight=int, stash=yes_or_no, recompute=yes_or_no
            )
            rule = one_value("--schedule", rule, values)
        return scheduling_of(rule, self._micro_batches()[0], planned=planned, **settings)

    def wanted(self, planned: Scheduling | None) -> Scheduling | None:
        """The same; None where neither the options nor a plan say one."""
        is_open = planned is None and self.schedule is None and self._micro_batches()[0] is None
        return None if is_open else self.scheduling(planned)

    def _micro_batches(self, **kinds: Callable[[str], Any]) -> tuple[int | None, dict[str, Any]]:
        text, settings = None, dict[str, Any]()
        if self.micro_batches is not None:
            values, settings = keyed("--micro-batches", self.micro_batches, **kinds)
            text = one_value("--micro-batches", self.micro_batches, values)
        if text is not None and not text.isdecimal():
            raise ArgumentError(f"--micro-batches {text}: accepted is a whole number, at least 1")
        return None if text is None else int(text), settings


@dataclass(frozen=True, kw_only=True)
class StepWithNorms(StepOptions):
    """The same where batch norms are run.

    Attributes
    ----------
    micro_batches : M
        Micro-batches per batch. Append ,norms=batch to update the running statistics of batch
        norms once per batch, not per micro-batch. Default: those of the plan or of the schedule
        file; run and train choose where there are none, other commands take 1.
    """

    @property
    def norms(self) -> str:
        """When running statistics are updated, as `hgpart.place` takes it."""
        return str(self._micro_batches()[1].get("norms", "micro-batch"))

    def _micro_batches(self, **kinds: Callable[[str], Any]) -> tuple[int | None, dict[str, Any]]:
        return super()._micro_batches(norms=str, **kinds)


@dataclass(frozen=True, kw_only=True)
class Ranks(Options):
    """The processes of the parts, and where they are.

    Attributes
    ----------
    devices : D,D,...
        Device of each part, or one for all: cpu, cuda, cuda:1, or auto (the GPUs of this machine in
        turn, or else the CPU).
    backend : gloo|nccl|threads
        Transport of the messages: gloo (between processes, through the CPU), nccl (between
        processes, from GPU to GPU) or threads (of one process).
    """

    panel: ClassVar[str] = "The devices"
    devices: Names = "cpu"
    backend: str = TRANSPORTS[0]  # called as in torch.distributed, which torchrun's users know
    timeout: Timeout = TIMEOUT

    @property
    def in_threads(self) -> bool:
        """Whether the parts are threads of this process."""
        return self.backend == THREADS

    def check_transport(self) -> None:
        """Refuse an unknown transport, without an import of torch."""
        if self.backend not in (*TRANSPORTS, THREADS):
            raise not_one_of("backend", self.backend, (*TRANSPORTS, THREADS))

    def check_timeout(self) -> None:
        """Refuse a timeout that is out of range."""
        from hgpart.run.processes.connection import check_timeout

        check_timeout(self.timeout)

    def of_each(self, k: int) -> tuple[str, ...]:
        """The device of each of k parts."""
        return device_of_each(self.devices, k)


@dataclass(frozen=True, kw_only=True)
class CountedRanks(Ranks):
    """The same, whose plan may be made here.

    Attributes
    ----------
    devices : D,D,...|N
        Device of each part, or one for all: cpu, cuda, cuda:1, or auto (the GPUs of this machine in
        turn, or else the CPU). Without --plan, the number of CPU processes to plan for, or such a
        list.
    """

    @property
    def number(self) -> int | None:
        """The number of devices, if that is what is given."""
        (first, *others) = self.devices
        return int(first) if first.isdecimal() and not others else None

    @property
    def count(self) -> int | None:
        """The number of devices to plan for, if it is known."""
        return len(self.devices) if len(self.devices) > 1 else self.number

    @property
    def names(self) -> tuple[str, ...]:
        """The devices by name."""
        return ("cpu",) if self.number is not None else tuple(self.devices)

    def of_each(self, k: int) -> tuple[str, ...]:
        """The device of each of k parts."""
        return device_of_each(self.names, k)


def runs_and_timeout(measure: str, least: int = 1) -> tuple[int, float]:
    """The count of --measure, and the seconds to wait for a silent process."""
    from hgpart.run.processes.connection import check_timeout

    values, settings = keyed("--measure", measure, timeout=float)
    text = one_value("--measure", measure, values) or ""
    if not text.isdecimal() or int(text) < least:
        raise ArgumentError(f"--measure {measure}: accepted is a whole number, at least {least}")
    timeout: float = settings.get("timeout", TIMEOUT)
    check_timeout(timeout)
    return int(text), timeout
