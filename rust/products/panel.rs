//! Operands in the order in which the steps use them.
//!
//! A panel has `WIDTH` lanes, `panel[step][lane]`. Lanes are rows of the left operand, which are broadcast one by one,
//! and columns of the right one, which are loaded as vectors.

use super::step::Step;
use crate::kernels::{Element, LANES, Vector};
use std::ops::Range;

/// Lanes of a panel of the left and the right operand.
pub const LEFT: usize = 12;
pub const RIGHT: usize = 2 * LANES;

/// Stores of a left panel are of sixteen lanes; what is too much is overwritten by the next one, or is in this gap.
const GAP: usize = LANES;

/// How many numbers a left panel has.
pub const fn left_length(steps: usize) -> usize {
    (steps * LEFT + GAP).next_multiple_of(LANES)
}

/// A matrix as an operand.
#[derive(Clone, Copy)]
pub struct Operand<'a, T> {
    pub numbers: &'a [T],
    /// The number of columns.
    pub stride: usize,
    /// Whether a row of the matrix is a lane; otherwise it is one step, or half of one.
    pub along: bool,
    /// If a step has two numbers and the last one has only one: what is the second. The product of both operands' is -0,
    /// which changes no sum.
    pub beyond: u16,
}

impl<T: Element> Operand<'_, T> {
    /// Writes panels of these lanes, `length` apart. Lanes beyond them are of any value.
    #[inline(always)]
    pub fn pack<S: Step, const WIDTH: usize>(
        &self,
        lanes: Range<usize>,
        inner: Range<usize>,
        panels: &mut [f32],
        length: usize,
    ) {
        if !self.along {
            return self.pack_across::<S, WIDTH>(lanes, inner, panels, length);
        }
        let mut panel = 0;
        while panel * WIDTH < lanes.len() {
            let lane = lanes.start + panel * WIDTH;
            let lanes = lane..lanes.end.min(lane + WIDTH);
            self.pack_along::<S, WIDTH>(lanes, inner.clone(), &mut panels[panel * length..]);
            panel += 1;
        }
    }

    #[inline(always)]
    fn pack_along<S: Step, const WIDTH: usize>(
        &self,
        lanes: Range<usize>,
        inner: Range<usize>,
        panel: &mut [f32],
    ) {
        let steps = inner.len().div_ceil(S::NUMBERS);
        let mut first = 0;
        while first < lanes.len() {
            let start = (lanes.start + first) * self.stride;
            let rows = LANES.min(lanes.len() - first);
            let mut step = 0;
            while step < steps {
                let from = start + inner.start + step * S::NUMBERS..start + inner.end;
                let columns = LANES.min(steps - step);
                let to = &mut panel[step * WIDTH + first..];
                // Registers keep the numbers only if how many there are is known.
                if columns == LANES && rows == LANES {
                    self.transpose::<S, WIDTH>(from, LANES, LANES, to);
                } else if columns == LANES && rows == LEFT {
                    self.transpose::<S, WIDTH>(from, LEFT, LANES, to);
                } else {
                    self.transpose::<S, WIDTH>(from, rows, columns, to);
                }
                step += LANES;
            }
            first += LANES;
        }
    }

    /// Sixteen steps of `rows` rows, the first of which is at `from`, to `columns` columns of a panel.
    #[inline(always)]
    fn transpose<S: Step, const WIDTH: usize>(
        &self,
        from: Range<usize>,
        rows: usize,
        columns: usize,
        panel: &mut [f32],
    ) {
        let mut vectors = [S::V::splat(0.0); LANES];
        let mut row = 0;
        while row < rows {
            let numbers = &self.numbers[from.start + row * self.stride..from.end + row * self.stride];
            vectors[row] = S::load_along(numbers, self.beyond);
            row += 1;
        }
        let vectors = S::V::transposed(vectors);
        let mut column = 0;
        while column < columns {
            vectors[column].store_f32(panel[column * WIDTH..].first_chunk_mut().unwrap());
            column += 1;
        }
    }

    #[inline(always)]
    fn pack_across<S: Step, const WIDTH: usize>(
        &self,
        lanes: Range<usize>,
        inner: Range<usize>,
        panels: &mut [f32],
        length: usize,
    ) {
        let (mut step, mut k) = (0, inner.start);
        while k < inner.end {
            let ahead = self.numbers.as_ptr().wrapping_add((k + AHEAD) * self.stride + lanes.start);
            let (mut panel, mut lane) = (0, lanes.start);
            while lane < lanes.end {
                let mut first = 0;
                while first < WIDTH && lane + first < lanes.end {
                    // To the end of the matrix, not of the row: that is seldom less than a register.
                    let at = k * self.stride + lane + first;
                    let second =
                        if k + 1 < inner.end { Some(&self.numbers[at + self.stride..]) } else { None };
                    let vector = S::load_across(&self.numbers[at..], second, self.beyond);
                    let to = panel * length + step * WIDTH + first;
                    vector.store_f32(panels[to..].first_chunk_mut().unwrap());
                    prefetch(ahead.wrapping_add(lane + first - lanes.start));
                    first += LANES;
                }
                lane += WIDTH;
                panel += 1;
            }
            k += S::NUMBERS;
            step += 1;
        }
    }
}

