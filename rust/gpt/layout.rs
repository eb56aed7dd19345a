//! Where everything is in a model's arena: a function of the shape and the choice alone.
//!
//! Weights, gradients and optimizer states have places of their own; scratch memory of the optimizer is in the place of
//! the activations (`activations`).

use super::activations::Activations;
use super::arena::{LINE, Span};
use super::choice::{Choice, Precision};
use super::shape::{Place, Places, Shape};
use super::states::{Flat, Group, groups, stacks};
use crate::kernels::muon_scratch;
use crate::products::SHARED;

/// A tensor for Python: its place, and what is in it.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// As safetensors calls it.
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub span: Span,
}

/// Hands out spans one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    pub at: usize,
}

impl Cursor {
    pub fn add(&mut self, bytes: usize) -> Span {
        let span = Span { start: self.at, bytes };
        self.at = (self.at + bytes).next_multiple_of(LINE);
        span
    }

    /// The end of what was handed out, and of what others handed out from the same beginning.
    pub fn extend(&mut self, other: Cursor) {
        self.at = self.at.max(other.at);
    }
}

#[derive(Clone, Debug)]
pub struct Layout {
    pub matrices: Span,
    pub gains: Span,
    pub cos: Span,
    pub sin: Span,

    /// fp32, or codes of 8 bits with exponents.
    pub matrix_grads: Span,
    pub grad_exponents: Span,
    pub gain_grads: Span,
    pub held_ids: Span,
    pub held_rows: Span,

    pub groups: Vec<Group>,

    pub activations: Activations,
    /// Scratch memory of Muon, and the change of a matrix whose weights are bf16.
    pub muon: Span,
    pub changes: Span,
    /// Some gradients as fp32, if they are stored in 8 bits.
    pub wide_grads: Span,

    pub parts: Parts,
}

/// Bytes by part; together all of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    pub weights: usize,
    pub gradients: usize,
    pub optimizer: usize,
    pub activations: usize,
    pub logits: usize,
    /// Of the activations, what no step writes: it is never resident.
    pub unwritten: usize,
}

impl Parts {
    pub fn total(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations + self.logits
    }
}

impl Layout {
    pub fn new(shape: &Shape, places: &Places, choice: &Choice) -> Layout {
        let mut cursor = Cursor { at: 0 };
        let matrices = cursor.add(places.matrices * choice.weights.bytes());
        let gains = cursor.add(places.gains * 4);
        let table = choice.seq_len * shape.head_width / 2 * 4;
        let (cos, sin) = (cursor.add(table), cursor.add(table));
        let weights_end = cursor.at;

        let trained = |bytes: usize| if choice.training { bytes } else { 0 };
        let (number, exponents) = match has_8bit_grads(shape, choice) {
            true => (1, places.matrices.div_ceil(SHARED)),
            false => (4, 0),
        };
        let matrix_grads = cursor.add(trained(places.matrices * number));
        let grad_exponents = cursor.add(trained(exponents));
        let gain_grads = cursor.add(trained(places.gains * 4));
        let held_ids = cursor.add(trained(choice.held * 8));
        let held_rows = cursor.add(trained(choice.held * shape.width * choice.compute.bytes()));
        let gradients_end = cursor.at;

        let groups = if choice.training { groups(shape, places, choice, &mut cursor) } else { Vec::new() };
        let states_end = cursor.at;

        let activations = Activations::new(shape, choice, cursor);
        let (scratch, change) = update_scratch(shape, choice);
        let (muon, changes) = (cursor.add(trained(scratch)), cursor.add(trained(change)));
        let wide = if has_8bit_grads(shape, choice) { change.max(4 * WIDE_GRADS) } else { 0 };
        let wide_grads = cursor.add(trained(wide));
        let activations_end = activations.end.max(activations.logits_end);
        let end = cursor.at.max(activations_end);
        let parts = Parts {
            weights: weights_end,
            gradients: gradients_end - weights_end,
            optimizer: states_end - gradients_end + (end - activations_end),
            activations: activations.end - states_end,
            logits: activations_end - activations.end,
            unwritten: unwritten(&activations, cursor.at),
        };
        debug_assert_eq!(parts.total(), end);
        Layout {
            matrices,
            gains,
            cos,
            sin,
            matrix_grads,
            grad_exponents,
            gain_grads,
            held_ids,
            held_rows,
            groups,
            activations,
            muon,
            changes,
            wide_grads,
            parts,
        }
    }

