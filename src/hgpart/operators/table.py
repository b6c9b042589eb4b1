"""The operator table: one record for each ATen operator, and `channel_rule` for users' own.

An operator without a record works channel by channel if torch tags it as pointwise; otherwise it
mixes all channels. Tracing, layers and placement ask `operator_of` what an operator is; they name
operators only to call them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

import torch
from torch import fx

from hgpart.errors import ArgumentError, TraceError, not_one_of
from hgpart.operators import (
    channelwise,
    complex_numbers,
    moving,
    products,
    sample_places,
    samples,
    spatial,
)
from hgpart.operators.calls import place_of
from hgpart.operators.channelwise import over_last, same_place
from hgpart.operators.composites import channel_norms, recurrent
from hgpart.operators.effects import Call, Effect, Rule, Whole
from hgpart.operators.products import Product, padding_by_numbers
from hgpart.operators.rows import (
    AllRows,
    Local,
    RowEffect,
    RowRule,
    Summed,
    of_effect,
    operands_with_rows,
)
from hgpart.operators.samples import Average

Cut = Literal[
    "copy",  # the operand
    "detach",  # the operand without a gradient
    "view",  # the operand's elements in their order
    "reshape",  # like a view, by an operator with arguments of its own
    "permutation",  # the operand's dimensions in another order
    "expand",
    "join",  # operands one after another
    "overwrite",  # the second operand
    "frame",  # the operand with more around it
    "slice",
    "narrow",
    "select",
    "index",  # elements of the operand at places given by tensors
    "pieces",  # several results along a dimension
    "unbind",  # several results, each without that dimension
    "norm",  # called as the batch norm that updates its statistics in place
    "dropout",  # multiplied by a mask that was drawn for the whole tensor
]

SamplesRule = Callable[[Call], Effect | Average]


@dataclass(frozen=True)
class Operator:
    """What hgpart knows of an operator.

    Attributes
    ----------
    rule : callable or None
        Channel rule; None if the operator mixes all channels.
    cut : str or None
        How a part's share is cut. None: as the rule implies, if it is a `Product` or keeps
        channels apart; otherwise the operator runs on whole tensors, with zeros in place of other
        parts' elements.
    macs : callable or None
        Multiply-accumulates of a `Call`; None: those of a `Product`, else those that torch counts.
    makes : operator or None
        For an operator whose result has its operand's shape but none of its data: the operator
        that makes such a result from a shape.
    in_place : operator or None
        The in-place form of the operator.
    of_complex : callable or None
        What computes the same for complex numbers, where the operator itself can't.
    frees_result : bool
        Whether the backward pass does not need the result.
    updates : mapping of int to str
        For numbers of results that are the next values of buffers, the names of the arguments.
    is_size : bool
        Whether the result is a number, which every part knows.
    is_number : bool
        Whether the operator makes a tensor of a number.
    is_fill : bool
        Whether the operator makes a tensor of a given shape with one value.
    is_range : bool
        Whether the operator makes numbers in steps, such as places.
    places : int or None
        Number of the result that holds places, counted from 0.
    is_put : bool
        Whether the operator writes into places of its operand that an index or a mask names.
    divides : bool
        Whether the operator divides by its second operand.
    is_batch_norm : bool
        Whether the operator takes each channel's mean and variance over the batch, unless its
        argument `training` is false.
    takes_statistics, normalises : bool
        Whether the operator takes the statistics of a norm over channels; whether it normalises its
        first operand by those that another one takes.
    draws_in_order : bool
        Whether the operator draws in the order of dimensions, though the one that export replaced
        by it draws in the order of memory.
    samples : callable or None
        What the operator does to samples of a batch, a rule of `hgpart.operators.samples`; None if
        the channel rule tells that too.
    frame : str
        How the operator pads, if its argument ``mode`` does not say: "constant", "reflect" or
        "replicate". Empty for an operator that does not pad.
    rows : callable or None
        How rows of the result depend on rows of operands, a rule of `hgpart.operators.spatial`;
        None if they are kept apart where the rule for samples keeps samples apart.
    linear : str
        "sum" if the operator turns means over samples into the mean of its results; "product" if
        that holds for its first operand alone. Operators that move elements always do.
    """

    rule: Rule | None = None
    cut: Cut | None = None
    macs: Callable[[Call], int | None] | None = None
    makes: Any = None
    in_place: Any = None
    of_complex: Any = None
    frees_result: bool = False
    updates: Mapping[int, str] = field(default_factory=dict)
    is_size: bool = False
    is_number: bool = False
    is_fill: bool = False
    is_range: bool = False
    places: int | None = None
    is_put: bool = False
    divides: bool = False
    is_batch_norm: bool = False
    takes_statistics: bool = False
    normalises: bool = False
    draws_in_order: bool = False
    samples: SamplesRule | None = None
    frame: Literal["", "constant", "reflect", "replicate"] = ""
    rows: RowRule | None = None
    linear: Literal["", "sum", "product"] = ""

    @property
    def product(self) -> Product | None:
        """The product that the operator is, which names its operands; else None."""
        return self.rule if isinstance(self.rule, Product) else None

    @property
    def moves_only(self) -> bool:
        """Whether each element of the operand is in at most one place of the result."""
        return self.rule in (moving.copied, moving.viewed, moving.moved)

    @property
    def keeps_places(self) -> bool:
        """Whether an element depends only on those at its own place, where shapes are equal."""
        rules = (same_place, moving.copied, moving.viewed, moving.overwritten, moving.filled)
        made = self.is_number or self.makes is not None
        return self.rule in rules or self.cut == "expand" or made


aten = torch.ops.aten

# Keyed by packet (all overloads), or by overload.
# fmt: off
_ATEN: tuple[tuple[Any, ...], ...] = (
    # ---- products
    (
        Operator(Product(is_matrix=False), rows=spatial.convolution),
        aten.conv1d, aten.conv3d, aten.convolution,
    ),
    (
        Operator(Product(is_matrix=False), frees_result=True, rows=spatial.convolution),
        aten.conv2d,
    ),
    (
        Operator(Product(row_dim=1, is_matrix=False), rows=spatial.transposed_convolution),
        aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d,
    ),
    (Operator(Product(), frees_result=True), aten.linear),
    (Operator(Product("self", "mat2", "", row_dim=1, multiplies_maps=True)), aten.mm),
    (
        Operator(
            Product("self", "other", "", row_dim=1, multiplies_maps=True), rows=spatial.matrices
        ),
        aten.matmul,
    ),
    (
        Operator(Product("mat1", "mat2", "self", row_dim=1, is_scaled=True, multiplies_maps=True)),
        aten.addmm,
    ),
    (
        Operator(products.batched_product, samples=samples.matrices, rows=spatial.matrices),
        aten.bmm,
    ),
    (Operator(products.batched_product, samples=samples.matrices), aten.baddbmm),
    (Operator(samples=samples.matrices), aten.mv, aten.dot),
    (Operator(samples=samples.einsum), aten.einsum),
    (
        Operator(products.attention, samples=samples.attention, rows=spatial.attention),
        aten.scaled_dot_product_attention, torch.ops.hgpart.attention_of_stacks,
    ),
    (
        Operator(samples=samples.over_last_two),
        aten.cdist, aten.tril, aten.triu,
        aten.linalg_inv, aten.inverse, aten.linalg_pinv, aten.linalg_cholesky, aten.cholesky,
        aten.cholesky_solve, aten.cholesky_inverse, aten.linalg_solve_triangular,
        aten.linalg_det, aten.det, aten.logdet, aten.linalg_eigvalsh, aten.linalg_svdvals,
        aten.linalg_matrix_exp, aten.matrix_exp, aten.linalg_matrix_power, aten.matrix_power,
    ),
    (
        Operator(samples=samples.factors),
        aten.linalg_inv_ex, aten.linalg_cholesky_ex, aten.linalg_slogdet, aten.slogdet,
        aten.linalg_svd, aten.linalg_qr, aten.linalg_eigh, aten.linalg_lu,
    ),
    (Operator(samples=samples.solved), aten.linalg_solve),
    (Operator(samples=samples.tensordot), aten.tensordot),
    # ---- element by element; most of these are known by torch's tag
    (
        Operator(same_place),
        aten.dropout, aten.alpha_dropout, aten.masked_fill,
        aten.bernoulli.default, aten.uniform, aten.normal, aten.normal_functional, aten.log_normal,
        aten.exponential, aten.cauchy, aten.geometric, aten.random,
        aten.where, aten.hardswish,
        aten.complex, aten.polar, aten.real, aten.imag,
        aten.conj, aten._conj, aten.resolve_conj, aten._neg_view, aten.resolve_neg,
    ),
    (Operator(same_place, linear="sum"), aten.sub, aten.rsub, aten.neg, aten._to_copy, aten.to),
    (Operator(same_place, linear="product"), aten.mul),
    (Operator(same_place, linear="product", divides=True), aten.div),
    (Operator(same_place, draws_in_order=True), aten.bernoulli.p, aten.bernoulli.Tensor),
    (Operator(same_place, "dropout"), aten.native_dropout),
    (Operator(same_place, in_place=aten.relu_.default), aten.relu),
    (Operator(same_place, in_place=aten.hardtanh_.default), aten.hardtanh),
    (Operator(same_place, frees_result=True, linear="sum"), aten.add),
    (Operator(channelwise.prelu, rows=spatial.by_channel), aten.prelu),
    # ---- along dimensions
    (Operator(channelwise.feature_dropout), aten.feature_dropout, aten.feature_alpha_dropout),
    (Operator(over_last(1), rows=spatial.pooling(1)), aten.max_pool1d),
    (Operator(over_last(1), rows=spatial.pooling(1, adds=True)), aten.avg_pool1d),
    (Operator(over_last(1), rows=spatial.adaptive_pooling(1)), aten.adaptive_max_pool1d),
    (
        Operator(over_last(1), rows=spatial.adaptive_pooling(1, adds=True)),
        aten.adaptive_avg_pool1d,
    ),
    (
        Operator(over_last(2), rows=spatial.pooling(2)),
        aten.max_pool2d, aten.max_pool2d_with_indices,
    ),
    (Operator(over_last(2), rows=spatial.pooling(2, adds=True)), aten.avg_pool2d),
    (Operator(over_last(2), rows=spatial.adaptive_pooling(2)), aten.adaptive_max_pool2d),
    (
        Operator(over_last(2), rows=spatial.adaptive_pooling(2, adds=True)),
        aten.adaptive_avg_pool2d, aten._adaptive_avg_pool2d,
    ),
    (
        Operator(over_last(2), rows=spatial.interpolation(2)),
        aten.upsample_nearest2d, aten._upsample_nearest_exact2d,
        aten.upsample_bilinear2d, aten._upsample_bilinear2d_aa,
        aten.upsample_bicubic2d, aten._upsample_bicubic2d_aa,
    ),
    (
        Operator(over_last(3), rows=spatial.pooling(3)),
        aten.max_pool3d, aten.max_pool3d_with_indices,
    ),
    (Operator(over_last(3), rows=spatial.pooling(3, adds=True)), aten.avg_pool3d),
    (Operator(over_last(3), rows=spatial.adaptive_pooling(3)), aten.adaptive_max_pool3d),
    (
        Operator(over_last(3), rows=spatial.adaptive_pooling(3, adds=True)),
        aten.adaptive_avg_pool3d,
    ),
    (
        Operator(over_last(3), rows=spatial.interpolation(3)),
        aten.upsample_nearest3d, aten.upsample_trilinear3d,
    ),
    (
        Operator(
            channelwise.fractional_pool(2), samples=samples.by_first, rows=spatial.random_pooling
        ),
        aten.fractional_max_pool2d,
    ),
    (
        Operator(
            channelwise.fractional_pool(3), samples=samples.by_first, rows=spatial.random_pooling
        ),
        aten.fractional_max_pool3d,
    ),
    (
        Operator(
            channelwise.batch_norm,
            "norm",
            updates={3: "running_mean", 4: "running_var"},
            is_batch_norm=True,
            samples=samples.own_place,
            rows=spatial.by_channel,
        ),
        aten._native_batch_norm_legit_functional,
    ),
    (
        Operator(
            channelwise.batch_norm, "norm", samples=samples.own_place, rows=spatial.by_channel
        ),
        aten._native_batch_norm_legit_no_training,
    ),
    (
        Operator(
            channelwise.batch_norm,
            frees_result=True,
            is_batch_norm=True,
            samples=samples.own_place,
            rows=spatial.by_channel,
        ),
        aten.batch_norm,
    ),
    (
        Operator(
            channelwise.batch_norm,
            is_batch_norm=True,
            samples=samples.own_place,
            rows=spatial.by_channel,
        ),
        aten._native_batch_norm_legit, aten.native_batch_norm, aten.cudnn_batch_norm,
        aten._batch_norm_with_update,
    ),
    (
        Operator(channelwise.batch_norm, samples=samples.own_place, rows=spatial.by_channel),
        aten._batch_norm_no_update,
    ),
    (Operator(channelwise.batch_norm, samples=samples.instance_norm), aten.instance_norm),
    (Operator(channelwise.layer_norm), aten.layer_norm, aten.native_layer_norm, aten.rms_norm),
    (
        Operator(channelwise.group_norm, samples=samples.group_norm),
        aten.group_norm, aten.native_group_norm,
    ),
    (
        Operator(channelwise.layer_statistics, takes_statistics=True),
        torch.ops.hgpart.layer_statistics,
    ),
    (
        Operator(
            channelwise.group_statistics,
            takes_statistics=True,
            samples=channelwise.statistics_of_samples,
        ),
        torch.ops.hgpart.group_statistics,
    ),
    (Operator(same_place, normalises=True), torch.ops.hgpart.normalised),
    (Operator(channelwise.weight_norm), aten._weight_norm, aten._weight_norm_interface),
    (
        Operator(channelwise.softmax),
        aten.softmax, aten.log_softmax, aten._softmax, aten._log_softmax, aten._safe_softmax,
    ),
    (Operator(channelwise.along_one), aten.cumsum, aten.cumprod),
    (
        Operator(
            channelwise.reduction, linear="sum", samples=samples.averaged, rows=spatial.averaged
        ),
        aten.mean,
    ),
    (Operator(channelwise.reduction, linear="sum", rows=spatial.summed), aten.sum),
    (
        Operator(channelwise.reduction),
        aten.prod, aten.amax, aten.amin, aten.linalg_vector_norm,
        aten.var, aten.std, aten.var_mean, aten.std_mean, aten.logsumexp, aten.any, aten.all,
        aten.max.default, aten.min.default,
    ),
    (Operator(channelwise.reduction, places=0), aten.argmax, aten.argmin),
    (Operator(channelwise.reduction, places=1), aten.max.dim, aten.min.dim),
    (
        Operator(samples=channelwise.reduction),
        aten.linalg_norm, aten.linalg_matrix_norm,
        aten.norm, aten.nansum, aten.nanmean, aten.count_nonzero, aten.aminmax,
        aten.median.dim, aten.nanmedian.dim, aten.mode, aten.kthvalue,
    ),
    (
        Operator(samples=samples.along_dim),
        aten.index_fill, aten.index_add, aten.index_copy, aten.index_reduce,
        aten.linalg_cross, aten.linalg_vecdot, aten.gather, aten.take_along_dim,
        aten.logcumsumexp, aten.cosine_similarity, aten.diff,
        aten.fft_fft, aten.fft_ifft, aten.fft_rfft, aten.fft_irfft, aten.fft_hfft,
        aten.fft_fft2, aten.fft_ifft2, aten.fft_rfft2, aten.fft_irfft2,
        aten.fft_fftn, aten.fft_ifftn, aten.fft_rfftn, aten.fft_irfftn,
        aten._fft_c2c, aten._fft_c2r, aten._fft_r2c, aten.fft_fftshift, aten.fft_ifftshift,
    ),
    (
        Operator(samples=samples.scattered),
        aten.scatter, aten.scatter_add, aten.scatter_reduce,
    ),
    (Operator(samples=samples.norms_along), aten.renorm),
    (Operator(samples=samples.along_dim, places=0), aten.argsort),
    (
        Operator(samples=samples.along_dim, places=1),
        aten.sort, aten.topk, aten.cummax, aten.cummin,
    ),
    (Operator(samples=samples.searched), aten.bucketize, aten.searchsorted),
    (Operator(samples=samples.diagonals), aten.diag_embed),
    (Operator(samples=sample_places.bags), aten.embedding_bag),
    (
        Operator(samples=samples.by_first),
        aten.grid_sampler, aten.grid_sampler_2d, aten.grid_sampler_3d,
        aten.affine_grid_generator, aten.im2col, aten.col2im,
        aten.max_unpool2d, aten.max_unpool3d, aten.view_as_complex,
    ),
    (
        Operator(samples=samples.by_first, rows=spatial.interpolation(1)),
        aten.upsample_nearest1d, aten._upsample_nearest_exact1d, aten.upsample_linear1d,
    ),
    (
        Operator(samples=samples.by_first, rows=spatial.interpolation(3)),
        aten._upsample_nearest_exact3d,
    ),
    (Operator(samples=samples.recurrent), aten.lstm.input, aten.gru.input),
    (Operator(samples=samples.recurrent), aten.rnn_tanh.input, aten.rnn_relu.input),
    (
        Operator(samples=moving.on_ids),
        aten.rot90,
        aten.fliplr, aten.flipud, aten.swapaxes, aten.swapdims, aten.unsafe_split,
        aten.broadcast_to, aten.expand_as, aten.view_as, aten.reshape_as,
    ),
    (
        Operator(samples=moving.padded, rows=spatial.padding("reflect")),
        aten.reflection_pad1d, aten.reflection_pad3d,
    ),
    (
        Operator(samples=moving.padded, rows=spatial.padding("replicate")),
        aten.replication_pad1d, aten.replication_pad3d,
    ),
    (Operator(samples=samples.broadcast), aten.broadcast_tensors),
    (Operator(products.looked_up, samples=samples.looked_up), aten.embedding),
    (Operator(samples=samples.looked_up), aten.one_hot),
    (
        Operator(samples=samples.loss),
        aten.mse_loss, aten.l1_loss, aten.smooth_l1_loss, aten.huber_loss,
        aten.binary_cross_entropy, aten.binary_cross_entropy_with_logits, aten.kl_div,
    ),
    (
        Operator(samples=samples.loss_of_classes),
        aten.cross_entropy_loss, aten.nll_loss, aten.nll_loss2d, aten.nll_loss_nd,
        aten.nll_loss_forward, aten.nll_loss2d_forward,
    ),
    # ---- elements moved about
    (
        Operator(moving.padded, "frame", frame="constant", rows=spatial.padding()),
        aten.constant_pad_nd, aten.pad,
    ),
    (
        Operator(moving.padded, "frame", frame="reflect", rows=spatial.padding("reflect")),
        aten.reflection_pad2d,
    ),
    (
        Operator(moving.padded, "frame", frame="replicate", rows=spatial.padding("replicate")),
        aten.replication_pad2d,
    ),
    (
        Operator(moving.copied, "copy"),
        aten.clone, aten.contiguous, aten.alias, aten.lift_fresh_copy,
    ),
    (Operator(moving.copied, "detach"), aten.detach),
    (Operator(is_number=True), aten.lift_fresh),
    (Operator(moving.viewed, "view"), aten.view.default, aten._unsafe_view),
    (Operator(moving.viewed, "reshape"), aten.reshape),
    (
        Operator(moving.moved, "reshape"),
        aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze,
    ),
    (
        Operator(moving.moved, "permutation"),
        aten.permute, aten.transpose, aten.t, aten.numpy_T, aten.movedim,
    ),
    (Operator(moving.moved, "slice"), aten.slice),
    (Operator(moving.moved, "narrow"), aten.narrow),
    (Operator(moving.moved, "select"), aten.select),
    (
        Operator(moving.moved, "pieces"),
        aten.split, aten.split_with_sizes, aten.chunk, aten.tensor_split,
    ),
    (Operator(moving.moved, "unbind"), aten.unbind),
    (
        Operator(moving.moved),
        aten.stack, aten.flip, aten.roll,
        aten.pixel_shuffle, aten.pixel_unshuffle, aten.channel_shuffle,
    ),
    (Operator(moving.on_ids, "expand"), aten.expand),
    (
        Operator(moving.on_ids),
        aten.repeat, aten.tile, aten.repeat_interleave.self_int, aten.unfold, aten.diagonal,
    ),
    (Operator(moving.on_ids, of_complex=complex_numbers.slice_written), aten.slice_scatter),
    (Operator(moving.on_ids, of_complex=complex_numbers.position_written), aten.select_scatter),
    (Operator(moving.on_ids, of_complex=complex_numbers.diagonal_written), aten.diagonal_scatter),
    (Operator(of_complex=complex_numbers.as_real, samples=samples.by_first), aten.view_as_real),
    (Operator(moving.joined, "join"), aten.cat),
    (
        Operator(moving.indexed, "index", samples=sample_places.picked),
        aten.index.Tensor, aten.index_select,
    ),
    (Operator(moving.overwritten, "overwrite", samples=samples.written), aten.copy, aten.copy_),
    (Operator(moving.filled, samples=samples.own_place), aten.fill, aten.fill_, aten.zero_),
    (Operator(is_put=True, samples=sample_places.put), aten.index_put, aten.index_put_),
    # ---- shapes
    (Operator(is_size=True), aten.sym_size),
    (Operator(is_range=True), aten.arange),
    (Operator(is_fill=True), aten.zeros, aten.ones, aten.full, aten.empty.memory_format),
    (
        Operator(makes=aten.zeros.default),
        aten.empty_like, aten.zeros_like, aten.new_empty, aten.new_zeros,
    ),
    (Operator(makes=aten.ones.default), aten.ones_like, aten.new_ones),
    (Operator(makes=aten.full.default), aten.full_like, aten.new_full),
    (Operator(makes=aten.rand.default), aten.rand_like),
    (Operator(makes=aten.randn.default), aten.randn_like),
)
# fmt: on
# What is traced as other operators.
TRACED_AS: Mapping[Any, Callable[..., Any]] = {
    aten.conv1d.padding: padding_by_numbers(aten.conv1d.default),
    aten.conv2d.padding: padding_by_numbers(aten.conv2d.default),
    aten.conv3d.padding: padding_by_numbers(aten.conv3d.default),
    aten.scaled_dot_product_attention.default: products.attention_as_products,
    aten.einsum.default: products.einsum_as_product,
    aten.glu.default: channelwise.glu_as_product,
    aten.im2col.default: moving.im2col_as_moves,
    aten.type_as.default: lambda value, other: value.to(other.dtype),
    aten.layer_norm.default: channel_norms.layer_norm,
    aten.rms_norm.default: channel_norms.rms_norm,
    aten.group_norm.default: channel_norms.group_norm,
    aten.lstm.input: recurrent.lstm,
    aten.gru.input: recurrent.gru,
    aten.rnn_tanh.input: recurrent.rnn_tanh,
    aten.rnn_relu.input: recurrent.rnn_relu,
    aten.lstm_cell.default: recurrent.lstm_cell,
    aten.gru_cell.default: recurrent.gru_cell,
    aten.rnn_tanh_cell.default: recurrent.rnn_tanh_cell,
    aten.rnn_relu_cell.default: recurrent.rnn_relu_cell,
}
# Operators of hgpart -> what they compute, by those that every program with torch has.
AS_TORCH: Mapping[Any, Callable[..., torch.Tensor]] = {
    **channel_norms.AS_TORCH,
    torch.ops.hgpart.attention_of_stacks.default: products.attention_of_stacks,
}
# A batch norm, that which writes new statistics into arguments, and that which returns them.
BATCH_NORM = aten.batch_norm.default
WRITING_NORM = aten._native_batch_norm_legit.default
RETURNING_NORM = aten._native_batch_norm_legit_functional.default
# Their schemas do not say what they write, or that they take the memory of another tensor.
WRITES_UNSAID = frozenset({aten.native_batch_norm.default, aten.set_.source_Tensor})
# What writes into its first argument -> what returns that, where names do not tell.
RETURNED_BY: Mapping[Any, Any] = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.detach_.default: aten.detach.default,
}
# Recurrent layers and cells -> the place of the weight that multiplies units, of a cell. Units may
# begin as None, in the place of zeros.
RECURRENT: Mapping[Any, int | None] = {
    aten.lstm.input: None, aten.gru.input: None,
    aten.rnn_tanh.input: None, aten.rnn_relu.input: None,
    aten.lstm_cell.default: 3, aten.gru_cell.default: 3,
    aten.rnn_tanh_cell.default: 3, aten.rnn_relu_cell.default: 3,
}  # fmt: skip
ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
# What drops nothing, and returns what it is given, unless it trains and its probability is not 0.
DROPOUTS = frozenset(
    {
        aten.dropout.default, aten.feature_dropout.default,
        aten.alpha_dropout.default, aten.feature_alpha_dropout.default,
        aten.dropout_.default, aten.feature_dropout_.default,
        aten.alpha_dropout_.default, aten.feature_alpha_dropout_.default,
    }
)  # fmt: skip
_records: dict[Any, Operator] = {
    operator: record for record, *operators in _ATEN for operator in operators
}
_users: dict[Any, dict[str, Any]] = {}  # what a user's rule replaces in an operator's record
_USERS_CUTS = ("copy", "reshape", "permutation")  # those that need no arguments by ATen's names
_UNKNOWN = Operator()
_POINTWISE = Operator(same_place)


def rules_of_users() -> Mapping[Any, Mapping[str, Any]]:
    """Operator -> what a user's rule replaces in its record."""
    return _users


