//! RMSNorm: a row divided by its root mean square, times the gain.

use super::element::Element;
use super::squares::sum_of_squares;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, store};
use std::ops::Range;

/// One over the root mean square.
#[inline(always)]
pub(super) fn scale_of<V: Vector, T: Element>(row: &[T], eps: f32) -> f32 {
    1.0 / (sum_of_squares::<V, T>(row) / row.len() as f32 + eps).sqrt()
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
            // SAFETY: each row is in one range only.
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

/// The gain's gradient is summed over this many rows at a time; then these sums are added in order.
const PIECE: usize = 64;

/// Rows in units of equal size, each cut into pieces within the unit: the pieces of a unit do not depend on how many
/// units there are.
pub(super) struct Pieces {
    pub(super) rows: usize,
    pub(super) unit: usize,
}

impl Pieces {
    fn per_unit(&self) -> usize {
        self.unit.div_ceil(PIECE)
    }

    pub(super) fn count(&self) -> usize {
        self.rows / self.unit * self.per_unit() + (self.rows % self.unit).div_ceil(PIECE)
    }

    pub(super) fn rows(&self, piece: usize) -> Range<usize> {
        let first = piece / self.per_unit() * self.unit;
        let start = first + piece % self.per_unit() * PIECE;
        start..(start + PIECE).min(first + self.unit).min(self.rows)
    }
}

struct NormBackward<'a, T> {
    dy: &'a [T],
    x: &'a [T],
    gain: &'a [f32],
    eps: f32,
    pieces: Pieces,
    /// One row per piece.
    gain_grads: Rows<'a, f32>,
    dx: Rows<'a, T>,
}

impl<T: Element> Kernel for NormBackward<'_, T> {
    /// The rows of this kernel are pieces.
    #[inline(always)]
    fn rows<V: Vector>(&self, pieces: Range<usize>) {
        let width = self.gain.len();
        for piece in pieces {
            // SAFETY: each piece is in one range only, and each row in one piece only.
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
                    let grad = load::<V, _>(dy, at);
                    let product = grad * (load::<V, _>(x, at) * scale);
                    store(load::<V, _>(gain_grad, at) + product, gain_grad, at);
                    products = products + product * load(self.gain, at);
                    at += LANES;
                }
                let mean = V::splat(products.sum() / width as f32);
                let mut at = 0;
                while at < width {
                    let grad = load::<V, _>(dy, at) * load(self.gain, at);
                    let normed = load::<V, _>(x, at) * scale;
                    store((grad - normed * mean) * scale, dx, at);
                    at += LANES;
                }
            }
        }
    }
}

/// Writes the gradient of `x` to `dx` and adds the gain's to `gain_grad`, bit-identical whether called with all rows at
/// once or with one unit of them after another.
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
