"""Options and commands of earlier versions -> how they are spelled now."""

from __future__ import annotations

from collections.abc import Mapping

EARLIER_COMMANDS = {"evaluate": "hgpart partition MODEL --partition FILE"}

OPTIONS = {
    "--grain": "--modelling grain=NAME",
    "--linear": "--modelling linear=NAME",
    "--norms": "--modelling norms=NAME",
    "--inference": "--modelling training=no",
    "--bytes-per-element": "--modelling bytes-per-element=N",
    "--no-input-vertex": "--modelling input-vertex=no",
    "--no-output-vertex": "--modelling output-vertex=no",
    "--profile-device": "--work profile,device=DEVICE",
    "--save-work": "--work SOURCE,save=FILE",
    "--topology": "--objective links --machine FILE",
    "--memory-copies": "--memory M,copies=N",
    "--partition-file": "--write-partition FILE",
    "--in-flight": "--schedule async,in-flight=N",
    "--no-stash": "--schedule async,stash=no",
    "--recompute": "--schedule RULE,recompute=yes",
    "--one-process": "--backend threads",
    "--momentum": "--optimizer sgd,momentum=M",
    "--weight-decay": "--optimizer NAME,weight-decay=W",
    "--decay": "--optimizer NAME,decay=yes",
    "--every": "--checkpoint FOLDER,every=N",
    "--epochs": "--until ACCURACY,epochs=N",
    "--graphml": "--graph FILE.graphml",
    "--dot": "--graph FILE.dot",
    "--kind": "MODEL+KIND:PARTS",
    "--parts": "MODEL+KIND:PARTS",
    "--dry-run": "hgpart transform without --output",
    "--timeout": "--measure N,timeout=S",
}
BY_COMMAND: Mapping[tuple[str, str], str] = {
    ("partition", "--in-flight"): "--memory M,in-flight=N",
    ("verify", "--partition"): "--way NAME",
    ("train", "--epochs"): "--steps Nep",
    ("partition", "--strategy"): "--way NAME",
    ("compare", "--strategies"): "--ways NAME,NAME",
    **{
        (command, "--norms"): "--micro-batches M,norms=NAME"
        for command in ("run", "train", "verify")
    },
}


def now_spelled(command: str | None, option: str) -> str | None:
    """How an option of a command is spelled now, if it was one.

    >>> now_spelled("partition", "--grain"), now_spelled("partition", "--colour")
    ('--modelling grain=NAME', None)
    """
    return BY_COMMAND.get((command or "", option)) or OPTIONS.get(option)
