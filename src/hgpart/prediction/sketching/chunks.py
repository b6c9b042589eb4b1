"""Sketch -> Chunks: where parts wait, and the messages between these places.

Chunks are those of `hgpart.execution.instructions`: they begin with what they await. A piece's
instructions are its receives, its step, and its sends, each behind a pack if only some of the
channels or rows travel. Backward passes go through them in reverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Bool, Float64, Int64
from hgpart.prediction.sketching.sketch import Sketch
from hgpart.sequences import Sequences, sums_of


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of all parts in one direction, part by part.

    Attributes
    ----------
    part_pointers : int64 array, shape (k + 1,)
        The first chunk of each part, and the number of chunks.
    pieces : Sequences
        The pieces whose steps each chunk computes, in order.
    awaits, sends : Sequences
        Numbers of the messages that each chunk awaits, and sends at its end.
    senders, receivers : int64 arrays, shape (messages,)
    nbytes : float64 array, shape (messages,)
        Bytes for a batch of one sample.
    last_piece : int64 array, shape (messages,)
        The piece with the last of a message's transfers.
    transfers, handled : int64 and float64 arrays, shape (chunks,)
        Transfers that each chunk packs or unpacks, and their bytes for a batch of one sample.
    """

    part_pointers: Int64
    pieces: Sequences
    awaits: Sequences
    sends: Sequences
    senders: Int64
    receivers: Int64
    nbytes: Float64
    last_piece: Int64
    transfers: Int64
    handled: Float64


def forward_chunks(sketch: Sketch, nbytes: Int64) -> Chunks:
    """Chunks of a forward pass; `nbytes` are those of each transfer for one sample."""
    count = len(sketch.pieces)
    receives = np.bincount(sketch.read_in, minlength=count) > 0
    sends = np.bincount(sketch.sent_in, minlength=count) > 0
    instructs = np.array([piece.instructs for piece in sketch.pieces], dtype=np.bool_)
    computes = np.array([piece.steps for piece in sketch.pieces], dtype=np.bool_)
    leaves = np.bincount(sketch.sent_in[sketch.transfers.at_once], minlength=count) > 0
    number, of_piece = -1, np.zeros(count, dtype=np.int64)
    pointers = [0]
    for begin, end in zip(sketch.part_pointers[:-1], sketch.part_pointers[1:], strict=True):
        number += 1
        works = sent = False  # whether the last instruction is not an await; what leaves at once
        for piece in range(begin, end):
            if receives[piece]:
                number += works
                sent = sent and not works
                works = False
            if sent and computes[piece]:
                number += 1
                sent = False
            works = works or bool(instructs[piece] or sends[piece])
            sent = sent or bool(leaves[piece])
            of_piece[piece] = number
        pointers.append(number + 1)
    every = np.arange(len(nbytes))
    return _chunks(
        sketch,
        pointers=np.array(pointers, dtype=np.int64),
        of_piece=of_piece,
        sent=(of_piece[sketch.sent_in], sketch.sent_in, every),
        awaited=of_piece[sketch.read_in],
        ends=(sketch.transfers.senders, sketch.transfers.receivers),
        nbytes=nbytes,
        reverse=False,
    )


