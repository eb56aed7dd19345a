//! Gradients in 8 bits: each 32 numbers of a row have one exponent, as in the OCP's format MXINT8.
//!
//! Products are added to them in fp32 and rounded stochastically, up with a probability equal to the part that is cut off:
//! what is much smaller than the others of its block is not lost but added occasionally, and sums have no bias.

use crate::kernels::{Kernel, Rows, Vector, run};
use crate::scatter::scatter;
use std::ops::Range;

/// Numbers that share an exponent.
pub const SHARED: usize = 32;
/// The exponent of numbers that are not finite.
const NOT_FINITE: u8 = 255;
/// Numbers in a row of the loops over a whole array.
const WIDTH: usize = 256 * SHARED;

/// Some numbers: whole blocks.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    pub codes: &'a [i8],
    /// One for each block: a number is its code times 2^(exponent - 127).
    pub exponents: &'a [u8],
}

#[derive(Debug)]
pub struct CodesMut<'a> {
    pub codes: &'a mut [i8],
    pub exponents: &'a mut [u8],
}

/// How the sums of one call are rounded: the random bits of a number come from the key and its index.
#[derive(Clone, Copy, Debug)]
pub struct Rounding {
    pub key: u32,
    pub first_index: u32,
}

/// What one step of the code is worth.
#[inline(always)]
fn step_of(exponent: u8) -> f32 {
    f32::from_bits(u32::from(exponent) << 23)
}

/// Adds numbers to a block.
#[inline(always)]
pub fn merge(codes: &mut [i8; SHARED], exponent: &mut u8, added: &[f32; SHARED], key: u32, index: u32) {
    let step = step_of(*exponent);
    let mut sums = [0.0; SHARED];
    let mut greatest = 0;
    let mut i = 0;
    while i < SHARED {
        sums[i] = f32::from(codes[i]) * step + added[i];
        // Magnitudes are ordered as their bits; those of NaN and infinities are the greatest.
        let bits = sums[i].to_bits() & 0x7fff_ffff;
        greatest = if bits > greatest { bits } else { greatest };
        i += 1;
    }
    if greatest >= 0x7f80_0000 {
        *exponent = NOT_FINITE;
        *codes = [1; SHARED];
        return;
    }
    // The greatest code is between 64 and 127, but for numbers too small to be of use.
    let mut chosen = (greatest >> 23).saturating_sub(6).max(1);
    if f32::from_bits(greatest) > 127.0 * step_of(chosen as u8) {
        chosen += 1;
    }
    *exponent = if greatest == 0 { 0 } else { chosen as u8 };
    let inverse = f32::from_bits((254 - chosen) << 23);
    let mut i = 0;
    while i < SHARED {
        // 16 random bits: with more, the sum with 127 would not be exact.
        let random = scatter(index.wrapping_add(i as u32).wrapping_add(key)) >> 16;
        let up = random as f32 * (1.0 / 65536.0);
        codes[i] = (sums[i] * inverse + up).floor() as i32 as i8;
        i += 1;
    }
}

impl CodesMut<'_> {
    /// Adds a row of numbers.
    pub fn add(&mut self, added: &[f32], rounding: Rounding) {
        assert!(added.len() == self.codes.len() && added.len() == self.exponents.len() * SHARED);
        let blocks = self.codes.as_chunks_mut::<SHARED>().0.iter_mut().zip(added.as_chunks::<SHARED>().0);
        for (number, ((codes, added), exponent)) in blocks.zip(self.exponents.iter_mut()).enumerate() {
            let index = rounding.first_index.wrapping_add((number * SHARED) as u32);
            merge(codes, exponent, added, rounding.key, index);
        }
    }
}

struct Widen<'a> {
    from: Codes<'a>,
    to: Rows<'a, f32>,
}

impl Kernel for Widen<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let to = unsafe { self.to.row(row) };
            let codes = &self.from.codes[row * WIDTH..][..to.len()];
            let exponents = &self.from.exponents[row * WIDTH / SHARED..];
            for (block, to) in to.chunks_mut(SHARED).enumerate() {
                let step = step_of(exponents[block]);
                for (to, &code) in to.iter_mut().zip(&codes[block * SHARED..]) {
                    *to = f32::from(code) * step;
                }
            }
        }
    }
}

impl Codes<'_> {
    /// As `f32`, which is exact.
    pub fn widen(self, to: &mut [f32], threads: usize) {
        assert!(to.len() == self.codes.len() && to.len().div_ceil(SHARED) == self.exponents.len());
        let kernel = Widen { from: self, to: Rows::new(to, WIDTH) };
        run(&kernel, kernel.to.len(), 8, threads);
    }

    /// The sum of squares, in an order that depends only on how many numbers there are.
    pub fn squares(self) -> f64 {
        let blocks = self.codes.chunks(SHARED).zip(self.exponents);
        let square = |(codes, &exponent): (&[i8], &u8)| {
            let sum: i32 = codes.iter().map(|&code| i32::from(code) * i32::from(code)).sum();
            let step = f64::from(step_of(exponent));
            f64::from(sum) * (step * step)
        };
        blocks.map(square).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(codes: &[i8; SHARED], exponent: u8) -> Vec<f32> {
        let mut found = vec![0.0; SHARED];
        Codes { codes, exponents: &[exponent] }.widen(&mut found, 1);
        found
    }

    #[test]
    fn sums_are_within_a_step_and_without_bias() {
        let added: [f32; SHARED] = std::array::from_fn(|i| (i as f32 - 15.3) * 1e-4);
        let mut means = [0.0f64; SHARED];
        const TIMES: u32 = 400;
        for key in 0..TIMES {
            let (mut codes, mut exponent) = ([0; SHARED], 0);
            for turn in 0..3 {
                merge(&mut codes, &mut exponent, &added, scatter(key * 3 + turn), 0);
            }
            for (mean, value) in means.iter_mut().zip(values(&codes, exponent)) {
                *mean += f64::from(value) / f64::from(TIMES);
            }
        }
        let step = 3.0 * 15.7e-4 / 64.0;
        for (mean, &added) in means.iter().zip(&added) {
            assert!((mean - 3.0 * f64::from(added)).abs() < 0.15 * step, "{mean} {added}");
        }
    }

    #[test]
    fn zeros_stay_zeros_and_extremes_are_kept() {
        let (mut codes, mut exponent) = ([0; SHARED], 0);
        merge(&mut codes, &mut exponent, &[0.0; SHARED], 5, 0);
        assert_eq!((codes, exponent), ([0; SHARED], 0));
        for greatest in [1e38, -1e38, 1.0, 127.0, -127.0, 127.9, 1e-30] {
            for key in 0..50 {
                let (mut codes, mut exponent) = ([0; SHARED], 0);
                let mut added = [0.0; SHARED];
                added[3] = greatest;
                merge(&mut codes, &mut exponent, &added, scatter(key), 7);
                let found = values(&codes, exponent)[3];
                assert!((found / greatest - 1.0).abs() < 1.0 / 60.0, "{found} {greatest}");
                assert_eq!(codes.iter().filter(|&&code| code != 0).count(), 1);
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY] {
            let (mut codes, mut exponent) = ([3; SHARED], 120);
            let mut added = [0.0; SHARED];
            added[9] = bad;
            merge(&mut codes, &mut exponent, &added, 1, 0);
            merge(&mut codes, &mut exponent, &[1.0; SHARED], 2, 0);
            assert!(!Codes { codes: &codes, exponents: &[exponent] }.squares().is_finite());
        }
    }
}
