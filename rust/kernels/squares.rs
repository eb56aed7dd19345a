//! How long a gradient is: the sum of the squares of its numbers.

use super::element::Element;
use super::team::{Kernel, Rows, run};
use super::vector::{LANES, Vector, load};
use std::ops::Range;

/// A flat tensor is cut into rows of this width, the last one shorter.
const WIDTH: usize = 8 << 10;

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
            let mut sums = [V::splat(0.0); 4];
            let mut at = 0;
            while at + 4 * LANES <= numbers.len() {
                for (quarter, sum) in sums.iter_mut().enumerate() {
                    let x = load::<V, _>(numbers, at + quarter * LANES);
                    *sum = *sum + x * x;
                }
                at += 4 * LANES;
            }
            while at < numbers.len() {
                let x = load::<V, _>(numbers, at);
                sums[0] = sums[0] + x * x;
                at += LANES;
            }
            // SAFETY: a row is in one range only.
            unsafe { self.sums.row(row)[0] = f64::from(((sums[0] + sums[1]) + (sums[2] + sums[3])).sum()) }
        }
    }
}

/// The sum of the squares, in an order that their number alone decides.
pub fn squares<T: Element>(numbers: &[T], threads: usize) -> f64 {
    let mut sums = vec![0.0; numbers.len().div_ceil(WIDTH)];
    let kernel = Squares { numbers, sums: Rows::new(&mut sums, 1) };
    run(&kernel, kernel.sums.len(), 8, threads);
    sums.iter().sum()
}
