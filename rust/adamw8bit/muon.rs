//! What Muon needs besides matrix products if its states are 8-bit: the momentum, and weights that are rounded
//! stochastically.
//!
//! The momentum of a block is whole numbers from -127 to 127 times the scale of the block: unlike the moments of AdamW,
//! nothing is divided by it, so small numbers need no relative precision. As in AdamW's step, every element is computed
//! from its own block, by operations that round one at a time.

use super::{BLOCK, Number, scale};
use crate::kernels::{Kernel, Rows, Vector, run};
use std::ops::Range;

/// Blocks that a thread processes at a time.
const PORTION: usize = 32;
/// Of a block's largest magnitude, what one unit is.
const UNIT: f32 = 1.0 / 127.0;
/// Adding this to a smaller float rounds it to an integer, ties to even, which is then in the low bits.
const TO_INTEGER: f32 = 12_582_912.0; // 1.5 * 2^23, so that negative numbers work too

struct Momentum<'a, G> {
    gradients: Rows<'a, G>,
    codes: Rows<'a, i8>,
    scales: Rows<'a, f32>,
    decay: f32,
    gain: f32,
}

impl<G: Number> Kernel for Momentum<'_, G> {
    #[inline(always)]
    fn rows<V: Vector>(&self, blocks: Range<usize>) {
        for number in blocks {
            // SAFETY: each block is in one range only.
            let (gradients, codes, scale) =
                unsafe { (self.gradients.row(number), self.codes.row(number), self.scales.row(number)) };
            block(gradients, codes, &mut scale[0], self.decay, self.gain);
        }
    }
}

#[inline(always)]
fn block<G: Number>(gradients: &mut [G], codes: &mut [i8], block_scale: &mut f32, decay: f32, gain: f32) {
    let count = gradients.len();
    let codes = &mut codes[..count];
    let mut moments = [0f32; BLOCK];
    let decayed = decay * *block_scale;
    let mut most = 0u32;
    for i in 0..count {
        let gained = gain * gradients[i].wide();
        let moment = f32::from(codes[i]) * decayed + gained;
        gradients[i] = G::nearest(decay * moment + gained);
        most = most.max(moment.to_bits() & 0x7fff_ffff);
        moments[i] = moment;
    }
    let unit = scale(most) * UNIT;
    *block_scale = if unit < f32::MIN_POSITIVE { 0.0 } else { unit };
    if *block_scale > 0.0 {
        let inverse = 1.0 / *block_scale;
        for (code, moment) in codes.iter_mut().zip(&moments) {
            *code = (moment * inverse + TO_INTEGER).to_bits() as i8;
        }
    } else {
        codes.fill(0);
    }
}

/// Moves the momentum towards the gradients, and each gradient towards the momentum (Nesterov):
///
/// ```text
/// momentum = decay * momentum + gain * gradient
/// gradient = decay * momentum + gain * gradient
/// ```
///
/// # Panics
/// If the lengths of the slices do not match.
pub fn momentum<G: Number>(
    gradients: &mut [G],
    codes: &mut [i8],
    scales: &mut [f32],
    decay: f32,
    gain: f32,
    threads: usize,
) {
    assert!(codes.len() == gradients.len() && scales.len() == gradients.len().div_ceil(BLOCK));
    let kernel = Momentum {
        gradients: Rows::new(gradients, BLOCK),
        codes: Rows::new(codes, BLOCK),
        scales: Rows::new(scales, 1),
        decay,
        gain,
    };
    run(&kernel, kernel.scales.len(), PORTION, threads);
}

struct Subtract<'a, W> {
    weights: Rows<'a, W>,
    changes: &'a [f32],
    keep: f32,
    rounding_key: u32,
    first_index: u64,
}

impl<W: Number> Kernel for Subtract<'_, W> {
    #[inline(always)]
    fn rows<V: Vector>(&self, blocks: Range<usize>) {
        for number in blocks {
            // SAFETY: each block is in one range only.
            let weights = unsafe { self.weights.row(number) };
            let changes = &self.changes[number * BLOCK..][..weights.len()];
            let index = (self.first_index + (number * BLOCK) as u64) as u32;
            for i in 0..weights.len() {
                let weight = self.keep * weights[i].wide() - changes[i];
                weights[i] = W::narrow(weight, self.rounding_key, index.wrapping_add(i as u32));
            }
        }
    }
}

/// `weight = keep * weight - change`, rounded by the key and the index of the element, of which the first is given.
///
/// # Panics
/// If the lengths of the slices do not match.
pub fn subtract<W: Number>(
    weights: &mut [W],
    changes: &[f32],
    keep: f32,
    rounding_key: u32,
    first_index: u64,
    threads: usize,
) {
    assert_eq!(weights.len(), changes.len());
    let kernel = Subtract { weights: Rows::new(weights, BLOCK), changes, keep, rounding_key, first_index };
    run(&kernel, kernel.weights.len(), PORTION, threads);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scatter::scatter;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let one = |n: u32| {
            let bits = scatter(n.wrapping_add(seed << 20));
            (bits as i32 as f32) * f32::from_bits((60 + bits % 50) << 23)
        };
        (0..count as u32).map(one).collect()
    }

    #[test]
    fn threads_change_no_bit() {
        let count = 5 * PORTION * BLOCK + 77;
        let outcome = |threads: usize| {
            let (mut codes, mut scales) = (vec![0; count], vec![0f32; count.div_ceil(BLOCK)]);
            let mut weights: Vec<u16> = numbers(count, 9).iter().map(|&n| u16::nearest(n)).collect();
            let mut directions = Vec::new();
            for step in 0..4 {
                let mut gradients = numbers(count, step);
                momentum(&mut gradients, &mut codes, &mut scales, 0.95, 0.05, threads);
                subtract(&mut weights, &gradients, 0.99, 7, u64::from(u32::MAX) - 500, threads);
                directions.extend(gradients.iter().map(|direction| direction.to_bits()));
            }
            (codes, scales.iter().map(|scale| scale.to_bits()).collect::<Vec<_>>(), weights, directions)
        };
        let alone = outcome(1);
        for threads in [2, 5] {
            assert!(alone == outcome(threads));
        }
    }

    #[test]
    fn the_first_step_is_the_gradient() {
        let gradients = numbers(1000, 3);
        let mut directions = gradients.clone();
        let (mut codes, mut scales) = ([0i8; 1000], [0f32; 4]);
        momentum(&mut directions, &mut codes, &mut scales, 0.95, 0.05, 1);
        for (gradient, direction) in gradients.iter().zip(&directions) {
            assert_eq!(*direction, 0.95 * (0.05 * gradient) + 0.05 * gradient);
        }
        let largest = gradients[..BLOCK].iter().fold(0f32, |most, gradient| most.max(gradient.abs()));
        assert_eq!(scales[0], 0.05 * largest * UNIT);
        assert!(codes[..BLOCK].iter().any(|code| code.abs() == 127));
    }

    #[test]
    fn small_changes_of_bf16_weights_are_not_lost() {
        let mut weights = vec![u16::nearest(1.0); 100_000];
        for key in 0..10 {
            subtract(&mut weights, &vec![1e-4; 100_000], 1.0, key, 0, 1);
        }
        let mean = weights.iter().map(|weight| f64::from(weight.wide())).sum::<f64>() / 1e5;
        assert!((mean - 0.999).abs() < 1e-4, "{mean}");
    }
}
