//! The first weights: normal, by a hash of the seed, the number of the tensor and of the element.
//!
//! Nothing but whole numbers and exact operations, so that a seed is the same model on every system: a normal number
//! is the sum of twelve uniform ones (Irwin-Hall), whose variance is 1.

use super::arena::Span;
use super::choice::Precision;
use super::layout::named;
use super::model::Model;
use super::shape::Place;
use super::states::Flat;
use crate::kernels::{Bf16, Element, Kernel, Rows, Vector, run};
use std::ops::Range;

const DEVIATION: f64 = 0.02;

/// The uniform numbers are whole, below this.
const UNIFORM: i64 = 1 << 16;
const SUMMED: i64 = 12;

impl Model {
    pub fn initialize(&mut self, seed: u64) {
        let residual = DEVIATION / ((2 * self.shape.layers) as f64).sqrt();
        let qk_gain = qk_gain(self.shape.head_width);
        for (number, (name, flat, place)) in named(&self.places).into_iter().enumerate() {
            let of_heads = name.ends_with(".norm_q") || name.ends_with(".norm_k");
            let into_residual = name.ends_with(".out") || name.ends_with(".down");
            match flat {
                Flat::Gains => {
                    self.gains()[place.range()].fill(if of_heads { qk_gain } else { 1.0 });
                }
                Flat::Matrices => {
                    let deviation = if into_residual { residual } else { DEVIATION };
                    let key = mixed(mixed(seed).wrapping_add(number as u64));
                    // Padding rows of the vocabulary stay 0.
                    let is_vocabulary = place == self.places.embedding || place == self.places.head;
                    let rows = if is_vocabulary { self.shape.vocab } else { place.rows };
                    match self.choice.weights {
                        Precision::Fp32 => self.fill::<f32>(place, rows, deviation, key),
                        Precision::Bf16 => self.fill::<Bf16>(place, rows, deviation, key),
                    }
                }
            }
        }
        for span in self.state_spans() {
            // SAFETY: nobody else uses the model during this call.
            unsafe { self.arena.slice::<u8>(span, span.bytes) }.fill(0);
        }
        self.clear_gradients();
    }

    fn fill<W: Element>(&mut self, place: Place, rows: usize, deviation: f64, key: u64) {
        let threads = self.choice.threads;
        let whole: &mut [W] = self.flat(self.layout.matrices, self.places.matrices);
        let (filled, rest) = whole[place.range()].split_at_mut(rows * place.columns);
        rest.fill(W::default());
        let scale = (deviation / UNIFORM as f64) as f32;
        let kernel = Fill { weights: Rows::new(filled, PORTION), key, scale };
        run(&kernel, kernel.weights.len(), 1, threads);
    }

    fn state_spans(&self) -> Vec<Span> {
        self.layout.groups.iter().flat_map(|group| group.tensors()).map(|tensor| tensor.span).collect()
    }
}

const PORTION: usize = 8 << 10;

struct Fill<'a, W> {
    weights: Rows<'a, W>,
    key: u64,
    scale: f32,
}

impl<W: Element> Kernel for Fill<'_, W> {
    #[inline(always)]
    fn rows<V: Vector>(&self, portions: Range<usize>) {
        for portion in portions {
            // SAFETY: each portion is in one range only.
            let weights = unsafe { self.weights.row(portion) };
            for (index, weight) in weights.iter_mut().enumerate() {
                let element = (portion * PORTION + index) as u64;
                // Exact as an f32: at most 21 bits.
                *weight = W::narrow(normal(self.key, element) as f32 * self.scale);
            }
        }
    }
}

/// Normal with mean 0 and the variance of twelve uniform numbers, `UNIFORM`^2: a multiple of 1/2.
#[inline(always)]
fn normal(key: u64, element: u64) -> f64 {
    let mut sum = 0;
    for part in 0..SUMMED as u64 / 4 {
        let bits = mixed(key.wrapping_add(3 * element + part));
        for quarter in 0..4 {
            sum += (bits >> (16 * quarter) & 0xffff) as i64;
        }
    }
    // Twice the distance to the mean is whole.
    (2 * sum - SUMMED * (UNIFORM - 1)) as f64 / 2.0
}

/// 64 pseudo-random bits from a counter: SplitMix64.
#[inline(always)]
fn mixed(counter: u64) -> u64 {
    let mut bits = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// How sharp attention can be at first, as `initial_qk_gain` of `engines/torch/weights.py`.
fn qk_gain(head_width: usize) -> f32 {
    match head_width {
        0..=32 => 1.0,
        _ => (1.0 + log2(head_width as f64 / 32.0) / 4.0) as f32,
    }
}

/// Of a number from 1 on, bit by bit: the system's may differ in the last one.
fn log2(mut number: f64) -> f64 {
    let (mut found, mut bit) = (0.0, 1.0);
    while number >= 2.0 {
        number /= 2.0;
        found += 1.0;
    }
    for _ in 0..40 {
        bit /= 2.0;
        number *= number;
        if number >= 2.0 {
            number /= 2.0;
            found += bit;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_the_moments_of_a_normal_distribution() {
        let count = 200_000;
        let (mut moments, mut beyond) = ([0.0; 4], 0);
        for element in 0..count {
            let number = normal(mixed(7), element) / UNIFORM as f64;
            for (power, moment) in moments.iter_mut().enumerate() {
                *moment += number.powi(power as i32 + 1) / count as f64;
            }
            beyond += usize::from(number.abs() > 2.0);
        }
        let [mean, variance, skew, kurtosis] = moments;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{moments:?}");
        assert!(skew.abs() < 0.03 && (kurtosis - 2.9).abs() < 0.06, "{moments:?}");
        assert!((beyond as f64 / count as f64 - 0.0455).abs() < 0.003, "{beyond}");
    }

    #[test]
    fn gains_of_heads() {
        assert_eq!([16, 32, 64, 128].map(qk_gain), [1.0, 1.0, 1.25, 1.5]);
        assert!((log2(3.0) - 3.0_f64.log2()).abs() < 1e-11);
    }
}
