"""A weight matrix packed so that one BLAS thread multiplies it fast at any number of rows.

Owns: the packed layout and the cut of the rows into tiles.
Does not know: which layer the matrix belongs to.

OpenBLAS has a kernel for small products that reads both operands in place; the kernel for large
products first copies them into its own buffers, which for a few rows costs more than the product.
So the matrix is kept as column panels narrow enough that a tile of rows times a panel is small,
and long inputs are cut into tiles of rows. The small kernel also adds up every output element in
the same order whatever the number of rows, so a row's result does not depend on its neighbours.
Two things would break that and are avoided here: a single row (another routine runs; it is
doubled) and a product just over the limit of the small kernel.
"""

from __future__ import annotations

import numpy as np

from serve_app.engine.batch import FloatArray, IntArray

SMALL_PRODUCT = 1_000_000
"""rows * columns * depth up to which OpenBLAS takes its small kernel (AVX-512 builds)."""
PANEL_WIDTHS = (64, 32, 16)
MIN_TILE_ROWS, MAX_TILE_ROWS = 16, 48


class PackedLinear:
    """y = x W^T for a weight matrix W (outputs, inputs)."""

    def __init__(self, weight: FloatArray) -> None:
        self.num_outputs, depth = weight.shape
        width = _panel_width(depth)
        self.tile_rows = max(2, min(MAX_TILE_ROWS, SMALL_PRODUCT // (depth * width)))
        num_panels = -(-self.num_outputs // width)
        self.panels: FloatArray = np.zeros((num_panels, depth, width), np.float32)
        """(panels, inputs, width); columns beyond num_outputs are zero."""
        whole = self.num_outputs // width
        self.panels[:whole] = _columns(weight[: whole * width], width)
        if rest := self.num_outputs - whole * width:
            self.panels[whole, :, :rest] = weight[whole * width :].T

    def __call__(self, x: FloatArray) -> FloatArray:
        """x (rows, inputs) to (rows, outputs)."""
        num_panels, depth, width = self.panels.shape
        num_rows = len(x)
        if num_rows == 0:
            return np.empty((0, self.num_outputs), np.float32)
        num_tiles = -(-num_rows // self.tile_rows)
        tile = max(2, -(-num_rows // num_tiles))
        padded = _pad_rows(x, num_tiles * tile)
        out = np.empty((num_tiles, tile, num_panels, width), np.float32)
        np.matmul(
            padded.reshape(1, num_tiles, tile, depth),
            self.panels[:, None],
            out=out.transpose(2, 0, 1, 3),
        )
        return out.reshape(num_tiles * tile, -1)[:num_rows, : self.num_outputs]

    def rows(self, indices: IntArray) -> FloatArray:
        """Rows of W, (len(indices), inputs): a tied head serves as the embedding too."""
        width = self.panels.shape[2]
        picked: FloatArray = self.panels[indices // width, :, indices % width]
        return picked


def _columns(rows: FloatArray, width: int) -> FloatArray:
    panels: FloatArray = rows.reshape(-1, width, rows.shape[1]).transpose(0, 2, 1)
    return panels


def _panel_width(depth: int) -> int:
    fits = [w for w in PANEL_WIDTHS if MIN_TILE_ROWS * w * depth <= SMALL_PRODUCT]
    return fits[0] if fits else PANEL_WIDTHS[-1]


def _pad_rows(x: FloatArray, num_rows: int) -> FloatArray:
    if len(x) == num_rows:
        return x
    padded = np.zeros((num_rows, x.shape[1]), np.float32)
    padded[: len(x)] = x
    return padded
