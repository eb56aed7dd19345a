//! Sixteen `f32` at once, whatever the width of the CPU's registers.
//!
//! Written by hand for AVX-512 and AVX2: with arrays for the compiler to vectorize, half of the code stayed scalar, and
//! `exp` was three times slower. All types give the same bits: none fuses a multiplication and an addition that are
//! written as two, and all fuse `mul_add`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;

use super::element::Element;
use std::ops::{Add, Div, Mul, Sub};

pub const LANES: usize = 16;

/// Sixteen numbers in a cache line of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Line(pub [f32; LANES]);

/// All methods are `#[inline(always)]`, but for a few of `Portable`'s, and may only be called if the CPU has the
/// instructions of the type.
pub trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// How many sums, one per row of a matrix product, fit into the registers.
    const ROWS: usize;

    fn splat(value: f32) -> Self;
    fn load_f32(from: &[f32; LANES]) -> Self;
    fn store_f32(self, to: &mut [f32; LANES]);
    /// bf16 as its bits.
    fn load_bf16(from: &[u16; LANES]) -> Self;
    /// Rounds as `Bf16::narrow`.
    fn store_bf16(self, to: &mut [u16; LANES]);

    /// `self * by + plus`, rounded once.
    fn mul_add(self, by: Self, plus: Self) -> Self;
    /// `self > other ? self : other`: a NaN in `self` is ignored.
    fn greater(self, other: Self) -> Self;
    /// `left <= right ? yes : no`
    fn choose_at_most(left: Self, right: Self, yes: Self, no: Self) -> Self;
    /// Adds the lowest nine bits of `shifted` to the exponent.
    fn add_to_exponent(self, shifted: Self) -> Self;
    /// Rows to columns. Bits are moved, whatever they mean.
    fn transposed(rows: [Self; LANES]) -> [Self; LANES];

    /// Pairwise by halves, always in the same order.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store_f32(&mut lanes);
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
            half /= 2;
        }
        lanes[0]
    }

    #[inline(always)]
    fn greatest(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store_f32(&mut lanes);
        let mut greatest = lanes[0];
        for lane in lanes {
            greatest = if lane > greatest { lane } else { greatest };
        }
        greatest
    }
}

/// `row[at..at + LANES]`, padded with 0 at the row's end.
#[inline(always)]
pub fn load<V: Vector, T: Element>(row: &[T], at: usize) -> V {
    load_or(row, at, T::default())
}

/// `row[at..at + LANES]`, padded with `beyond` at the row's end.
#[inline(always)]
pub fn load_or<V: Vector, T: Element>(row: &[T], at: usize, beyond: T) -> V {
    match row[at..].first_chunk() {
        Some(whole) => T::load(whole),
        None => T::load(&padded(&row[at..], beyond)),
    }
}

#[cold]
#[inline(never)]
fn padded<T: Element>(rest: &[T], beyond: T) -> [T; LANES] {
    let mut padded = [beyond; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

/// Into `row[at..at + LANES]`; lanes beyond the row's end are dropped.
#[inline(always)]
pub fn store<V: Vector, T: Element>(vector: V, row: &mut [T], at: usize) {
    match row[at..].first_chunk_mut() {
        Some(whole) => T::store(vector, whole),
        None => {
            let mut padded = [T::default(); LANES];
            T::store(vector, &mut padded);
            cut(&padded, &mut row[at..]);
        }
    }
}

#[cold]
#[inline(never)]
fn cut<T: Element>(padded: &[T; LANES], rest: &mut [T]) {
    rest.copy_from_slice(&padded[..rest.len()]);
}