    /// The weights by their names, or the gradients: in 8 bits, they are codes without their exponents.
    pub fn tensors(&self, places: &Places, choice: &Choice, gradients: bool) -> Vec<Tensor> {
        let eight_bit = self.grad_exponents.bytes > 0;
        let one = |(name, flat, place): (String, Flat, Place)| {
            let (whole, (dtype, bytes)) = match (flat, gradients) {
                (Flat::Matrices, false) => (self.matrices, (choice.weights.dtype(), choice.weights.bytes())),
                (Flat::Matrices, true) => (self.matrix_grads, if eight_bit { ("I8", 1) } else { ("F32", 4) }),
                (Flat::Gains, false) => (self.gains, ("F32", 4)),
                (Flat::Gains, true) => (self.gain_grads, ("F32", 4)),
            };
            let shape = match flat {
                Flat::Matrices => vec![place.rows, place.columns],
                Flat::Gains => vec![place.columns],
            };
            let span =
                Span { start: whole.start + place.start * bytes, bytes: place.rows * place.columns * bytes };
            Tensor { name, dtype, shape, span }
        };
        named(places).into_iter().map(one).collect()
    }
}

/// Whole pages of scratch memory that neither a pass nor an update writes, which ends at `update_end`.
fn unwritten(activations: &Activations, update_end: usize) -> usize {
    let Activations { work, written, .. } = activations;
    let end = (work.start + written).max(update_end);
    (work.end() / PAGE * PAGE).saturating_sub(end.next_multiple_of(PAGE))
}

const PAGE: usize = 4096;

/// Gradients in 8 bits that are fp32 at once in a step of AdamW: whole blocks of the optimizer.
pub const WIDE_GRADS: usize = 1 << 18;

pub fn has_8bit_grads(shape: &Shape, choice: &Choice) -> bool {
    choice.unit > 0 && shape.has_whole_blocks()
}

/// All weights in the order of `engines/torch/weights.py`.
pub fn named(places: &Places) -> Vec<(String, Flat, Place)> {
    let mut found = vec![("embedding".to_owned(), Flat::Matrices, places.embedding)];
    if places.head != places.embedding {
        found.push(("head".to_owned(), Flat::Matrices, places.head));
    }
    for (number, layer) in places.layers.iter().enumerate() {
        let mut add = |name: &str, flat, place| found.push((format!("layers.{number}.{name}"), flat, place));
        add("norm_attention", Flat::Gains, layer.norm_attention);
        add("qkv", Flat::Matrices, layer.qkv);
        add("out", Flat::Matrices, layer.out);
        for (name, place) in [("norm_q", layer.norm_q), ("norm_k", layer.norm_k)] {
            if let Some(place) = place {
                add(name, Flat::Gains, place);
            }
        }
        add("norm_feed_forward", Flat::Gains, layer.norm_feed_forward);
        add("gate_up", Flat::Matrices, layer.gate_up);
        add("down", Flat::Matrices, layer.down);
    }
    found.push(("norm".to_owned(), Flat::Gains, places.norm));
    found
}

