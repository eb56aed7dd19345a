//! Gradient accumulation.

use super::element::Element;
use super::team::{Kernel, Rows, run};
use super::vector::{LANES, Vector, load, store};
use std::ops::Range;

/// A flat tensor is cut into rows of this width, the last one shorter.
const WIDTH: usize = 8 << 10;

struct Accumulate<'a, T> {
    sum: Rows<'a, f32>,
    part: &'a [T],
}

impl<T: Element> Kernel for Accumulate<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let sum = unsafe { self.sum.row(row) };
            let part = &self.part[row * WIDTH..][..sum.len()];
            let mut at = 0;
            while at < sum.len() {
                store(load::<V, _>(sum, at) + load(part, at), sum, at);
                at += LANES;
            }
        }
    }
}

/// `sum += part`
pub fn accumulate<T: Element>(sum: &mut [f32], part: &[T], threads: usize) {
    assert_eq!(sum.len(), part.len());
    let kernel = Accumulate { sum: Rows::new(sum, WIDTH), part };
    run(&kernel, kernel.sum.len(), 1, threads);
}
