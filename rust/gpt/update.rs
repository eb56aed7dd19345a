//! An optimizer step: clipping, the update of every group, the copy for products, and zero gradients.
//!
//! Scalars are computed in fp64, with operations that are the same on every system, and rounded to fp32 once.

use super::arena::Span;
use super::choice::Precision;
use super::flat;
use super::model::Model;
use super::states::{Flat, Group, States, stacks};
use crate::adamw8bit::{self, Moments, Number, Step};
use crate::kernels::{Bf16, Line, Matrix, MuonSettings, muon, squares};
use crate::scatter::scatter;
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
pub struct Hyper {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// Of stochastic rounding.
    pub seed: u64,
}

/// What a step needs besides the states.
#[derive(Clone, Copy)]
struct Given {
    hyper: Hyper,
    rate: f64,
    /// What gradients are multiplied by.
    grad_scale: f64,
}

// Muon's, as `engines/torch/optim/muon.py` and `polar.py`.
const MOMENTUM: f64 = 0.95;
const ROW_DECAY: f32 = 0.95;
const UPDATE_SIZE: f64 = 0.2;
const TINY: f32 = 1e-12;
const MARGIN: f64 = 1.02;
const SAFETY: f64 = 1.01;
const FITTED: [[f64; 3]; 4] = [
    [8.152673, -23.215832, 17.022398],
    [3.90967, -2.900342, 0.554001],
    [3.189716, -2.391872, 0.499119],
    [2.199956, -1.576993, 0.40893],
];

fn coefficients() -> Vec<[f32; 3]> {
    let safe = |(number, &[a, b, c]): (usize, &[f64; 3])| {
        let safety = if number + 1 < FITTED.len() { SAFETY } else { 1.0 };
        [a / safety, b / power(safety, 3), c / power(safety, 5)].map(|factor| factor as f32)
    };
    FITTED.iter().enumerate().map(safe).collect()
}

impl Model {
    /// Returns the gradient norm. If it is not finite, the weights stay as they are; gradients are zero afterwards.
    ///
    /// The gradients are first multiplied by `correction`: ignored labels make a step smaller than `learn` assumed.
    /// They are clipped to a norm of `clip`, unless that is 0.
    pub fn update(&mut self, rate: f64, clip: f64, correction: f64, hyper: Hyper) -> f64 {
        match self.choice.compute {
            Precision::Fp32 => self.flush_as::<f32>(),
            Precision::Bf16 => self.flush_as::<Bf16>(),
        }
        let norm = self.grad_norm() * correction;
        if norm.is_finite() {
            let clip = if clip > 0.0 { clip } else { f64::INFINITY };
            let grad_scale = correction * (clip / (norm + 1e-6)).min(1.0);
            let given = Given { hyper, rate, grad_scale };
            // Muon's step is counted by AdamW's, whose groups come behind.
            for (number, group) in self.layout.groups.clone().iter().enumerate().rev() {
                self.step(group, number, given);
            }
            self.refresh();
        }
        self.clear_gradients();
        norm
    }

    fn grad_norm(&mut self) -> f64 {
        let (matrices, gains, threads) = (self.places.matrices, self.places.gains, self.choice.threads);
        let of_matrices = squares::<f32>(self.flat(self.layout.matrix_grads, matrices), threads);
        let of_gains = squares::<f32>(self.flat(self.layout.gain_grads, gains), threads);
        (of_matrices + of_gains).sqrt()
    }

    pub(super) fn clear_gradients(&mut self) {
        if !self.choice.training {
            return;
        }
        let (matrices, gains, threads) = (self.places.matrices, self.places.gains, self.choice.threads);
        flat::clear(self.flat(self.layout.matrix_grads, matrices), threads);
        flat::clear(self.flat(self.layout.gain_grads, gains), threads);
        self.held = 0;
    }

    fn step(&mut self, group: &Group, number: usize, given: Given) {
        let bf16 = group.flat == Flat::Matrices && self.choice.weights == Precision::Bf16;
        // The torch engine's number of the tensor, for stochastic rounding: Muon's comes behind AdamW's.
        let number = match self.choice.optimizer.is_muon() {
            true => (number + 2) % 3,
            false => number,
        };
        match group.states {
            States::Muon { .. } | States::Muon8bit { .. } => self.muon_step(group, number, given),
            _ if bf16 => self.adamw_step::<u16>(group, number, given),
            _ => self.adamw_step::<f32>(group, number, given),
        }
    }