def callable_of(node: fx.Node) -> Any:
    """What computes a node: its operator, or its replacement where numbers are complex."""
    of_complex = operator_of(node).of_complex
    values = (computed.meta.get("val") for computed in (node, *node.all_input_nodes))
    if of_complex is not None and any(is_complex(value) for value in values):
        return of_complex
    return node.target


def is_complex(value: Any) -> bool:
    """Whether a value is a tensor of complex numbers."""
    return isinstance(value, torch.Tensor) and value.is_complex()


def operator_of(node: fx.Node) -> Operator:
    """What hgpart knows of the operator that a node calls."""
    return record_of(node.target)


def record_of(target: Any) -> Operator:
    """What hgpart knows of an operator: of an overload, else of its packet."""
    replaced = _of_users(target)
    known = _own_record(target)
    return replace(known, **replaced) if replaced else known


def describe(operator: Any, record: Operator) -> None:
    """Enter what is known of an operator that was made while a model was traced."""
    _records[operator] = record


def _own_record(target: Any) -> Operator:
    """What hgpart knows of an operator by itself, whatever the rules of users say."""
    packet = getattr(target, "overloadpacket", None)
    default = _POINTWISE if torch.Tag.pointwise in getattr(target, "tags", ()) else _UNKNOWN
    return _records.get(target) or _records.get(packet) or default


