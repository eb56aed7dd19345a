//! An optimizer step: clipping, the update of every group, and zero gradients. choice.rs says what a new one needs.
//!
//! Scalars are computed in fp64, with operations that are the same on every system, and rounded to fp32 once.

use super::arena::Span;
use super::choice::Precision;
use super::flat;
use super::layout::WIDE_GRADS;
use super::model::Model;
use super::states::{Flat, Group, States, stacks};
use crate::adamw8bit::{self, BLOCK, Moments, Number, Step};
use crate::kernels::{Bf16, Line, Matrix, MuonSettings, muon, squares};
use crate::products::Codes;
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
        }
        self.clear_gradients();
        norm
    }

    fn grad_norm(&mut self) -> f64 {
        let (matrices, gains, threads) = (self.places.matrices, self.places.gains, self.choice.threads);
        let of_matrices = match self.has_8bit_grads() {
            // SAFETY: the model is borrowed.
            true => unsafe { self.stored_grads(0..matrices) }.squares(),
            false => squares::<f32>(self.flat(self.layout.matrix_grads, matrices), threads),
        };
        let of_gains = squares::<f32>(self.flat(self.layout.gain_grads, gains), threads);
        (of_matrices + of_gains).sqrt()
    }

    pub(super) fn clear_gradients(&mut self) {
        if !self.choice.training {
            return;
        }
        let (matrices, gains, threads) = (self.places.matrices, self.places.gains, self.choice.threads);
        if self.has_8bit_grads() {
            let exponents = self.layout.grad_exponents;
            flat::clear::<i8>(self.flat(self.layout.matrix_grads, matrices), threads);
            flat::clear::<u8>(self.flat(exponents, exponents.bytes), threads);
        } else {
            flat::clear::<f32>(self.flat(self.layout.matrix_grads, matrices), threads);
        }
        flat::clear::<f32>(self.flat(self.layout.gain_grads, gains), threads);
        (self.held, self.learned, self.embedded) = (0, 0, 0);
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

    /// Of matrices, in 8 bits.
    ///
    /// # Safety
    /// As `Arena::slice`.
    unsafe fn stored_grads(&self, range: Range<usize>) -> Codes<'_> {
        // SAFETY: by the caller.
        let found = unsafe { self.grad_codes(range) };
        Codes { codes: found.codes, exponents: found.exponents }
    }

    /// Some gradients as fp32: in their place, or widened in that of `wide_grads`.
    ///
    /// # Safety
    /// As `Arena::slice`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn gradients(&self, flat: Flat, range: Range<usize>) -> &mut [f32] {
        // SAFETY: by the caller.
        unsafe {
            match flat {
                Flat::Gains => self.some(self.layout.gain_grads, range),
                Flat::Matrices if !self.has_8bit_grads() => self.some(self.layout.matrix_grads, range),
                Flat::Matrices => {
                    let wide = &mut self.all::<f32>(self.layout.wide_grads)[..range.len()];
                    self.stored_grads(range).widen(wide, self.choice.threads);
                    wide
                }
            }
        }
    }

    /// A group in parts whose gradients can be fp32 at once; all of it unless they are stored in 8 bits.
    fn portions(&self, group: &Group) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = group.range.clone();
        let most = match group.flat == Flat::Matrices && self.has_8bit_grads() {
            true => WIDE_GRADS,
            false => all.len().max(1),
        };
        all.clone().step_by(most).map(move |start| start..all.end.min(start + most))
    }

    fn adamw_step<W: Number + Wide>(&mut self, group: &Group, number: usize, given: Given) {
        let Given { hyper, rate, grad_scale } = given;
        let decay = if group.has_weight_decay { hyper.weight_decay } else { 0.0 };
        let threads = self.choice.threads;
        // SAFETY: different places of a model that is borrowed.
        let weights = unsafe { self.weights_of::<W>(group) };
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
                    let gradients = self.gradients(group.flat, group.range.clone());
                    flat::adamw(W::wide_slice(weights), gradients, moments, factors, threads);
                }
                States::Small8bit { step, first, second } => {
                    let count = &mut self.all::<i64>(step)[0];
                    *count += 1;
                    let moments = [self.all(first), self.all(second)];
                    let gradients = self.gradients(group.flat, group.range.clone());
                    flat::small_step(weights, gradients, moments, &eight_bit(*count as u64));
                }
                States::AdamW8bit { step, first, first_scales, root, root_scales } => {
                    let count = &mut self.all::<i64>(step)[0];
                    *count += 1;
                    let step = eight_bit(*count as u64);
                    for portion in self.portions(group) {
                        let gradients = self.gradients(group.flat, portion.clone());
                        let own = portion.start - group.range.start..portion.end - group.range.start;
                        let blocks = own.start / BLOCK..own.end.div_ceil(BLOCK);
                        let moments = Moments {
                            first: self.some(first, own.clone()),
                            first_scales: self.some(first_scales, blocks.clone()),
                            root: self.some(root, own.clone()),
                            root_scales: self.some(root_scales, blocks),
                        };
                        let step = Step { first_index: own.start as u64, ..step };
                        adamw8bit::step(&mut weights[own], gradients, moments, &step, threads);
                    }
                }
                States::Muon { .. } | States::Muon8bit { .. } => unreachable!("not AdamW's"),
            }
        }
    }

    fn muon_step(&mut self, group: &Group, number: usize, given: Given) {
        let Given { hyper, rate, grad_scale } = given;
        let (threads, gain) = (self.choice.threads, 1.0 - MOMENTUM);
        let keep = (1.0 - rate * hyper.weight_decay) as f32;
        let start = group.range.start;
        // Of some of the group; returns the direction of Muon, in the place of the gradients.
        // SAFETY: different places of a model that is borrowed.
        let direction = |range: Range<usize>| -> &mut [f32] {
            let own = range.start - start..range.end - start;
            unsafe {
                let gradients = self.gradients(group.flat, range);
                match group.states {
                    States::Muon { momentum, .. } => {
                        let momentum = self.some(momentum, own);
                        flat::momentum(gradients, momentum, gain as f32, grad_scale as f32, threads);
                    }
                    States::Muon8bit { codes, scales, .. } => {
                        let scales = self.some(scales, own.start / BLOCK..own.end.div_ceil(BLOCK));
                        let gain = (gain * grad_scale) as f32;
                        let codes = self.some(codes, own);
                        adamw8bit::momentum(gradients, codes, scales, MOMENTUM as f32, gain, threads);
                    }
                    _ => unreachable!("not Muon's"),
                }
                gradients
            }
        };
        let (States::Muon { row_squares, .. } | States::Muon8bit { row_squares, .. }) = group.states else {
            unreachable!("not Muon's")
        };
        // SAFETY: as above.
        let row_squares = unsafe { self.all(row_squares) };
        let settings = MuonSettings {
            coefficients: coefficients(),
            margin: MARGIN,
            row_decay: ROW_DECAY,
            tiny: TINY,
            rate: rate * UPDATE_SIZE,
        };
        match self.choice.weights {
            Precision::Fp32 => {
                direction(group.range.clone());
                self.muon_fp32(group, row_squares, keep, &settings);
            }
            Precision::Bf16 => {
                let key = rounding_key(hyper.seed, number, self.steps_of_adamw());
                // In 8 bits the gradients have no place for directions, so each matrix has its own moment; the blocks of
                // the momentum are whole in it.
                let at_once = !self.has_8bit_grads();
                if at_once {
                    direction(group.range.clone());
                }
                let of_matrix = |range: Range<usize>| match at_once {
                    // SAFETY: as above.
                    true => unsafe { self.some(self.layout.matrix_grads, range) },
                    false => direction(range),
                };
                self.muon_bf16(of_matrix, row_squares, keep, key, &settings);
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
    fn muon_bf16<'a>(
        &self,
        direction: impl Fn(Range<usize>) -> &'a mut [f32],
        row_squares: &mut [f32],
        keep: f32,
        key: u32,
        settings: &MuonSettings,
    ) {
        let threads = self.choice.threads;
        for (range, row_squares) in self.muon_matrices(row_squares) {
            let start = range.start as u64;
            // SAFETY: different places of a model that is borrowed.
            unsafe {
                let changes = &mut self.all::<f32>(self.layout.changes)[..range.len()];
                changes.fill(0.0);
                let matrix = Matrix { weights: changes, direction: direction(range.clone()), row_squares };
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
    pub(super) fn steps_of_adamw(&self) -> u64 {
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
