"""torch.nn's attention, written with layers of their own, so that its projections are quantised as layers are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class OpenAttention(nn.Module):
    """nn.MultiheadAttention by its parts: `q_proj`, `k_proj`, `v_proj`, products and a softmax, `out_proj`.

    Takes what that module takes, and returns the same.
    """

    _qkv_same_embed_dim = False  # what torch's transformer layers ask for: there is no fast path here
    in_proj_weight = in_proj_bias = None

    def __init__(self, module: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.batch_first = module.embed_dim, module.num_heads, module.batch_first
        self.dropout = nn.Dropout(module.dropout)
        whole: Tensor | None = module.in_proj_weight
        bias: Tensor | None = module.in_proj_bias
        parts = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        weights = parts if whole is None else whole.chunk(3)
        biases = (None,) * 3 if bias is None else bias.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = (_linear(w, b) for w, b in zip(weights, biases, strict=True))
        self.out_proj = _linear(module.out_proj.weight, module.out_proj.bias)
        self.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002 - as in torch.nn
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002 - as in torch.nn
        is_causal: bool = False,  # noqa: FBT001, FBT002 - as in torch.nn: a hint, beside the mask
    ) -> tuple[Tensor, Tensor | None]:
        batched = query.dim() == 3
        operands = [x if batched else x.unsqueeze(0) for x in (query, key, value)]
        if batched and not self.batch_first:
            operands = [x.transpose(0, 1) for x in operands]
        layers = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (self._heads(layer(x)) for layer, x in zip(layers, operands, strict=True))
        scores = torch.matmul(q, k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        shares = torch.softmax(self._masked(scores, key_padding_mask, attn_mask), -1)
        y = torch.matmul(self.dropout(shares), v).transpose(1, 2).flatten(2)
        y = self.out_proj(y)
        y = y if self.batch_first or not batched else y.transpose(0, 1)
        weights = shares.mean(1) if average_attn_weights else shares
        y, weights = (y, weights) if batched else (y.squeeze(0), weights.squeeze(0))
        return y, weights if need_weights else None

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, x.shape[2] // self.num_heads).transpose(1, 2)

    def _masked(self, scores: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor:
        if mask is not None:
            mask = mask if mask.dim() == 2 else mask.reshape(-1, self.num_heads, *mask.shape[-2:])
            scores = _hidden(scores, mask)
        return scores if padding is None else _hidden(scores, padding.reshape(-1, 1, 1, padding.shape[-1]))


def _hidden(scores: Tensor, mask: Tensor) -> Tensor:
    """True hides; so does −∞ of a mask that is added, whose other values are added."""
    if mask.dtype is torch.bool:
        return scores.masked_fill(mask, float("-inf"))
    hides = mask == float("-inf")
    if not bool((mask[~hides] == 0).all()):
        scores = scores + mask.masked_fill(hides, 0.0)
    return scores.masked_fill(hides, float("-inf"))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return made


def open_attention(model: nn.Module, kept: Any) -> None:
    """Replace every nn.MultiheadAttention in `model`, but those that `kept(name, module)` leaves whole."""
    opened: dict[int, OpenAttention] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is not nn.MultiheadAttention or not name or kept(name, module):
            continue
        if module.bias_k is not None or module.add_zero_attn:
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], opened.setdefault(id(module), OpenAttention(module)))
