//! Loops over flat arrays: sums, and the steps of AdamW and of Muon's momentum in fp32.
//!
//! Every operation rounds on its own and every element is computed from its own inputs, so that neither threads nor
//! vectors change a bit.

use crate::adamw8bit::{Number, Step};
use crate::kernels::{Element, Kernel, Rows, Vector, run};
use std::ops::Range;

/// An array is cut into rows of this width, the last one shorter.
const WIDTH: usize = 8 << 10;

struct Add<'a, T> {
    sum: Rows<'a, T>,
    part: &'a [T],
}

impl<T: Element> Kernel for Add<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let sum = unsafe { self.sum.row(row) };
            let part = &self.part[row * WIDTH..][..sum.len()];
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum = T::narrow(sum.widen() + part.widen());
            }
        }
    }
}

/// `sum += part`
pub fn add<T: Element>(sum: &mut [T], part: &[T], threads: usize) {
    assert_eq!(sum.len(), part.len());
    let kernel = Add { sum: Rows::new(sum, WIDTH), part };
    run(&kernel, kernel.sum.len(), 1, threads);
}

struct Scale<'a> {
    numbers: Rows<'a, f32>,
    by: f32,
}

impl Kernel for Scale<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            for number in unsafe { self.numbers.row(row) } {
                *number *= self.by;
            }
        }
    }
}

pub fn scale(numbers: &mut [f32], by: f32, threads: usize) {
    let kernel = Scale { numbers: Rows::new(numbers, WIDTH), by };
    run(&kernel, kernel.numbers.len(), 8, threads);
}

struct Clear<'a, T> {
    numbers: Rows<'a, T>,
}

impl<T: Copy + Default + Send + Sync> Kernel for Clear<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            unsafe { self.numbers.row(row) }.fill(T::default());
        }
    }
}

pub fn clear<T: Copy + Default + Send + Sync>(numbers: &mut [T], threads: usize) {
    let kernel = Clear { numbers: Rows::new(numbers, WIDTH) };
    run(&kernel, kernel.numbers.len(), 8, threads);
}

/// The scalars of a step of AdamW in fp32, computed in fp64 and rounded once.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// What gradients are multiplied by.
    pub grad_scale: f32,
    /// 1 - beta1
    pub first_gain: f32,
    pub second_decay: f32,
    /// 1 - beta2
    pub second_gain: f32,
    /// The root of the second moment's bias correction.
    pub unbias: f32,
    pub eps: f32,
    /// The learning rate with the first moment's bias correction.
    pub rate: f32,
    /// 1 - learning rate * weight decay
    pub keep: f32,
}

struct AdamWStep<'a> {
    weights: Rows<'a, f32>,
    gradients: &'a [f32],
    first: Rows<'a, f32>,
    second: Rows<'a, f32>,
    given: AdamW,
}

impl Kernel for AdamWStep<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        let AdamW { grad_scale, first_gain, second_decay, second_gain, unbias, eps, rate, keep } = self.given;
        for row in rows {
            // SAFETY: each row is in one range only.
            let (weights, first, second) =
                unsafe { (self.weights.row(row), self.first.row(row), self.second.row(row)) };
            let count = weights.len();
            let (first, second) = (&mut first[..count], &mut second[..count]);
            let gradients = &self.gradients[row * WIDTH..][..count];
            for i in 0..count {
                let gradient = gradients[i] * grad_scale;
                first[i] += first_gain * (gradient - first[i]);
                second[i] = second_decay * second[i] + second_gain * gradient * gradient;
                let divisor = second[i].sqrt() / unbias + eps;
                weights[i] = keep * weights[i] - rate * first[i] / divisor;
            }
        }
    }
}

/// A step of AdamW with the formulas of `torch.optim.AdamW`.
pub fn adamw(
    weights: &mut [f32],
    gradients: &[f32],
    [first, second]: [&mut [f32]; 2],
    given: AdamW,
    threads: usize,
) {
    assert!(
        gradients.len() == weights.len() && first.len() == weights.len() && second.len() == weights.len()
    );
    let (weights, first, second) =
        (Rows::new(weights, WIDTH), Rows::new(first, WIDTH), Rows::new(second, WIDTH));
    let kernel = AdamWStep { weights, gradients, first, second, given };
    run(&kernel, kernel.weights.len(), 2, threads);
}

/// A step of the 8-bit AdamW over a tensor that is too small to be quantized: its moments have 32 bits.
pub fn small_step<W: Number>(
    weights: &mut [W],
    gradients: &[f32],
    [first, second]: [&mut [f32]; 2],
    step: &Step,
) {
    assert!(
        gradients.len() == weights.len() && first.len() == weights.len() && second.len() == weights.len()
    );
    let (decay, gain) = (step.root_decay * step.root_decay, step.root_gain * step.root_gain);
    for i in 0..weights.len() {
        let gradient = gradients[i];
        first[i] = step.first_decay * first[i] + step.first_gain * gradient;
        second[i] = decay * second[i] + gain * gradient * gradient;
        let update = step.rate * first[i] / (second[i].sqrt() + step.eps);
        let index = (step.first_index as u32).wrapping_add(i as u32);
        weights[i] = W::narrow(step.keep * weights[i].wide() - update, step.rounding_key, index);
    }
}

struct Momentum<'a> {
    gradients: Rows<'a, f32>,
    momentum: Rows<'a, f32>,
    gain: f32,
    grad_scale: f32,
}

impl Kernel for Momentum<'_> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let (gradients, momentum) = unsafe { (self.gradients.row(row), self.momentum.row(row)) };
            for (gradient, moment) in gradients.iter_mut().zip(momentum) {
                let scaled = *gradient * self.grad_scale;
                *moment += self.gain * (scaled - *moment);
                *gradient = *moment - self.gain * (*moment - scaled);
            }
        }
    }
}

/// Moves the momentum towards the gradients, and each gradient towards the momentum (Nesterov).
pub fn momentum(gradients: &mut [f32], momentum: &mut [f32], gain: f32, grad_scale: f32, threads: usize) {
    assert_eq!(gradients.len(), momentum.len());
    let (gradients, momentum) = (Rows::new(gradients, WIDTH), Rows::new(momentum, WIDTH));
    let kernel = Momentum { gradients, momentum, gain, grad_scale };
    run(&kernel, kernel.momentum.len(), 2, threads);
}
