//! Matrix products in fp32 whose bits depend on nothing: not on the threads, the CPU or how the work is divided.
//!
//! Every number of a product is one chain of fused multiply-adds, in the order of the inner dimension. Vectors hold
//! numbers of different chains, so the width of the registers does not matter.
//!
//! A matrix is stored in panels of sixteen columns, `panel[k][lane]`, which is what both operands of
//! `product[i][j] = sum of a[k][i] * b[k][j]` need: no operand is copied to another order first. That is a product of
//! `a` transposed, which is `a` itself where it is symmetric. Sixteen rows of a panel are a tile.

use super::team::{Kernel, Rows};
use super::vector::{LANES, Line, Vector};
use std::ops::Range;

pub const TILE: usize = LANES;

/// A part of a panel, or of a result.
type Tile = [Line; TILE];

const ZERO: Tile = [Line([0.0; LANES]); TILE];

/// Adds the product of two panels to a tile.
#[inline(always)]
pub fn add_product<V: Vector>(a: &[Line], b: &[Line], tile: &mut Tile) {
    let mut first = 0;
    while first < TILE {
        match V::ROWS {
            16 => add_rows::<V, 16>(a, b, first, tile),
            _ => add_rows::<V, 4>(a, b, first, tile),
        }
        first += V::ROWS;
    }
}

#[inline(always)]
fn add_rows<V: Vector, const ROWS: usize>(a: &[Line], b: &[Line], first: usize, tile: &mut Tile) {
    // Indices only: an iterator that is not inlined, as in builds without optimization across units, takes the sums out
    // of their registers.
    let mut sums = [V::splat(0.0); ROWS];
    let mut row = 0;
    while row < ROWS {
        sums[row] = V::load_f32(&tile[first + row].0);
        row += 1;
    }
    let (depth, mut k) = (a.len().min(b.len()), 0);
    while k < depth {
        let (a, b) = (&a[k].0, V::load_f32(&b[k].0));
        let mut row = 0;
        while row < ROWS {
            sums[row] = V::splat(a[first + row]).mul_add(b, sums[row]);
            row += 1;
        }
        k += 1;
    }
    let mut row = 0;
    while row < ROWS {
        sums[row].store_f32(&mut tile[first + row].0);
        row += 1;
    }
}

/// A matrix of any size in memory that several threads use, each other numbers.
#[derive(Clone, Copy)]
pub struct Strided {
    start: *mut f32,
    /// Numbers along lanes, and along a panel.
    size: [usize; 2],
    /// One of them is 1.
    strides: [usize; 2],
}

// SAFETY: the methods that read or write require disjoint parts.
unsafe impl Sync for Strided {}
unsafe impl Send for Strided {}

impl Strided {
    /// Rows along lanes, columns along panels.
    ///
    /// # Safety
    /// `start` has `rows * columns` numbers that stay valid while this is in use.
    pub unsafe fn new(start: *mut f32, rows: usize, columns: usize) -> Strided {
        Strided { start, size: [rows, columns], strides: [columns, 1] }
    }

    pub fn transposed(self) -> Strided {
        let Strided { start, size: [lanes, depth], strides: [lane, along] } = self;
        Strided { start, size: [depth, lanes], strides: [along, lane] }
    }

    pub fn lanes(&self) -> usize {
        self.size[0]
    }

    pub fn depth(&self) -> usize {
        self.size[1]
    }

    /// Lines `along` of the panel that starts at `lane`, each number times `scale`. Lanes beyond the matrix are 0.
    ///
    /// # Safety
    /// No other thread may write these numbers.
    #[inline(always)]
    pub unsafe fn read<V: Vector>(&self, lane: usize, along: Range<usize>, scale: f32, panel: &mut [Line]) {
        assert!(lane < self.lanes() && along.end <= self.depth() && panel.len() == along.len());
        let lanes = LANES.min(self.lanes() - lane);
        // SAFETY (all below): these lanes and lines are within the matrix.
        let start = unsafe { self.start.add(lane * self.strides[0] + along.start * self.strides[1]) };
        if self.strides[0] == 1 {
            for (at, line) in panel.iter_mut().enumerate() {
                let from = unsafe { std::slice::from_raw_parts(start.add(at * self.strides[1]), lanes) };
                super::vector::load::<V, f32>(from, 0).store_f32(&mut line.0);
            }
        } else {
            if lanes < LANES {
                panel.fill(ZERO[0]);
            }
            for (at, tile) in panel.chunks_mut(TILE).enumerate() {
                for lane in 0..lanes {
                    let from = unsafe { start.add(lane * self.strides[0] + at * TILE) };
                    for (k, line) in tile.iter_mut().enumerate() {
                        line.0[lane] = unsafe { *from.add(k) };
                    }
                }
            }
        }
        let scale = V::splat(scale);
        for line in panel {
            (V::load_f32(&line.0) * scale).store_f32(&mut line.0);
        }
    }

