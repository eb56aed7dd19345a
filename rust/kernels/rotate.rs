//! The rotary turn of queries and keys.

use super::element::Element;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, store};
use std::ops::Range;

/// The angles, and which of them a row is turned by.
pub struct Turn<'a, P> {
    /// A row for each position, of half a head's width.
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    pub half: usize,
    /// One for each row.
    pub positions: &'a [P],
    /// The first so many heads of a row are turned.
    pub heads: usize,
    pub inverse: bool,
}

/// A position the angles do not reach.
#[derive(Debug, PartialEq, Eq)]
pub struct BadPosition(pub i64);

struct Rotate<'a, T, P> {
    turn: &'a Turn<'a, P>,
    matrix: Rows<'a, T>,
}

impl<T: Element, P: Copy + Into<i64> + Sync> Kernel for Rotate<'_, T, P> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let half = self.turn.half;
        let sign = V::splat(if self.turn.inverse { -1.0 } else { 1.0 });
        for row in rows {
            let position: i64 = self.turn.positions[row].into();
            let cos = &self.turn.cos[position as usize * half..][..half];
            let sin = &self.turn.sin[position as usize * half..][..half];
            // SAFETY: a row is in one range only.
            let matrix = unsafe { self.matrix.row(row) };
            for head in matrix[..self.turn.heads * 2 * half].chunks_exact_mut(2 * half) {
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

/// Turns every row of `matrix`, or none where a position is out of reach.
pub fn rotate<T: Element, P: Copy + Into<i64> + Sync>(
    matrix: &mut [T],
    turn: &Turn<'_, P>,
    threads: usize,
) -> Result<(), BadPosition> {
    let rows = turn.positions.len();
    if rows == 0 || turn.heads == 0 {
        return Ok(());
    }
    assert!(turn.half > 0 && turn.cos.len() == turn.sin.len() && matrix.len().is_multiple_of(rows));
    let width = matrix.len() / rows;
    assert!(turn.heads * 2 * turn.half <= width);
    let context = (turn.cos.len() / turn.half) as i64;
    for &position in turn.positions {
        let position: i64 = position.into();
        if !(0..context).contains(&position) {
            return Err(BadPosition(position));
        }
    }
    let turned_bytes = turn.heads * 2 * turn.half * size_of::<T>();
    run(&Rotate { turn, matrix: Rows::new(matrix, width) }, rows, portion(turned_bytes), threads);
    Ok(())
}
