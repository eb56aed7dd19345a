//! Muon's update of the matrices in layers: momentum, orthogonalization, the new weights.

use super::{Given, power, rounding_key};
use crate::adamw8bit::{self, BLOCK};
use crate::gpt::choice::Precision;
use crate::gpt::flat;
use crate::gpt::model::Model;
use crate::gpt::states::{Group, States, stacks};
use crate::kernels::{Line, Matrix, MuonSettings, muon};
use std::ops::Range;

// As `engines/torch/optim/muon.py` and `polar.py`.
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
    pub(super) fn muon_step(&mut self, group: &Group, number: usize, given: Given) {
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
}