    /// Writes a tile whose first line is `along`, without what is beyond the matrix.
    ///
    /// # Safety
    /// No other thread may read or write these numbers.
    #[inline(always)]
    unsafe fn write(&self, lane: usize, along: usize, tile: &Tile) {
        assert!(lane < self.lanes() && along < self.depth());
        let (lanes, lines) = (LANES.min(self.lanes() - lane), TILE.min(self.depth() - along));
        // SAFETY (all below): these lanes and lines are within the matrix.
        let start = unsafe { self.start.add(lane * self.strides[0] + along * self.strides[1]) };
        if self.strides[0] == 1 {
            for (at, line) in tile[..lines].iter().enumerate() {
                let to = unsafe { std::slice::from_raw_parts_mut(start.add(at * self.strides[1]), lanes) };
                to.copy_from_slice(&line.0[..lanes]);
            }
        } else {
            for lane in 0..lanes {
                let to = unsafe { std::slice::from_raw_parts_mut(start.add(lane * self.strides[0]), lines) };
                for (to, line) in to.iter_mut().zip(tile) {
                    *to = line.0[lane];
                }
            }
        }
    }
}

/// Copies lines `along` of a matrix to panels. The rows of this kernel are panels.
pub struct Pack<'a> {
    pub matrix: Strided,
    pub along: Range<usize>,
    pub scale: f32,
    pub panels: Rows<'a, Line>,
}

impl Kernel for Pack<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for panel in rows {
            // SAFETY: each panel is in one range only, and the matrix is not written meanwhile.
            unsafe {
                self.matrix.read::<V>(panel * LANES, self.along.clone(), self.scale, self.panels.row(panel));
            }
        }
    }
}

/// What becomes of a product.
#[derive(Clone, Copy)]
pub enum Then<'a> {
    /// It is added to the result.
    Add,
    /// It is the result.
    Store,
    /// `first + second * a + third * product` is the result.
    Polynomial { first: f32, second: f32, third: f32, a: &'a [Line] },
}

/// The product of two matrices if it is symmetric: the tiles below the diagonal, mirrored.
///
/// The rows of this kernel are panels of the result, from the one with the most tiles on.
pub struct Symmetric<'a> {
    /// Both in panels of `depth` lines, of which `used` count.
    pub a: &'a [Line],
    pub b: &'a [Line],
    pub depth: usize,
    pub used: usize,
    /// In tiles, `panels` of them in a panel.
    pub result: Rows<'a, Line>,
    pub panels: usize,
    pub then: Then<'a>,
}

impl Symmetric<'_> {
    /// # Safety
    /// No two threads may have the same tile.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    unsafe fn tile(&self, row: usize, column: usize) -> &mut Tile {
        // SAFETY: by the caller's word.
        unsafe { self.result.row(column * self.panels + row).first_chunk_mut().unwrap() }
    }
}

impl Kernel for Symmetric<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for column in rows {
            let b = &self.b[column * self.depth..][..self.used];
            for row in column..self.panels {
                let a = &self.a[row * self.depth..][..self.used];
                // SAFETY: tiles of this column, and their mirror images, are in this range only.
                let tile = unsafe { self.tile(row, column) };
                if !matches!(self.then, Then::Add) {
                    *tile = ZERO;
                }
                add_product::<V>(a, b, tile);
                if let Then::Polynomial { first, second, third, a } = self.then {
                    let a = &a[(column * self.panels + row) * TILE..][..TILE];
                    for (line, a) in tile.iter_mut().zip(a) {
                        let added = V::load_f32(&a.0) * V::splat(second);
                        V::splat(third).mul_add(V::load_f32(&line.0), added).store_f32(&mut line.0);
                    }
                    if row == column {
                        for (lane, line) in tile.iter_mut().enumerate() {
                            line.0[lane] += first;
                        }
                    }
                }
                if row != column {
                    // SAFETY: as above, and another one.
                    let mirrored = unsafe { self.tile(column, row) };
                    for (at, line) in tile.iter().enumerate() {
                        for (mirrored, &number) in mirrored.iter_mut().zip(&line.0) {
                            mirrored.0[at] = number;
                        }
                    }
                }
            }
        }
    }
}

/// How many panels of the matrix one range of `Apply` takes.
pub const WIDE: usize = 4;

/// Replaces a matrix by its product with a symmetric one, in place: the lanes of `matrix` are columns of the result.
///
/// The rows of this kernel are groups of `WIDE` panels.
pub struct Apply<'a> {
    /// In panels of `depth` lines.
    pub symmetric: &'a [Line],
    pub depth: usize,
    pub matrix: Strided,
    pub scale: f32,
    /// One per thread, of `WIDE` panels each.
    pub scratch: &'a std::sync::Mutex<Vec<&'a mut [Line]>>,
}

impl Kernel for Apply<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let used = self.matrix.depth();
        let scratch = self.scratch.lock().unwrap().pop().expect("scratch for every thread");
        for group in rows {
            let first = group * WIDE * LANES;
            let panels = WIDE.min((self.matrix.lanes() - first).div_ceil(LANES));
            for (at, panel) in scratch.chunks_mut(used).take(panels).enumerate() {
                // SAFETY: these lanes are in this range only.
                unsafe { self.matrix.read::<V>(first + at * LANES, 0..used, self.scale, panel) };
            }
            for (row, symmetric) in self.symmetric.chunks(self.depth).enumerate() {
                for (at, panel) in scratch.chunks(used).take(panels).enumerate() {
                    let mut tile = ZERO;
                    add_product::<V>(&symmetric[..used], panel, &mut tile);
                    // SAFETY: as above; all of these lanes have been read.
                    unsafe { self.matrix.write(first + at * LANES, row * TILE, &tile) };
                }
            }
        }
        self.scratch.lock().unwrap().push(scratch);
    }
}