def _of_users(target: Any) -> dict[str, Any] | None:
    return _users.get(target) or _users.get(getattr(target, "overloadpacket", None))


def channel_rule(
    *operators: Any,
    cut: Cut | None = None,
    macs: Callable[[Call], int | None] | None = None,
    rows: RowRule | None = None,
) -> Callable[[Rule], Rule]:
    """Register what operators are, as ``@channel_rule(torch.ops.my_library.my_operator)``.

    An operator is a ``torch.ops`` packet (all overloads) or one overload. The rule gets a `Call`,
    with `Channels` and `Constant` for tensors, and returns `Reindex`, `SameIndex`, `Matrices`,
    `Mix` or `Whole`. If it works channel by channel, or matrix by matrix, that alone says how a
    part's share is cut. The rule of a convolution, or of a product with a matrix, is a `Product`:
    it says how shares are cut and counts multiply-accumulates. All these are in `hgpart`, as are
    the rules `same_place` and `moved`; the other rules are in `hgpart.operators.channelwise` and
    `hgpart.operators.moving`.

    A later rule replaces an earlier one, with its `cut` and `macs`. Everything else known of an
    ATen operator stays: how its elements move, what computes it in place, which results are
    statistics.

    Parameters
    ----------
    cut : str, optional
        For an operator that only moves elements: whether its result is a "copy", a "reshape" or a
        "permutation" of the operand's dimensions. Default: as ATen's own operator; for others, a
        share is taken from the whole result.
    macs : callable, optional
        Multiply-accumulates of a `Call`, or None. Default: those of a `Product`, else those that
        torch counts.
    rows : callable, optional
        How rows of maps depend on each other: a function from a `Call`, with `Rows` for operands
        that have rows, to `Local`, `Summed(averages)` or `AllRows`; or `same_place`. All these are
        in `hgpart.operators`. Default: as hgpart knows of the operator; one of your own needs all
        rows, so that it ends the bands.

    Raises
    ------
    ArgumentError
        If `cut` is none of these words, an operator is neither a packet nor an overload, or a
        `Product` names an argument that an overload does not have.
    """
    if cut not in (None, *_USERS_CUTS):
        raise not_one_of("cut", cut, _USERS_CUTS)
    overloads = [overload for operator in operators for overload in _overloads(operator)]

    def register(rule: Rule) -> Rule:
        if isinstance(rule, Product):
            for overload in overloads:
                _check_names(rule, overload)
        given: dict[str, Any] = {"rule": rule, "macs": macs}
        given |= {name: value for name, value in (("cut", cut), ("rows", rows)) if value}
        for operator in (*overloads, *operators):
            _users.pop(operator, None)
        _users.update(dict.fromkeys(operators, given))
        return rule

    return register


