//! Softmax cross entropy and its gradient, in place over the logits.
//!
//! Three passes over each row, one from memory and two from the L2 cache: its maximum, the sum of the exponentials, the
//! gradient.

use super::element::Element;
use super::exp::exp;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, load_or, store};
use std::ops::Range;

/// The label of positions without a loss, as PyTorch's `ignore_index`.
pub const IGNORE: i64 = -100;

/// A label that is not a column of the logits.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLabel(pub i64);

struct CrossEntropy<'a, T> {
    labels: &'a [i64],
    vocab: usize,
    scale: f32,
    logits: Rows<'a, T>,
    losses: Rows<'a, f32>,
}

#[inline(always)]
fn greatest<V: Vector, T: Element>(row: &[T]) -> f32 {
    let lowest = T::narrow(f32::NEG_INFINITY);
    let mut greatest = [V::splat(f32::NEG_INFINITY); 4];
    let mut at = 0;
    while at + 4 * LANES <= row.len() {
        for (quarter, greatest) in greatest.iter_mut().enumerate() {
            *greatest = load::<V, _>(row, at + quarter * LANES).greater(*greatest);
        }
        at += 4 * LANES;
    }
    while at < row.len() {
        greatest[0] = load_or::<V, _>(row, at, lowest).greater(greatest[0]);
        at += LANES;
    }
    greatest[0].greater(greatest[1]).greater(greatest[2].greater(greatest[3])).greatest()
}

/// The sum of exp(x - greatest).
#[inline(always)]
fn sum_of_exp<V: Vector, T: Element>(row: &[T], greatest: f32) -> f32 {
    let lowest = T::narrow(f32::NEG_INFINITY);
    let greatest = V::splat(greatest);
    let mut sums = [V::splat(0.0); 2];
    let mut at = 0;
    while at + 2 * LANES <= row.len() {
        for (half, sum) in sums.iter_mut().enumerate() {
            *sum = *sum + exp(load::<V, _>(row, at + half * LANES) - greatest);
        }
        at += 2 * LANES;
    }
    while at < row.len() {
        sums[0] = sums[0] + exp(load_or::<V, _>(row, at, lowest) - greatest);
        at += LANES;
    }
    (sums[0] + sums[1]).sum()
}

impl<T: Element> Kernel for CrossEntropy<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let (logits, loss) = unsafe { (self.logits.row(row), &mut self.losses.row(row)[0]) };
            if self.labels[row] == IGNORE {
                *loss = 0.0;
                logits.fill(T::narrow(0.0));
                continue;
            }
            let (logits, padding) = logits.split_at_mut(self.vocab);
            padding.fill(T::narrow(0.0));
            let label = self.labels[row] as usize;
            let target = logits[label].widen();
            let mut shift = greatest::<V, T>(logits);
            let mut factor = self.scale;
            if shift.is_finite() {
                let sum = sum_of_exp::<V, T>(logits, shift);
                *loss = (shift - target) + sum.ln();
                factor /= sum;
            } else {
                // Exponents relative to an infinity are undefined: the sum is infinite, 0 or NaN.
                if logits.iter().any(|x| x.widen().is_nan()) {
                    shift = f32::NAN;
                }
                *loss = shift - target;
            }
            let (shifts, factors) = (V::splat(shift), V::splat(factor));
            let mut at = 0;
            while at < self.vocab {
                store(exp(load::<V, _>(logits, at) - shifts) * factors, logits, at);
                at += LANES;
            }
            let share = exp(V::splat(target - shift)).greatest() * factor;
            logits[label] = T::narrow(share - self.scale);
        }
    }
}

/// Computes each row's loss; `logits` are overwritten with `scale` times their gradient.
///
/// Columns from `vocab` on are padding: they are ignored and get gradient 0, as do rows with the label `IGNORE`. If a
/// label is invalid, nothing is changed.
pub fn cross_entropy<T: Element>(
    logits: &mut [T],
    labels: &[i64],
    vocab: usize,
    scale: f32,
    losses: &mut [f32],
    threads: usize,
) -> Result<(), BadLabel> {
    if labels.is_empty() {
        return Ok(());
    }
    assert!(losses.len() == labels.len() && logits.len().is_multiple_of(labels.len()));
    let width = logits.len() / labels.len();
    assert!(0 < vocab && vocab <= width);
    for &label in labels {
        if label != IGNORE && !(0..vocab as i64).contains(&label) {
            return Err(BadLabel(label));
        }
    }
    let (logits, losses) = (Rows::new(logits, width), Rows::new(losses, 1));
    let kernel = CrossEntropy { labels, vocab, scale, logits, losses };
    run(&kernel, labels.len(), portion(width * size_of::<T>()), threads);
    Ok(())
}
