//! RMSNorm: a row over its root mean square, times the gain.

use super::element::Element;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, store};
use std::ops::Range;

/// One over the root mean square. Four sums at a time, since each waits for its last addition.
#[inline(always)]
pub(super) fn scale_of<V: Vector, T: Element>(row: &[T], eps: f32) -> f32 {
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
    let total = ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum();
    1.0 / (total / row.len() as f32 + eps).sqrt()
}

struct Norm<'a, T> {
    x: &'a [T],
    gain: &'a [f32],
    eps: f32,
    out: Rows<'a, T>,
}

impl<T: Element> Kernel for Norm<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let width = self.gain.len();
        for row in rows {
            let x = &self.x[row * width..][..width];
            // SAFETY: a row is in one range only.
            let out = unsafe { self.out.row(row) };
            let scale = scale_of::<V, T>(x, self.eps);
            let scale = V::splat(scale);
            let mut at = 0;
            while at < width {
                store(load::<V, _>(x, at) * scale * load(self.gain, at), out, at);
                at += LANES;
            }
        }
    }
}

pub fn norm<T: Element>(x: &[T], gain: &[f32], eps: f32, out: &mut [T], threads: usize) {
    assert_eq!(x.len(), out.len());
    let kernel = Norm { x, gain, eps, out: Rows::new(out, gain.len()) };
    run(&kernel, kernel.out.len(), portion(2 * size_of_val(gain)), threads);
}

/// The gain's gradient is summed over so many rows apart, before these sums are added up in order.
const PIECE: usize = 64;

/// Rows in units of equal size, each cut into pieces that never reach beyond it: where a unit's pieces lie does
/// not depend on how many units there are.
pub(super) struct Pieces {
    pub(super) rows: usize,
    pub(super) unit: usize,
}

impl Pieces {
    fn a_unit(&self) -> usize {
        self.unit.div_ceil(PIECE)
    }

    pub(super) fn count(&self) -> usize {
        self.rows / self.unit * self.a_unit() + (self.rows % self.unit).div_ceil(PIECE)
    }

    pub(super) fn rows(&self, piece: usize) -> Range<usize> {
        let first = piece / self.a_unit() * self.unit;
        let start = first + piece % self.a_unit() * PIECE;
        start..(start + PIECE).min(first + self.unit).min(self.rows)
    }
}

struct NormBackward<'a, T> {
    dy: &'a [T],
    x: &'a [T],
    gain: &'a [f32],
    eps: f32,
    pieces: Pieces,
    /// A row for each piece.
    gain_grads: Rows<'a, f32>,
    dx: Rows<'a, T>,
}

impl<T: Element> Kernel for NormBackward<'_, T> {
    /// What is handed out are pieces.
    #[inline(always)]
    fn rows<V: Vector>(&self, pieces: Range<usize>) {
        let width = self.gain.len();
        for piece in pieces {
            // SAFETY: a piece is in one range only, and a row in one piece only.
            let gain_grad = unsafe { self.gain_grads.row(piece) };
            for row in self.pieces.rows(piece) {
                // SAFETY: as above.
                let dx = unsafe { self.dx.row(row) };
                let x = &self.x[row * width..][..width];
                let dy = &self.dy[row * width..][..width];
                let scale = scale_of::<V, T>(x, self.eps);
                let scale = V::splat(scale);
                let mut products = V::splat(0.0);
                let mut at = 0;
                while at < width {
                    let slope = load::<V, _>(dy, at);
                    let pull = slope * (load::<V, _>(x, at) * scale);
                    store(load::<V, _>(gain_grad, at) + pull, gain_grad, at);
                    products = products + pull * load(self.gain, at);
                    at += LANES;
                }
                let mean = V::splat(products.sum() / width as f32);
                let mut at = 0;
                while at < width {
                    let slope = load::<V, _>(dy, at) * load(self.gain, at);
                    let normed = load::<V, _>(x, at) * scale;
                    store((slope - normed * mean) * scale, dx, at);
                    at += LANES;
                }
            }
        }
    }
}

/// The gradient of `x` goes to `dx`, the gain's is added to `gain_grad`: the same bits for rows all at once and for
/// one unit of them after the other.
#[allow(clippy::too_many_arguments)]
pub fn norm_backward<T: Element>(
    dy: &[T],
    x: &[T],
    gain: &[f32],
    eps: f32,
    gain_grad: &mut [f32],
    dx: &mut [T],
    unit: usize,
    threads: usize,
) {
    assert!(dy.len() == x.len() && dx.len() == x.len() && gain_grad.len() == gain.len() && unit > 0);
    let dx = Rows::new(dx, gain.len());
    let pieces = Pieces { rows: dx.len(), unit };
    let count = pieces.count();
    let mut partial = vec![0.0; count * gain.len()];
    let gain_grads = Rows::new(&mut partial, gain.len());
    run(&NormBackward { dy, x, gain, eps, pieces, gain_grads, dx }, count, 1, threads);
    for part in partial.chunks_exact(gain.len()) {
        for (sum, value) in gain_grad.iter_mut().zip(part) {
            *sum += value;
        }
    }
}
