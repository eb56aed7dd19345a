//! The optimizer's states: which there are, by the names that a checkpoint has for them.

use super::arena::Span;
use super::choice::{Choice, Optimizer};
use super::layout::{Cursor, Tensor};
use super::shape::{Places, Shape};
use crate::adamw8bit::BLOCK;
use std::ops::Range;

/// Smaller tensors keep 32-bit states in the 8-bit optimizers, as `engines/torch/sizes.py`.
const SMALLEST_QUANTIZED: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flat {
    Matrices,
    Gains,
}

/// Weights that are updated together: a part of a flat array.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: &'static str,
    pub flat: Flat,
    pub range: Range<usize>,
    pub has_weight_decay: bool,
    pub states: States,
}

#[derive(Clone, Copy, Debug)]
pub enum States {
    /// `step` is an `f32`, as torch's.
    AdamW {
        step: Span,
        first: Span,
        second: Span,
    },
    /// `step` is an `i64`. The moments of a small tensor have 32 bits.
    Small8bit {
        step: Span,
        first: Span,
        second: Span,
    },
    AdamW8bit {
        step: Span,
        first: Span,
        first_scales: Span,
        root: Span,
        root_scales: Span,
    },
    Muon {
        momentum: Span,
        row_squares: Span,
    },
    Muon8bit {
        codes: Span,
        scales: Span,
        row_squares: Span,
    },
}

/// The groups in the torch engine's order, with places for their states.
pub fn groups(shape: &Shape, places: &Places, choice: &Choice, cursor: &mut Cursor) -> Vec<Group> {
    let optimizer = choice.optimizer;
    let mut found = Vec::new();
    let mut add = |name, flat, range: Range<usize>, has_weight_decay, states| {
        found.push(Group { name, flat, range, has_weight_decay, states });
    };
    let gains = 0..places.gains;
    if optimizer.is_muon() {
        let (embeddings, hidden) = (0..places.hidden, places.hidden..places.matrices);
        let states = muon(optimizer, hidden.len(), rows(shape), cursor);
        add("hidden", Flat::Matrices, hidden, true, states);
        let states = adamw(optimizer, embeddings.len(), cursor);
        add("embeddings", Flat::Matrices, embeddings, false, states);
    } else {
        let states = adamw(optimizer, places.matrices, cursor);
        add("matrices", Flat::Matrices, 0..places.matrices, true, states);
    }
    let states = adamw(optimizer, gains.len(), cursor);
    add("gains", Flat::Gains, gains, false, states);
    found
}

fn adamw(optimizer: Optimizer, count: usize, cursor: &mut Cursor) -> States {
    let wide = |cursor: &mut Cursor| (cursor.add(4 * count), cursor.add(4 * count));
    if !optimizer.is_8bit() {
        let (first, second) = wide(cursor);
        return States::AdamW { step: cursor.add(4), first, second };
    }
    if count < SMALLEST_QUANTIZED {
        let (first, second) = wide(cursor);
        return States::Small8bit { step: cursor.add(8), first, second };
    }
    let scales = 4 * count.div_ceil(BLOCK);
    States::AdamW8bit {
        first: cursor.add(count),
        first_scales: cursor.add(scales),
        root: cursor.add(count),
        root_scales: cursor.add(scales),
        step: cursor.add(8),
    }
}

fn muon(optimizer: Optimizer, count: usize, rows: usize, cursor: &mut Cursor) -> States {
    match optimizer.is_8bit() {
        false => States::Muon { momentum: cursor.add(4 * count), row_squares: cursor.add(4 * rows) },
        true => States::Muon8bit {
            codes: cursor.add(count),
            scales: cursor.add(4 * count.div_ceil(BLOCK)),
            row_squares: cursor.add(4 * rows),
        },
    }
}

fn rows(shape: &Shape) -> usize {
    let of_layer: usize = stacks(shape).iter().map(|stack| stack.rows).sum();
    of_layer * shape.layers
}

/// One matrix of a layer as Muon sees it: queries, keys, values, gate and up are matrices of their own.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// In the first layer, among the flat matrices.
    pub start: usize,
    pub rows: usize,
    pub columns: usize,
    /// From one layer to the next.
    pub stride: usize,
}

/// In the order of the torch engine's `sizes.stacks`.
pub fn stacks(shape: &Shape) -> Vec<Stack> {
    let of_layer = |layers| Places::new(&Shape { layers, ..*shape }).layers;
    let (first, second) = (of_layer(2)[0], of_layer(2)[1]);
    let stride = second.qkv.start - first.qkv.start;
    let (queries, keys, ff) = (shape.queries_width(), shape.keys_width(), shape.feed_forward);
    [
        (first.qkv, vec![queries, keys, keys]),
        (first.out, vec![first.out.rows]),
        (first.gate_up, vec![ff, ff]),
        (first.down, vec![first.down.rows]),
    ]
    .into_iter()
    .flat_map(|(place, parts)| {
        let mut start = place.start;
        parts.into_iter().map(move |rows| {
            let stack = Stack { start, rows, columns: place.columns, stride };
            start += rows * place.columns;
            stack
        })
    })
    .collect()
}

impl Group {
    /// The states by their names in a checkpoint.
    pub fn tensors(&self) -> Vec<Tensor> {
        let count = self.range.len();
        let blocks = count.div_ceil(BLOCK);
        let of = |name: &str, dtype, shape: &[usize], span| Tensor {
            name: format!("{}.{name}", self.name),
            dtype,
            shape: shape.to_vec(),
            span,
        };
        let of_rows = |span: Span| of("row_squares", "F32", &[span.bytes / 4], span);
        match self.states {
            States::AdamW { step, first, second } => vec![
                of("exp_avg", "F32", &[count], first),
                of("exp_avg_sq", "F32", &[count], second),
                of("step", "F32", &[], step),
            ],
            States::Small8bit { step, first, second } => vec![
                of("exp_avg", "F32", &[count], first),
                of("exp_avg_sq", "F32", &[count], second),
                of("step", "I64", &[], step),
            ],
            States::AdamW8bit { step, first, first_scales, root, root_scales } => vec![
                of("exp_avg_codes", "U8", &[count], first),
                of("exp_avg_root_codes", "U8", &[count], root),
                of("exp_avg_root_scales", "F32", &[blocks], root_scales),
                of("exp_avg_scales", "F32", &[blocks], first_scales),
                of("step", "I64", &[], step),
            ],
            States::Muon { momentum, row_squares } => {
                vec![of("momentum", "F32", &[count], momentum), of_rows(row_squares)]
            }
            States::Muon8bit { codes, scales, row_squares } => vec![
                of("momentum_codes", "I8", &[count], codes),
                of("momentum_scales", "F32", &[blocks], scales),
                of_rows(row_squares),
            ],
        }
    }
}
