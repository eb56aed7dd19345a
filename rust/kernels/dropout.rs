//! Dropout. Which elements are dropped is a hash of the key of their sequence, the place in the model, the position of
//! the token and the column: nothing is stored, and the backward pass computes the same mask again.

use super::element::Element;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, store};
use crate::scatter::scatter;
use std::ops::Range;

#[derive(Clone, Copy)]
pub struct Mask<'a> {
    /// One for each sequence; the lower 32 bits are used. All sequences have the same number of tokens.
    pub keys: &'a [i64],
    pub place: u32,
    /// An element is dropped if its hash is below this.
    pub threshold: u32,
    /// What the others are multiplied by.
    pub scale: f32,
}

impl Mask<'_> {
    /// The key of a token, which is a row of the activations.
    #[inline(always)]
    fn key_of(&self, row: usize, seq_len: usize) -> u32 {
        let sequence = scatter((self.keys[row / seq_len] as u32).wrapping_add(self.place));
        scatter(sequence.wrapping_add((row % seq_len) as u32))
    }

    /// What columns `at..at + LANES` of a token are multiplied by.
    #[inline(always)]
    fn factors<V: Vector>(&self, key: u32, at: usize) -> V {
        let first = key.wrapping_add(at as u32);
        let mut factors = [0.0; LANES];
        for (lane, factor) in factors.iter_mut().enumerate() {
            let dropped = scatter(first.wrapping_add(lane as u32)) < self.threshold;
            *factor = if dropped { 0.0 } else { self.scale };
        }
        V::load_f32(&factors)
    }

    /// Tokens in a sequence, of a matrix with this many elements.
    fn seq_len(&self, elements: usize, width: usize) -> usize {
        let rows = elements.checked_div(width).unwrap_or(0);
        assert!(rows * width == elements && !self.keys.is_empty() && rows.is_multiple_of(self.keys.len()));
        rows / self.keys.len()
    }
}

struct Dropout<'a, T> {
    mask: Mask<'a>,
    seq_len: usize,
    x: &'a [T],
    width: usize,
    out: Rows<'a, T>,
}

impl<T: Element> Kernel for Dropout<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            let key = self.mask.key_of(row, self.seq_len);
            let x = &self.x[row * self.width..][..self.width];
            // SAFETY: each row is in one range only.
            let out = unsafe { self.out.row(row) };
            let mut at = 0;
            while at < self.width {
                store(load::<V, _>(x, at) * self.mask.factors(key, at), out, at);
                at += LANES;
            }
        }
    }
}

/// `out` is `x` with the mask applied; rows of `width` elements.
pub fn dropout<T: Element>(x: &[T], mask: Mask<'_>, width: usize, out: &mut [T], threads: usize) {
    assert_eq!(x.len(), out.len());
    if x.is_empty() {
        return;
    }
    let seq_len = mask.seq_len(x.len(), width);
    let kernel = Dropout { mask, seq_len, x, width, out: Rows::new(out, width) };
    run(&kernel, kernel.out.len(), portion(2 * width * size_of::<T>()), threads);
}

struct DropoutAdd<'a, T> {
    mask: Mask<'a>,
    seq_len: usize,
    x: &'a [T],
    width: usize,
    branch: Rows<'a, T>,
}

impl<T: Element> Kernel for DropoutAdd<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            let key = self.mask.key_of(row, self.seq_len);
            let x = &self.x[row * self.width..][..self.width];
            // SAFETY: each row is in one range only.
            let branch = unsafe { self.branch.row(row) };
            let mut at = 0;
            while at < self.width {
                let kept = load::<V, _>(branch, at) * self.mask.factors(key, at);
                store(load::<V, _>(x, at) + kept, branch, at);
                at += LANES;
            }
        }
    }
}

/// In place: the branch with the mask applied, plus `x`; rows of `width` elements.
pub fn dropout_add<T: Element>(branch: &mut [T], x: &[T], mask: Mask<'_>, width: usize, threads: usize) {
    assert_eq!(x.len(), branch.len());
    if x.is_empty() {
        return;
    }
    let seq_len = mask.seq_len(x.len(), width);
    let kernel = DropoutAdd { mask, seq_len, x, width, branch: Rows::new(branch, width) };
    run(&kernel, kernel.branch.len(), portion(3 * width * size_of::<T>()), threads);
}
