//! QK-norm with rotary positions: every query and key head is normalized, multiplied by its gain, then rotated.
//!
//! One pass instead of two, rounded once. The backward pass starts from what went in, so that a layer keeps the
//! plain product and nothing else.

use super::element::Element;
use super::norm::{Pieces, scale_of};
use super::rotate::BadPosition;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, store};
use std::ops::Range;

/// A row of the product is `heads` query heads, `kv_heads` key heads, then values.
pub struct Heads<'a> {
    pub query_gain: &'a [f32],
    pub key_gain: &'a [f32],
    pub eps: f32,
    /// A row for each position, of half a head's width.
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    /// One for each row.
    pub positions: &'a [i64],
    pub heads: usize,
    pub kv_heads: usize,
}

impl Heads<'_> {
    fn head_width(&self) -> usize {
        self.query_gain.len()
    }

    /// Columns of a row that are normalized.
    fn columns(&self) -> usize {
        (self.heads + self.kv_heads) * self.head_width()
    }

    fn gain(&self, head: usize) -> &[f32] {
        if head < self.heads { self.query_gain } else { self.key_gain }
    }

    #[inline(always)]
    fn angles(&self, row: usize) -> (&[f32], &[f32]) {
        let half = self.head_width() / 2;
        let start = self.positions[row] as usize * half;
        (&self.cos[start..][..half], &self.sin[start..][..half])
    }

    fn check(&self) -> Result<(), BadPosition> {
        let half = self.head_width() / 2;
        assert!(half > 0 && self.head_width() == 2 * half && self.key_gain.len() == 2 * half);
        assert!(self.cos.len() == self.sin.len());
        let context = (self.cos.len() / half) as i64;
        match self.positions.iter().find(|position| !(0..context).contains(*position)) {
            Some(&position) => Err(BadPosition(position)),
            None => Ok(()),
        }
    }
}

struct Forward<'a, T> {
    heads: &'a Heads<'a>,
    qkv: &'a [T],
    qkv_width: usize,
    out: Rows<'a, T>,
}

impl<T: Element> Kernel for Forward<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let (width, half) = (self.heads.head_width(), self.heads.head_width() / 2);
        for row in rows {
            let (cos, sin) = self.heads.angles(row);
            let qkv = &self.qkv[row * self.qkv_width..];
            // SAFETY: a row is in one range only.
            let out = unsafe { self.out.row(row) };
            for (head, out) in out.chunks_exact_mut(width).enumerate() {
                let x = &qkv[head * width..][..width];
                let scale = V::splat(scale_of::<V, T>(x, self.heads.eps));
                let (first, second) = x.split_at(half);
                let (first_gain, second_gain) = self.heads.gain(head).split_at(half);
                let (first_out, second_out) = out.split_at_mut(half);
                let mut at = 0;
                while at < half {
                    let a: V = load::<V, _>(first, at) * scale * load(first_gain, at);
                    let b: V = load::<V, _>(second, at) * scale * load(second_gain, at);
                    let (c, s) = (load::<V, _>(cos, at), load::<V, _>(sin, at));
                    store(a * c - b * s, first_out, at);
                    store(b * c + a * s, second_out, at);
                    at += LANES;
                }
            }
        }
    }
}

/// Queries and keys of every row of `qkv`, normalized and rotated, into the rows of `out`.
pub fn qk_norm<T: Element>(
    qkv: &[T],
    heads: &Heads<'_>,
    out: &mut [T],
    threads: usize,
) -> Result<(), BadPosition> {
    let rows = heads.positions.len();
    heads.check()?;
    if rows == 0 {
        return Ok(());
    }
    assert!(qkv.len().is_multiple_of(rows) && out.len() == rows * heads.columns());
    let qkv_width = qkv.len() / rows;
    assert!(heads.columns() <= qkv_width);
    let kernel = Forward { heads, qkv, qkv_width, out: Rows::new(out, heads.columns()) };
    run(&kernel, rows, portion(2 * heads.columns() * size_of::<T>()), threads);
    Ok(())
}

struct Backward<'a, T> {
    heads: &'a Heads<'a>,
    qkv: &'a [T],
    grad: Rows<'a, T>,
    pieces: Pieces,
    /// A row for each piece: the gradient of the query gain, then of the key gain.
    gain_grads: Rows<'a, f32>,
}

