//! An optimizer step: clipping, the update of every group, and zero gradients; AdamW's here, Muon's in `muon.rs`.
//! `gpt/choice.rs` says what a new optimizer needs.
//!
//! Scalars are computed in fp64, with operations that are the same on every system, and rounded to fp32 once.

mod muon;

use super::arena::Span;
use super::choice::Precision;
use super::flat;
use super::layout::WIDE_GRADS;
use super::model::Model;
use super::states::{Flat, Group, States};
use crate::adamw8bit::{self, BLOCK, Moments, Number, Step};
use crate::kernels::{Bf16, squares};
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