    /// # Safety
    /// As `Arena::slice`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn all<T>(&self, span: Span) -> &mut [T] {
        // SAFETY: by the caller.
        unsafe { self.arena.slice(span, span.bytes / size_of::<T>()) }
    }

    /// # Safety
    /// As `Arena::slice`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn some<T>(&self, span: Span, range: Range<usize>) -> &mut [T] {
        // SAFETY: by the caller.
        unsafe { self.all(span.part::<T>(range)) }
    }

    /// # Safety
    /// As `Arena::slice`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn weights_of<W>(&self, group: &Group) -> &mut [W] {
        let span = match group.flat {
            Flat::Matrices => self.layout.matrices,
            Flat::Gains => self.layout.gains,
        };
        // SAFETY: by the caller.
        unsafe { self.some(span, group.range.clone()) }
    }

    /// # Safety
    /// As `Arena::slice`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn gradients_of(&self, group: &Group) -> &mut [f32] {
        let span = match group.flat {
            Flat::Matrices => self.layout.matrix_grads,
            Flat::Gains => self.layout.gain_grads,
        };
        // SAFETY: by the caller.
        unsafe { self.some(span, group.range.clone()) }
    }

    fn adamw_step<W: Number + Wide>(&mut self, group: &Group, number: usize, given: Given) {
        let Given { hyper, rate, grad_scale } = given;
        let decay = if group.has_weight_decay { hyper.weight_decay } else { 0.0 };
        let threads = self.choice.threads;
        // SAFETY: different places of a model that is borrowed.
        let (weights, gradients) = unsafe { (self.weights_of::<W>(group), self.gradients_of(group)) };
        let eight_bit = |step: u64| {
            let unbias = (1.0 - power(hyper.beta2, step)).sqrt();
            Step {
                first_decay: hyper.beta1 as f32,
                first_gain: ((1.0 - hyper.beta1) * grad_scale) as f32,
                root_decay: hyper.beta2.sqrt() as f32,
                root_gain: ((1.0 - hyper.beta2).sqrt() * grad_scale) as f32,
                rate: (rate / (1.0 - power(hyper.beta1, step)) * unbias) as f32,
                eps: (hyper.eps * unbias) as f32,
                keep: (1.0 - rate * decay) as f32,
                rounding_key: rounding_key(hyper.seed, number, step),
                first_index: 0,
            }
        };
        // SAFETY: as above.
        unsafe {
            match group.states {
                States::AdamW { step, first, second } => {
                    let count = &mut self.all::<f32>(step)[0];
                    *count += 1.0;
                    let step = *count as u64;
                    let factors = flat::AdamW {
                        grad_scale: grad_scale as f32,
                        first_gain: (1.0 - hyper.beta1) as f32,
                        second_decay: hyper.beta2 as f32,
                        second_gain: (1.0 - hyper.beta2) as f32,
                        unbias: (1.0 - power(hyper.beta2, step)).sqrt() as f32,
                        eps: hyper.eps as f32,
                        rate: (rate / (1.0 - power(hyper.beta1, step))) as f32,
                        keep: (1.0 - rate * decay) as f32,
                    };
                    let moments = [self.all(first), self.all(second)];
                    flat::adamw(W::wide_slice(weights), gradients, moments, factors, threads);
                }
                States::Small8bit { step, first, second } => {
                    let count = &mut self.all::<i64>(step)[0];
                    *count += 1;
                    let moments = [self.all(first), self.all(second)];
                    flat::small_step(weights, gradients, moments, &eight_bit(*count as u64));
                }
                States::AdamW8bit { step, first, first_scales, root, root_scales } => {
                    let count = &mut self.all::<i64>(step)[0];
                    *count += 1;
                    let moments = Moments {
                        first: self.all(first),
                        first_scales: self.all(first_scales),
                        root: self.all(root),
                        root_scales: self.all(root_scales),
                    };
                    adamw8bit::step(weights, gradients, moments, &eight_bit(*count as u64), threads);
                }
                States::Muon { .. } | States::Muon8bit { .. } => unreachable!("not AdamW's"),
            }
        }
    }

    fn muon_step(&mut self, group: &Group, number: usize, given: Given) {
        let Given { hyper, rate, grad_scale } = given;
        let (threads, gain) = (self.choice.threads, 1.0 - MOMENTUM);
        let keep = (1.0 - rate * hyper.weight_decay) as f32;
        // SAFETY: different places of a model that is borrowed.
        let row_squares: &mut [f32] = unsafe {
            let gradients = self.gradients_of(group);
            match group.states {
                States::Muon { momentum, row_squares } => {
                    let momentum = self.all(momentum);
                    flat::momentum(gradients, momentum, gain as f32, grad_scale as f32, threads);
                    self.all(row_squares)
                }
                States::Muon8bit { codes, scales, row_squares } => {
                    let (codes, scales) = (self.all(codes), self.all(scales));
                    let gain = (gain * grad_scale) as f32;
                    adamw8bit::momentum(gradients, codes, scales, MOMENTUM as f32, gain, threads);
                    self.all(row_squares)
                }
                _ => unreachable!("not Muon's"),
            }
        };
        let settings = MuonSettings {
            coefficients: coefficients(),
            margin: MARGIN,
            row_decay: ROW_DECAY,
            tiny: TINY,
            rate: rate * UPDATE_SIZE,
        };
        match self.choice.weights {
            Precision::Fp32 => self.muon_fp32(group, row_squares, keep, &settings),
            Precision::Bf16 => {
                let key = rounding_key(hyper.seed, number, self.steps_of_adamw());
                self.muon_bf16(row_squares, keep, key, &settings);
            }
        }
    }

    /// All matrices at once, distributed among the threads.
    fn muon_fp32(&self, group: &Group, row_squares: &mut [f32], keep: f32, settings: &MuonSettings) {
        let threads = self.choice.threads;
        // SAFETY: different places of a model that is borrowed; matrices do not overlap.
        unsafe {
            flat::scale(self.weights_of(group), keep, threads);
            let matrices = self.muon_matrices(row_squares).map(|(range, row_squares)| Matrix {
                weights: self.some(self.layout.matrices, range.clone()),
                direction: self.some(self.layout.matrix_grads, range),
                row_squares,
            });
            muon(matrices.collect(), settings, self.all::<Line>(self.layout.muon), threads);
        }
    }

    /// One matrix after the other: first its change in fp32, then the weights, rounded stochastically.
    fn muon_bf16(&self, row_squares: &mut [f32], keep: f32, key: u32, settings: &MuonSettings) {
        let threads = self.choice.threads;
        for (range, row_squares) in self.muon_matrices(row_squares) {
            let start = range.start as u64;
            // SAFETY: different places of a model that is borrowed.
            unsafe {
                let changes = &mut self.all::<f32>(self.layout.changes)[..range.len()];
                changes.fill(0.0);
                let direction = self.some(self.layout.matrix_grads, range.clone());
                let matrix = Matrix { weights: changes, direction, row_squares };
                muon(vec![matrix], settings, self.all::<Line>(self.layout.muon), threads);
                flat::scale(changes, -1.0, threads);
                let weights = self.some::<u16>(self.layout.matrices, range);
                adamw8bit::subtract(weights, changes, keep, key, start, threads);
            }
        }
    }

    /// Where each of Muon's matrices is among the flat ones, and its part of the mean squares of rows.
    fn muon_matrices<'a>(
        &self,
        mut row_squares: &'a mut [f32],
    ) -> impl Iterator<Item = (Range<usize>, &'a mut [f32])> + use<'a> {
        let layers = self.shape.layers;
        stacks(&self.shape)
            .into_iter()
            .flat_map(move |stack| (0..layers).map(move |layer| (stack, layer)))
            .map(move |(stack, layer)| {
                let start = stack.start + layer * stack.stride;
                let own = row_squares.split_off_mut(..stack.rows).expect("a number for each row");
                (start..start + stack.rows * stack.columns, own)
            })
    }

    /// How many steps AdamW has taken next to Muon.
    fn steps_of_adamw(&self) -> u64 {
        let counted = self.layout.groups.iter().find_map(|group| match group.states {
            States::Small8bit { step, .. } | States::AdamW8bit { step, .. } => Some(step),
            _ => None,
        });
        // SAFETY: a number that nobody writes at the moment.
        counted.map_or(0, |step| unsafe { self.all::<i64>(step)[0] as u64 })
    }
}

/// Only fp32 weights are updated without stochastic rounding.
trait Wide: Sized {
    fn wide_slice(weights: &mut [Self]) -> &mut [f32];
}

impl Wide for f32 {
    fn wide_slice(weights: &mut [f32]) -> &mut [f32] {
        weights
    }
}

impl Wide for u16 {
    fn wide_slice(_: &mut [u16]) -> &mut [f32] {
        unreachable!("bf16 weights have an 8-bit optimizer")
    }
}

/// Together with an element's index, this seeds the stochastic rounding of a tensor at a step.
fn rounding_key(seed: u64, tensor: usize, step: u64) -> u32 {
    let of_seed = scatter(scatter(seed as u32).wrapping_add((seed >> 32) as u32));
    scatter(scatter(of_seed.wrapping_add(tensor as u32)).wrapping_add(step as u32))
}

/// `base` to a whole power by squaring: the system's `pow` may differ in the last bit.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        assert_eq!(power(0.5, 10), 0.5_f64.powi(10));
        assert!((power(0.95, 1000) / 0.95_f64.powf(1000.0) - 1.0).abs() < 1e-13);
        assert_eq!(power(0.9, 0), 1.0);
    }
}
