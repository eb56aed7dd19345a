//! Small matrices in the order that their products read, and these products.
//!
//! A block is stored in panels of two lines (32 columns), `panel[row][line]`; the last one has one line if the lines are
//! odd. A product computes a tile of a few rows and one panel in registers: for each step along the inner dimension it
//! loads a row of a panel of `b`, and multiplies it by numbers of `a`. Every number of a product is one chain of fused
//! multiply-adds, which goes on from what the result has: its bits depend on the order of the steps alone, not on how
//! they are divided into blocks.

use super::View;
use crate::kernels::{Element, LANES, Line, Vector, load};

/// Lines of a row of a panel.
pub const PANEL: usize = 2;
/// Rows of a tile. The rows of a block are a multiple of it.
pub const TILE: usize = 8;

pub struct Block<'a> {
    data: &'a mut [Line],
    rows: usize,
    /// Of a row.
    lines: usize,
}

/// What a product is added to.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    Zero,
    /// What the result has.
    Kept,
    /// What the result has, each row times its factor.
    Scaled(&'a [f32]),
}

impl<'a> Block<'a> {
    /// Takes its lines from `scratch`.
    pub fn cut(scratch: &mut &'a mut [Line], rows: usize, lines: usize) -> Block<'a> {
        assert!(rows.is_multiple_of(TILE));
        let (data, rest) = std::mem::take(scratch).split_at_mut(rows * lines);
        *scratch = rest;
        Block { data, rows, lines }
    }

    pub fn fill(&mut self, value: f32) {
        self.data.fill(Line([value; LANES]));
    }

    #[inline(always)]
    fn panel_lines(&self, line: usize) -> usize {
        PANEL.min(self.lines - line / PANEL * PANEL)
    }

    #[inline(always)]
    fn index(&self, row: usize, line: usize) -> usize {
        let panel = line / PANEL * PANEL;
        panel * self.rows + row * self.panel_lines(line) + line - panel
    }

    #[inline(always)]
    pub fn line(&self, row: usize, line: usize) -> &[f32; LANES] {
        &self.data[self.index(row, line)].0
    }

    #[inline(always)]
    pub fn line_mut(&mut self, row: usize, line: usize) -> &mut [f32; LANES] {
        let index = self.index(row, line);
        &mut self.data[index].0
    }

    /// The lines of a block of one panel.
    #[inline(always)]
    pub fn rows_mut(&mut self) -> &mut [[Line; PANEL]] {
        assert!(self.lines == PANEL);
        self.data.as_chunks_mut().0
    }

    /// Copies columns of some tokens, `width` from `column` on, each number times `scale`. The rest is 0.
    #[inline(always)]
    pub fn read<V: Vector, T: Element>(
        &mut self,
        from: View<'_, T>,
        tokens: std::ops::Range<usize>,
        column: usize,
        width: usize,
        scale: f32,
    ) {
        let scale = V::splat(scale);
        let count = tokens.len();
        for (row, token) in tokens.enumerate() {
            let from = &from.data[token * from.stride + from.first + column..][..width];
            let mut line = 0;
            while line + PANEL <= self.lines {
                let to: &mut [Line; PANEL] =
                    self.data[line * self.rows + row * PANEL..].first_chunk_mut().unwrap();
                (load::<V, T>(from, line * LANES) * scale).store_f32(&mut to[0].0);
                (load::<V, T>(from, (line + 1) * LANES) * scale).store_f32(&mut to[1].0);
                line += PANEL;
            }
            if line < self.lines {
                (load::<V, T>(from, line * LANES) * scale).store_f32(self.line_mut(row, line));
            }
        }
        for row in count..self.rows {
            for line in 0..self.lines {
                *self.line_mut(row, line) = [0.0; LANES];
            }
        }
    }

    /// The columns of `from` as rows.
    #[inline(always)]
    pub fn transpose<V: Vector>(&mut self, from: &Block<'_>) {
        for row in 0..self.rows / LANES {
            for line in 0..self.lines {
                for k in 0..LANES {
                    let given = from.line(line * LANES + k, row);
                    for (lane, &number) in given.iter().enumerate() {
                        self.line_mut(row * LANES + lane, line)[k] = number;
                    }
                }
            }
        }
    }

    /// `self[r][c] = sum over k of a[r][k] * b[k][c]`, for the first `rows` and `k` up to `depth`.
    #[inline(always)]
    pub fn product<V: Vector>(
        &mut self,
        a: &Block<'_>,
        b: &Block<'_>,
        rows: usize,
        depth: usize,
        start: Start<'_>,
    ) {
        assert!(rows <= a.rows && depth <= a.lines * LANES);
        self.multiply::<V, false>(a, b, rows, depth, start);
    }

    /// `self[r][c] = sum over k of a[k][r] * b[k][c]`, for the first `rows` and `k` up to `depth`. `a` is one panel.
    #[inline(always)]
    pub fn transposed_product<V: Vector>(
        &mut self,
        a: &Block<'_>,
        b: &Block<'_>,
        rows: usize,
        depth: usize,
        start: Start<'_>,
    ) {
        assert!(rows <= PANEL * LANES && a.lines == PANEL && depth <= a.rows);
        self.multiply::<V, true>(a, b, rows, depth, start);
    }

    #[inline(always)]
    fn multiply<V: Vector, const TRANSPOSED: bool>(
        &mut self,
        a: &Block<'_>,
        b: &Block<'_>,
        rows: usize,
        depth: usize,
        start: Start<'_>,
    ) {
        assert!(rows <= self.rows && depth <= b.rows && b.lines == self.lines);
        let mut line = 0;
        while line < self.lines {
            let wide = V::ROWS >= PANEL * TILE && self.panel_lines(line) == PANEL;
            let mut row = 0;
            while row < rows {
                // SAFETY: the rows of blocks are a multiple of `TILE`, and everything else is asserted above.
                unsafe {
                    if wide {
                        self.tile::<V, TILE, PANEL, TRANSPOSED>(a, b, row, line, depth, start);
                    } else if V::ROWS >= TILE {
                        self.tile::<V, TILE, 1, TRANSPOSED>(a, b, row, line, depth, start);
                    } else {
                        self.tile::<V, { TILE / 2 }, 1, TRANSPOSED>(a, b, row, line, depth, start);
                        self.tile::<V, { TILE / 2 }, 1, TRANSPOSED>(a, b, row + TILE / 2, line, depth, start);
                    }
                }
                row += TILE;
            }
            line += if wide { PANEL } else { 1 };
        }
    }

    /// # Safety
    /// All of it is within the three blocks.
    #[inline(always)]
    unsafe fn tile<V: Vector, const ROWS: usize, const LINES: usize, const TRANSPOSED: bool>(
        &mut self,
        a: &Block<'_>,
        b: &Block<'_>,
        row: usize,
        line: usize,
        depth: usize,
        start: Start<'_>,
    ) {
        let panel_lines = self.panel_lines(line);
        let index = self.index(row, line);
        // Indices only, and no closures: sums have to stay in registers.
        let mut sums = [[V::splat(0.0); LINES]; ROWS];
        if !matches!(start, Start::Zero) {
            let mut r = 0;
            while r < ROWS {
                let mut l = 0;
                while l < LINES {
                    sums[r][l] = V::load_f32(&self.data[index + r * panel_lines + l].0);
                    if let Start::Scaled(factors) = start {
                        sums[r][l] = sums[r][l] * V::splat(factors[row + r]);
                    }
                    l += 1;
                }
                r += 1;
            }
        }
        let from = a.data.as_ptr().cast::<f32>();
        // SAFETY (all below): by the caller's word.
        unsafe {
            let mut steps = Steps { b: b.data.as_ptr().add(b.index(0, line)), lines: panel_lines };
            if TRANSPOSED {
                steps.add::<V, ROWS, LINES, 1, { PANEL * LANES }>(&mut sums, from.add(row), depth);
            } else {
                let mut k = 0;
                while k < depth {
                    let from = from.add(a.index(row, k / LANES) * LANES);
                    if a.panel_lines(k / LANES) == PANEL {
                        let count = (PANEL * LANES).min(depth - k);
                        steps.add::<V, ROWS, LINES, { PANEL * LANES }, 1>(&mut sums, from, count);
                        k += PANEL * LANES;
                    } else {
                        steps.add::<V, ROWS, LINES, LANES, 1>(&mut sums, from, LANES.min(depth - k));
                        k += LANES;
                    }
                }
            }
        }
        let mut r = 0;
        while r < ROWS {
            let mut l = 0;
            while l < LINES {
                sums[r][l].store_f32(&mut self.data[index + r * panel_lines + l].0);
                l += 1;
            }
            r += 1;
        }
    }
}

/// Steps along the inner dimension of a product.
struct Steps {
    /// Of the next step.
    b: *const Line,
    /// From one step to the next.
    lines: usize,
}

impl Steps {
    /// # Safety
    /// `b` has the lines, and `a` the numbers, of this many steps.
    #[inline(always)]
    unsafe fn add<
        V: Vector,
        const ROWS: usize,
        const LINES: usize,
        const BY_ROW: usize,
        const BY_STEP: usize,
    >(
        &mut self,
        sums: &mut [[V; LINES]; ROWS],
        mut a: *const f32,
        count: usize,
    ) {
        let mut step = 0;
        while step < count {
            // SAFETY (all below): by the caller's word.
            let mut lines = [V::splat(0.0); LINES];
            let mut l = 0;
            while l < LINES {
                lines[l] = V::load_f32(unsafe { &(*self.b.add(l)).0 });
                l += 1;
            }
            let mut r = 0;
            while r < ROWS {
                let factor = V::splat(unsafe { *a.add(r * BY_ROW) });
                let mut l = 0;
                while l < LINES {
                    sums[r][l] = factor.mul_add(lines[l], sums[r][l]);
                    l += 1;
                }
                r += 1;
            }
            unsafe {
                self.b = self.b.add(self.lines);
                a = a.add(BY_STEP);
            }
            step += 1;
        }
    }
}