/// Bytes that an optimizer step needs: Muon's scratch memory, and the change of a matrix if its weights are bf16.
fn update_scratch(shape: &Shape, choice: &Choice) -> (usize, usize) {
    if !choice.optimizer.is_muon() {
        return (0, 0);
    }
    let sizes: Vec<[usize; 2]> = stacks(shape).iter().map(|stack| [stack.rows, stack.columns]).collect();
    match choice.weights {
        Precision::Fp32 => (muon_scratch(&sizes.repeat(shape.layers), choice.threads), 0),
        // One matrix at a time.
        Precision::Bf16 => {
            let scratch = sizes.iter().map(|&size| muon_scratch(&[size], choice.threads)).max();
            let change = sizes.iter().map(|[rows, columns]| rows * columns * 4).max();
            (scratch.unwrap_or(0), change.unwrap_or(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::activations::Kept;
    use super::super::choice::Optimizer;
    use super::*;

    const SHAPE: Shape = Shape {
        vocab: 300,
        context: 64,
        layers: 3,
        width: 48,
        heads: 4,
        kv_heads: 2,
        head_width: 12,
        feed_forward: 96,
        eps: 1e-5,
        tied: true,
        qk_norm: true,
    };
    const CHOICE: Choice = Choice {
        micro_batch: 3,
        seq_len: 20,
        chunk: 7,
        recompute: false,
        optimizer: Optimizer::AdamW,
        weights: Precision::Fp32,
        compute: Precision::Fp32,
        dropout: 0.1,
        held: 60,
        unit: 0,
        training: true,
        threads: 2,
    };

    fn disjoint(spans: &[Span]) {
        for (number, one) in spans.iter().enumerate() {
            for other in &spans[..number] {
                let apart = one.end() <= other.start || other.end() <= one.start;
                assert!(apart || one.bytes == 0 || other.bytes == 0, "{one:?} {other:?} in {spans:?}");
            }
        }
    }

    /// What is in use at the same time, as forward.rs, head.rs and backward.rs say it.
    fn moments(layout: &Layout, choice: &Choice) {
        let activations = &layout.activations;
        let mut always = vec![layout.matrices, layout.gains, layout.matrix_grads, layout.gain_grads];
        always.extend([layout.cos, layout.sin, layout.held_ids, layout.held_rows, layout.grad_exponents]);
        always.extend(layout.groups.iter().flat_map(|group| group.tensors()).map(|tensor| tensor.span));
        disjoint(&[&always[..], &[layout.muon, layout.changes, layout.wide_grads]].concat());
        always.extend([activations.positions, activations.losses, activations.work]);
        let with = |more: &[Span]| disjoint(&[&always[..], more].concat());
        let inputs = &activations.inputs;
        let kept = |layer: &Kept| [layer.qkv, layer.attended, layer.stats, layer.middle, layer.gate_up];
        for (number, layer) in activations.layers.iter().enumerate() {
            let Kept { qkv, attended, stats, middle, gate_up, d_qkv, d_attended } = *layer;
            let before = match (choice.training, choice.recompute) {
                (false, _) => vec![],
                (true, true) => inputs[..number].to_vec(),
                (true, false) => {
                    let kept = activations.layers[..number].iter().flat_map(kept);
                    inputs[..number].iter().copied().chain(kept).collect()
                }
            };
            let with = |more: &[Span]| with(&[&before[..], more].concat());
            with(&[inputs[number], activations.normed, qkv, activations.qk, attended, stats, middle]);
            with(&[middle, activations.normed, gate_up]);
            with(&[middle, gate_up, activations.act, inputs[number + 1]]);
            if !choice.training {
                with(&[inputs[number + 1], activations.normed, activations.logits]);
                continue;
            }
            let own = [inputs[number], qkv, attended, stats, activations.grad, activations.normed];
            let with = |more: &[Span]| with(&[&own[..], more].concat());
            with(&[middle, gate_up, activations.act, activations.feed_forward_branch]);
            with(&[middle, gate_up, activations.change]);
            with(&[activations.attention_branch, d_attended]);
            with(&[activations.qk, d_attended, d_qkv]);
            with(&[activations.change]);
        }
        if choice.training {
            let kept = activations.layers.iter().flat_map(kept);
            let all: Vec<Span> = match choice.recompute {
                true => inputs.clone(),
                false => inputs.iter().copied().chain(kept).collect(),
            };
            with(&[&all[..], &[activations.normed, activations.logits]].concat());
            with(&[&all[..], &[activations.normed, activations.grad]].concat());
        }
    }

    #[test]
    fn what_is_in_use_at_the_same_time_does_not_overlap() {
        let mut tried = 0;
        for (qk_norm, feed_forward, width) in
            [(true, 96, 48), (false, 96, 48), (true, 8, 48), (false, 300, 16), (true, 96, 64)]
        {
            let shape = Shape { qk_norm, feed_forward, width, ..SHAPE };
            // Only the last has whole blocks of gradients in 8 bits.
            let shape = if width == 64 { Shape { head_width: 16, ..shape } } else { shape };
            for (recompute, training) in [(false, true), (true, true), (false, false)] {
                for (weights, compute) in [(0, 0), (0, 1), (1, 1)] {
                    let precision = |number: usize| [Precision::Fp32, Precision::Bf16][number];
                    let (weights, compute) = (precision(weights), precision(compute));
                    for optimizer in [Optimizer::AdamW, Optimizer::AdamW8bit, Optimizer::Muon8bit] {
                        for dropout in [0.0, 0.1] {
                            let choice = Choice {
                                recompute,
                                training,
                                weights,
                                compute,
                                optimizer,
                                dropout,
                                unit: usize::from(weights == Precision::Bf16),
                                ..CHOICE
                            };
                            let layout = Layout::new(&shape, &Places::new(&shape), &choice);
                            moments(&layout, &choice);
                            tried += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(tried, 270);
    }

    #[test]
    fn the_arena_ends_where_the_last_span_ends() {
        for optimizer in [Optimizer::AdamW, Optimizer::Muon] {
            for chunk in [1, 60] {
                let choice = Choice { optimizer, chunk, micro_batch: 1, ..CHOICE };
                let layout = Layout::new(&SHAPE, &Places::new(&SHAPE), &choice);
                let activations = &layout.activations;
                let last = [
                    layout.muon,
                    layout.changes,
                    activations.logits,
                    activations.change,
                    activations.feed_forward_branch,
                ];
                let last =
                    last.into_iter().chain([activations.act, activations.qk]).map(|span| span.end()).max();
                let end = last.unwrap().next_multiple_of(LINE);
                assert!(layout.parts.total() >= end && layout.parts.total() <= end + LINE * 64, "{layout:?}");
            }
        }
    }
}
