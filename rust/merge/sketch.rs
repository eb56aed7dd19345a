//! An upper bound on every pair's count, in a fixed number of cells: pairs in the same cell share a bound. A bound
//! below the threshold proves that a pair is too rare; a higher one proves nothing.

use crate::pairs::{hash, key};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Sketch {
    cells: Vec<AtomicU64>,
    /// One bit per cell: whether its bound reaches the threshold. Small enough for the CPU's cache.
    alive: Vec<u64>,
    shift: u32,
}

impl Sketch {
    /// `2^bits` cells of 8 bytes.
    pub fn new(bits: u32) -> Self {
        let cells = (0..1usize << bits).map(|_| AtomicU64::new(0)).collect();
        Sketch { cells, alive: vec![0; (1usize << bits).div_ceil(64)], shift: 64 - bits }
    }

    #[inline(always)]
    fn cell(&self, left: u32, right: u32) -> usize {
        (hash(key(left, right)) >> self.shift) as usize
    }

    #[inline(always)]
    pub fn add(&self, left: u32, right: u32, count: u64) {
        self.cells[self.cell(left, right)].fetch_add(count, Relaxed);
    }

    pub fn clear(&mut self) {
        self.cells.iter_mut().for_each(|cell| *cell.get_mut() = 0);
    }

    pub fn largest(&mut self) -> u64 {
        self.cells.iter_mut().map(|cell| *cell.get_mut()).max().unwrap_or(0)
    }

    /// Sets the threshold for `alive`.
    pub fn set_threshold(&mut self, threshold: u64) {
        for (bits, cells) in self.alive.iter_mut().zip(self.cells.chunks_mut(64)) {
            *bits = cells
                .iter_mut()
                .enumerate()
                .fold(0, |bits, (n, cell)| bits | u64::from(*cell.get_mut() >= threshold) << n);
        }
    }

    #[inline(always)]
    pub fn alive(&self, left: u32, right: u32) -> bool {
        let cell = self.cell(left, right);
        self.alive[cell / 64] >> (cell % 64) & 1 == 1
    }

    /// The median of the bounds at or above `threshold`; always more than `threshold`.
    pub fn halve(&mut self, threshold: u64) -> u64 {
        let mut bounds: Vec<u64> =
            self.cells.iter_mut().map(|cell| *cell.get_mut()).filter(|&bound| bound >= threshold).collect();
        let middle = bounds.len() / 2;
        let half = if bounds.is_empty() { 0 } else { *bounds.select_nth_unstable(middle).1 };
        half.max(threshold + 1)
    }
}