def _overloads(operator: Any) -> list[Any]:
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return [getattr(operator, name) for name in operator.overloads()]  # type: ignore[no-untyped-call]
    if isinstance(operator, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return [operator]
    raise ArgumentError(f"operator {operator!r}: accepted are packets and overloads of torch.ops")


def _check_names(product: Product, overload: Any) -> None:
    schema = getattr(overload, "_schema", None)
    accepted = [argument.name for argument in schema.arguments] if schema else []
    for name in product.arguments:
        if name not in accepted:
            raise ArgumentError(
                f"Product names {name!r}: accepted are the arguments of {overload}: "
                f"{', '.join(accepted)}"
            )


def effect_of(call: Call) -> Effect:
    """Apply a call's rule.

    Raises
    ------
    TraceError
        If the rule raises anything or returns anything but an effect.
    """
    rule = operator_of(call.node).rule
    if rule is None:
        return Whole()
    effect, where = _answer(call, "channel rule", rule)
    if not isinstance(effect, Effect):
        raise TraceError(
            f"{where} returns {effect!r}: accepted are Reindex, SameIndex, Matrices, Mix and Whole"
        )
    return effect


def effect_on_samples(call: Call) -> Effect | Average:
    """Apply what is known of an operator and samples to a call whose ids are numbers of samples.

    Raises
    ------
    TraceError
        If the rule raises anything.
    """
    known = operator_of(call.node)
    rule = known.samples or (known.product.of_samples if known.product else known.rule)
    if rule is None:
        return Whole()
    effect: Effect | Average = _answer(call, "rule for samples", rule)[0]
    return effect


def has_users_rule(target: Any) -> bool:
    """Whether a user says what an operator is."""
    return bool(_of_users(target))


def keeps_rows(node: fx.Node) -> bool:
    """Whether a moving operator may be run on numbers of rows: users' rules say so by `rows`."""
    return not _of_users(node.target) or _own_record(node.target) is not _UNKNOWN


def effect_on_rows(call: Call) -> RowEffect:
    """Apply what is known of an operator and rows to a call whose operands may be `Rows`.

    Raises
    ------
    TraceError
        If a rule raises anything, or a user's answers with anything that does not fit the call.
    """
    name = short_name(call.node)
    rule: Callable[[Call], Any] | None = operator_of(call.node).rows
    if rule is None:
        own = _own_record(call.node.target)
        rule = own.samples or (own.product.of_samples if own.product else own.rule)
    if rule is None:
        return AllRows(f"no rule for {name}")
    try:
        effect, where = _answer(call, "rule for rows", rule)
    except TraceError:
        if (_of_users(call.node.target) or {}).get("rows") is not None:
            raise
        return AllRows(f"no rule for {name}")
    if isinstance(effect, Local):
        _check_local(call, effect, where)
        return effect
    if isinstance(effect, Summed | AllRows):
        return effect
    if not isinstance(effect, Effect | Average):
        raise TraceError(f"{where} returns {effect!r}: accepted are Local, Summed and AllRows")
    return of_effect(call, effect, f"{name} needs all rows")


def _check_local(call: Call, local: Local, where: str) -> None:
    """Raise an error unless windows are those of the result's rows on each operand's."""
    rows = call.shape[local.dim] if -len(call.shape) <= local.dim < len(call.shape) else None
    heights = [operand.height for operand in operands_with_rows(call)]
    if rows is None or [(len(w), w.height) for w in local.windows] != [(rows, h) for h in heights]:
        said = ", ".join(f"{len(w)} rows on {w.height}" for w in local.windows)
        raise TraceError(
            f"{where} returns windows of {said or 'no operand'} along dimension {local.dim}: "
            f"accepted are windows of {rows or 'all'} rows on "
            f"{', '.join(map(str, heights))}, one for each operand with rows"
        )


def short_name(node: fx.Node) -> str:
    """An operator as a sentence names it: without namespace of ATen and overload."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet or node.target).removeprefix("aten.")


def macs_of(call: Call) -> int | None:
    """Multiply-accumulates of a call; None where those that torch counts hold.

    Raises
    ------
    TraceError
        If the function that counts them raises, or returns anything but a whole number or None.
    """
    known = operator_of(call.node)
    count = known.macs or (known.product.macs if known.product else None)
    if count is None:
        return None
    macs, where = _answer(call, "count of multiply-accumulates", count)
    if macs is not None and not (isinstance(macs, Integral) and int(macs) >= 0):
        raise TraceError(f"{where} returns {macs!r}: accepted are whole numbers from 0 on and None")
    return None if macs is None else int(macs)


def _answer(call: Call, kind: str, function: Callable[[Call], Any]) -> tuple[Any, str]:
    """A function's answer to a call, and its place for an error message."""
    where = f"{place_of(call.node)}: its {kind} {getattr(function, '__name__', function)}"
    try:
        return function(call), where
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise TraceError(f"{where} raises {reason}") from error