def backward_chunks(sketch: Sketch, nbytes: Int64, returned: Bool) -> Chunks:
    """Chunks of a backward pass, in which only the gradients of `returned` transfers travel."""
    count, some = len(sketch.pieces), np.flatnonzero(returned)
    sent_in, read_in = sketch.sent_in[some], sketch.read_in[some]
    packed = sketch.transfers.packed[some]
    # Sends in reverse, part by part: each waits for a gradient.
    parts = sketch.transfers.senders[some]
    order = np.lexsort((-some, -sent_in, parts))
    first = np.ones(len(order), dtype=np.bool_)  # of its piece
    first[1:] = sent_in[order][1:] != sent_in[order][:-1]
    cut = np.zeros(len(order), dtype=np.bool_)
    cut[1:] = packed[order][:-1] & ~first[1:]
    # Before a piece's first one, unless nothing was done yet.
    works = np.zeros(count, dtype=np.bool_)
    computes = np.array([piece.instructs for piece in sketch.pieces], dtype=np.bool_)
    computes |= np.bincount(sketch.read_in[some], minlength=count) > 0
    computes |= np.bincount(sketch.sent_in[sketch.transfers.packed], minlength=count) > 0
    for begin, end in zip(sketch.part_pointers[:-1], sketch.part_pointers[1:], strict=True):
        later = np.maximum.accumulate(computes[begin:end][::-1])[::-1]
        works[begin:end] = np.append(later[1:], False)
    cut[first] = works[sent_in[order][first]]
    # Chunks are numbered in the parts' reversed order of pieces.
    cuts = np.bincount(sent_in[order][cut], minlength=count)
    of_piece, pointers = np.zeros(count, dtype=np.int64), [0]
    for begin, end in zip(sketch.part_pointers[:-1], sketch.part_pointers[1:], strict=True):
        passed = np.cumsum(cuts[begin:end][::-1])[::-1]
        of_piece[begin:end] = pointers[-1] + passed
        pointers.append(pointers[-1] + 1 + int(cuts[begin:end].sum()))
    # A send's chunk is behind those of all sends that come later in its piece.
    within = np.cumsum(cut)
    before = of_piece[sent_in[order]] - cuts[sent_in[order]]
    starts = np.maximum.accumulate(np.where(first, within - cut, 0))
    awaited = np.zeros(len(some), dtype=np.int64)
    awaited[order] = before + within - starts
    return _chunks(
        sketch,
        pointers=np.array(pointers, dtype=np.int64),
        of_piece=of_piece,
        sent=(of_piece[read_in], -read_in, -sketch.operands[some], -some),
        awaited=awaited,
        ends=(sketch.transfers.receivers[some], sketch.transfers.senders[some]),
        nbytes=nbytes[some],
        reverse=True,
    )


def _chunks(
    sketch: Sketch,
    pointers: Int64,
    of_piece: Int64,
    sent: tuple[Int64, ...],
    awaited: Int64,
    ends: tuple[Int64, Int64],
    nbytes: Int64,
    reverse: bool,
) -> Chunks:
    """Join the transfers from a chunk to a receiver to messages.

    Parameters
    ----------
    of_piece : int64 array, shape (pieces,)
        The chunk of each piece's step.
    sent : int64 arrays, shape (transfers,)
        The chunk that sends each transfer; then what they are ordered by within a chunk.
    awaited : int64 array, shape (transfers,)
        The chunk that awaits it.
    """
    chunk, *place = sent
    senders, receivers = ends
    count, k = int(pointers[-1]), sketch.k
    order = np.lexsort((*place[::-1], chunk))
    keys = (chunk * k + receivers)[order]
    _, first, named = np.unique(keys, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first, kind="stable")  # messages of a chunk by their first transfer
    rank = np.empty(len(first), dtype=np.int64)
    rank[by_appearance] = np.arange(len(first))
    message = np.empty(len(order), dtype=np.int64)
    message[order] = rank[named]
    messages = len(first)
    example = order[first[by_appearance]]
    last = np.zeros(messages, dtype=np.int64)
    last[message[order]] = np.abs(place[0])[order]  # later ones overwrite earlier ones
    places = np.arange(len(of_piece))
    pieces = np.lexsort((-places if reverse else places, of_piece))
    computing = np.array([piece.steps for piece in sketch.pieces], dtype=np.bool_)
    pieces = pieces[computing[pieces]]
    work = np.bincount(chunk, minlength=count) + np.bincount(awaited, minlength=count)
    handled = sums_of(chunk, nbytes, count) + sums_of(awaited, nbytes, count)
    return Chunks(
        part_pointers=pointers,
        pieces=Sequences(np.searchsorted(of_piece[pieces], np.arange(count + 1)), pieces),
        awaits=Sequences.of_pairs(awaited, message, count),
        sends=Sequences(np.searchsorted(chunk[example], np.arange(count + 1)), np.arange(messages)),
        senders=senders[example],
        receivers=receivers[example],
        nbytes=sums_of(message, nbytes, messages),
        last_piece=last,
        transfers=work,
        handled=handled,
    )
