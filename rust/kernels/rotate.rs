//! Rotary position embedding of queries and keys.

use super::element::Element;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, store};
use std::ops::Range;

/// The angles, and which of them to rotate each row by.
pub struct Rotary<'a, P> {
    /// One row per position, of half a head's width.
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub half: usize,
    /// One per row.
    pub positions: &'a [P],
    /// How many heads of a row to rotate, from the first.
    pub heads: usize,
    pub inverse: bool,
}

/// A position outside the context.
#[derive(Debug, PartialEq, Eq)]
pub struct BadPosition(pub i64);

struct Rotate<'a, T, P> {
    rotary: &'a Rotary<'a, P>,
    matrix: Rows<'a, T>,
}

impl<T: Element, P: Copy + Into<i64> + Sync> Kernel for Rotate<'_, T, P> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let half = self.rotary.half;
        let sign = V::splat(if self.rotary.inverse { -1.0 } else { 1.0 });
        for row in rows {
            let position: i64 = self.rotary.positions[row].into();
            let cos = &self.rotary.cos[position as usize * half..][..half];
            let sin = &self.rotary.sin[position as usize * half..][..half];
            // SAFETY: each row is in one range only.
            let matrix = unsafe { self.matrix.row(row) };
            for head in matrix[..self.rotary.heads * 2 * half].chunks_exact_mut(2 * half) {
                let (first, second) = head.split_at_mut(half);
                let mut at = 0;
                while at < half {
                    let (c, s) = (load::<V, _>(cos, at), load::<V, _>(sin, at) * sign);
                    let (a, b): (V, V) = (load(first, at), load(second, at));
                    store(a * c - b * s, first, at);
                    store(b * c + a * s, second, at);
                    at += LANES;
                }
            }
        }
    }
}

/// Rotates every row of `matrix`, or none if a position is outside the context.
pub fn rotate<T: Element, P: Copy + Into<i64> + Sync>(
    matrix: &mut [T],
    rotary: &Rotary<'_, P>,
    threads: usize,
) -> Result<(), BadPosition> {
    let rows = rotary.positions.len();
    if rows == 0 || rotary.heads == 0 {
        return Ok(());
    }
    assert!(rotary.half > 0 && rotary.cos.len() == rotary.sin.len() && matrix.len().is_multiple_of(rows));
    let width = matrix.len() / rows;
    assert!(rotary.heads * 2 * rotary.half <= width);
    let context = (rotary.cos.len() / rotary.half) as i64;
    for &position in rotary.positions {
        let position: i64 = position.into();
        if !(0..context).contains(&position) {
            return Err(BadPosition(position));
        }
    }
    let rotated_bytes = rotary.heads * 2 * rotary.half * size_of::<T>();
    run(&Rotate { rotary, matrix: Rows::new(matrix, width) }, rows, portion(rotated_bytes), threads);
    Ok(())
}