impl<T: Element> Kernel for Backward<'_, T> {
    /// What is handed out are pieces.
    #[inline(always)]
    fn rows<V: Vector>(&self, pieces: Range<usize>) {
        for piece in pieces {
            // SAFETY: a piece is in one range only.
            let gain_grads = unsafe { self.gain_grads.row(piece) };
            for row in self.pieces.rows(piece) {
                self.row::<V>(row, gain_grads);
            }
        }
    }
}

impl<T: Element> Backward<'_, T> {
    #[inline(always)]
    fn row<V: Vector>(&self, row: usize, gain_grads: &mut [f32]) {
        let (width, half) = (self.heads.head_width(), self.heads.head_width() / 2);
        let (cos, sin) = self.heads.angles(row);
        // SAFETY: a row is in one piece only.
        let grad = unsafe { self.grad.row(row) };
        let qkv = &self.qkv[row * grad.len()..][..grad.len()];
        let (query_grads, key_grads) = gain_grads.split_at_mut(width);
        let columns = self.heads.columns();
        for (head, grad) in grad[..columns].chunks_exact_mut(width).enumerate() {
            let x = &qkv[head * width..][..width];
            let gain_grad = if head < self.heads.heads { &mut *query_grads } else { &mut *key_grads };
            let scale = V::splat(scale_of::<V, T>(x, self.heads.eps));
            let (first, second) = x.split_at(half);
            let (first_gain, second_gain) = self.heads.gain(head).split_at(half);
            let (first_gain_grad, second_gain_grad) = gain_grad.split_at_mut(half);
            let (first_grad, second_grad) = grad.split_at_mut(half);
            let mut products = V::splat(0.0);
            let mut at = 0;
            while at < half {
                let (da, db) = unrotated::<V, T>(first_grad, second_grad, cos, sin, at);
                let (pa, pb) =
                    (da * (load::<V, _>(first, at) * scale), db * (load::<V, _>(second, at) * scale));
                store(load::<V, _>(first_gain_grad, at) + pa, first_gain_grad, at);
                store(load::<V, _>(second_gain_grad, at) + pb, second_gain_grad, at);
                products = products + (pa * load(first_gain, at) + pb * load(second_gain, at));
                at += LANES;
            }
            let mean = V::splat(products.sum() / width as f32);
            let mut at = 0;
            while at < half {
                let (da, db) = unrotated::<V, T>(first_grad, second_grad, cos, sin, at);
                let (a, b) = (load::<V, _>(first, at) * scale, load::<V, _>(second, at) * scale);
                store((da * load(first_gain, at) - a * mean) * scale, first_grad, at);
                store((db * load(second_gain, at) - b * mean) * scale, second_grad, at);
                at += LANES;
            }
        }
    }
}

#[inline(always)]
fn unrotated<V: Vector, T: Element>(
    first: &[T],
    second: &[T],
    cos: &[f32],
    sin: &[f32],
    at: usize,
) -> (V, V) {
    let (a, b): (V, V) = (load(first, at), load(second, at));
    let (c, s) = (load::<V, _>(cos, at), load::<V, _>(sin, at));
    (a * c + b * s, b * c - a * s)
}

/// In place: the gradient of what `qk_norm` returned becomes that of its input; columns behind queries and keys stay.
/// The gains' gradients are added, the same bits for rows all at once and for one unit of them after the other.
pub fn qk_norm_backward<T: Element>(
    grad: &mut [T],
    qkv: &[T],
    heads: &Heads<'_>,
    [query_gain_grad, key_gain_grad]: [&mut [f32]; 2],
    unit: usize,
    threads: usize,
) -> Result<(), BadPosition> {
    let rows = heads.positions.len();
    heads.check()?;
    if rows == 0 {
        return Ok(());
    }
    let width = heads.head_width();
    assert!(grad.len() == qkv.len() && qkv.len().is_multiple_of(rows) && unit > 0);
    assert!(query_gain_grad.len() == width && key_gain_grad.len() == width);
    assert!(heads.columns() <= qkv.len() / rows);
    let pieces = Pieces { rows, unit };
    let count = pieces.count();
    let mut partial = vec![0.0; count * 2 * width];
    let gain_grads = Rows::new(&mut partial, 2 * width);
    let grad = Rows::new(grad, qkv.len() / rows);
    run(&Backward { heads, qkv, grad, pieces, gain_grads }, count, 1, threads);
    for part in partial.chunks_exact(2 * width) {
        let sums = query_gain_grad.iter_mut().chain(key_gain_grad.iter_mut());
        for (sum, value) in sums.zip(part) {
            *sum += value;
        }
    }
    Ok(())
}