/// How many rows of a matrix ahead of the packing memory is read: rows are too far apart for the CPU to see that.
const AHEAD: usize = 12;

/// Reads memory into the cache, if the address is valid.
#[inline(always)]
pub fn prefetch<T>(_address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: any address may be prefetched.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(_address.cast());
    }
}

/// Sums of `LEFT` rows and `RIGHT` columns.
pub type Tile = [f32; LEFT * RIGHT];

/// Adds the product of two panels to sums in memory, of `rows` and `columns` rounded up to what the registers hold.
///
/// # Safety
/// Each panel has `steps` steps, and `sums` has `rows` and `columns`, rounded up to 12 and 32, at this stride.
#[inline(always)]
pub unsafe fn add_product<S: Step>(
    panels: (*const f32, *const f32),
    steps: usize,
    sums: (*mut f32, usize),
    size: (usize, usize),
    from_zero: bool,
) {
    let begun = S::begin();
    let vectors = size.1.div_ceil(LANES);
    let mut row = 0;
    while row < size.0 {
        let left = size.0 - row;
        let mut vector = 0;
        let mut rows = 1;
        while vector < vectors {
            // SAFETY: within the panels and the sums.
            let (left_panel, right_panel, to) = unsafe {
                let right_panel = panels.1.add(vector * LANES);
                (panels.0.add(row), right_panel, (sums.0.add(row * sums.1 + vector * LANES), sums.1))
            };
            let two = S::VECTORS == 2 && vectors - vector >= 2;
            macro_rules! block {
                ($rows:literal) => {{
                    rows = $rows;
                    if two {
                        unsafe { add_block::<S, $rows, 2>(left_panel, right_panel, steps, to, from_zero) }
                    } else {
                        unsafe { add_block::<S, $rows, 1>(left_panel, right_panel, steps, to, from_zero) }
                    }
                }};
            }
            if S::ROWS >= 12 && left > 8 {
                block!(12)
            } else if S::ROWS >= 12 && left > 4 {
                block!(8)
            } else if S::ROWS == 6 && left > 4 {
                block!(6)
            } else if left > 2 {
                block!(4)
            } else if left > 1 {
                block!(2)
            } else {
                block!(1)
            }
            vector += if two { 2 } else { 1 };
        }
        row += rows;
    }
    S::end(begun);
}

#[inline(always)]
unsafe fn add_block<S: Step, const ROWS: usize, const VECTORS: usize>(
    left: *const f32,
    right: *const f32,
    steps: usize,
    (sums, stride): (*mut f32, usize),
    from_zero: bool,
) {
    // Indices only: an iterator that is not inlined, as in builds without optimization across units, takes the sums out
    // of their registers.
    let mut blocks = [[S::V::splat(0.0); VECTORS]; ROWS];
    // SAFETY (all below): by the caller's word.
    if !from_zero {
        let mut row = 0;
        while row < ROWS {
            let mut vector = 0;
            while vector < VECTORS {
                blocks[row][vector] =
                    unsafe { S::V::load_f32(&*sums.add(row * stride + vector * LANES).cast()) };
                vector += 1;
            }
            row += 1;
        }
    }
    let mut step = 0;
    while step < steps {
        let mut columns = [S::V::splat(0.0); VECTORS];
        let mut vector = 0;
        while vector < VECTORS {
            columns[vector] = unsafe { S::V::load_f32(&*right.add(step * RIGHT + vector * LANES).cast()) };
            vector += 1;
        }
        let mut row = 0;
        while row < ROWS {
            let number = S::V::splat(unsafe { *left.add(step * LEFT + row) });
            let mut vector = 0;
            while vector < VECTORS {
                blocks[row][vector] = S::step(number, columns[vector], blocks[row][vector]);
                vector += 1;
            }
            row += 1;
        }
        step += 1;
    }
    let mut row = 0;
    while row < ROWS {
        let mut vector = 0;
        while vector < VECTORS {
            unsafe { blocks[row][vector].store_f32(&mut *sums.add(row * stride + vector * LANES).cast()) };
            vector += 1;
        }
        row += 1;
    }
}
