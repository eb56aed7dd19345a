//! The sum of squares of a tensor, for the gradient norm.

use super::element::Element;
use super::team::{Kernel, Rows, run};
use super::vector::{LANES, Vector, load};
use std::ops::Range;

/// A flat tensor is cut into rows of this width, the last one shorter.
const WIDTH: usize = 8 << 10;

/// Four sums at a time, because each addition has to wait for the last one to the same sum.
#[inline(always)]
pub fn sum_of_squares<V: Vector, T: Element>(row: &[T]) -> f32 {
    let mut sums = [V::splat(0.0); 4];
    let mut at = 0;
    while at + 4 * LANES <= row.len() {
        for (quarter, sum) in sums.iter_mut().enumerate() {
            let x = load::<V, _>(row, at + quarter * LANES);
            *sum = *sum + x * x;
        }
        at += 4 * LANES;
    }
    while at < row.len() {
        let x = load::<V, _>(row, at);
        sums[0] = sums[0] + x * x;
        at += LANES;
    }
    ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum()
}

struct Squares<'a, T> {
    numbers: &'a [T],
    sums: Rows<'a, f64>,
}

impl<T: Element> Kernel for Squares<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            let start = row * WIDTH;
            let numbers = &self.numbers[start..self.numbers.len().min(start + WIDTH)];
            // SAFETY: each row is in one range only.
            unsafe { self.sums.row(row)[0] = f64::from(sum_of_squares::<V, T>(numbers)) }
        }
    }
}

/// The sum of squares, in an order that depends only on how many numbers there are.
pub fn squares<T: Element>(numbers: &[T], threads: usize) -> f64 {
    let mut sums = vec![0.0; numbers.len().div_ceil(WIDTH)];
    let kernel = Squares { numbers, sums: Rows::new(&mut sums, 1) };
    run(&kernel, kernel.sums.len(), 8, threads);
    sums.iter().sum()
}
