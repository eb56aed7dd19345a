//! Where everything is in a model's arena: a function of the shape and the choice alone.
//!
//! Weights, gradients and optimizer states have places of their own. Activations of different moments share theirs:
//!
//! ```text
//! kept:       the input of every layer, what each layer keeps for its backward pass, the last norm's result
//! then one of
//!   forward   queries and keys with QK-norm; or the gated product
//!   head      the logits of a chunk
//!   backward  the gradient of the residual stream, with what one block needs; the queries', keys' and values'
//!             gradients take the place of the layer's gate and up, which are used up by then
//! update:     scratch memory of the optimizer, in the place of all activations
//! ```

use super::arena::{LINE, Span};
use super::choice::{Choice, Precision};
use super::shape::{Place, Places, Shape};
use super::states::{Flat, Group, groups, stacks};
use crate::attention;
use crate::kernels::{Line, muon_scratch};
use crate::products;

/// Numbers that attention keeps for each token and head.
pub const STATS: usize = 2;

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
    at: usize,
}

impl Cursor {
    pub fn add(&mut self, bytes: usize) -> Span {
        let span = Span { start: self.at, bytes };
        self.at = (self.at + bytes).next_multiple_of(LINE);
        span
    }

    /// The end of what was handed out, and of what others handed out from the same beginning.
    fn extend(&mut self, other: Cursor) {
        self.at = self.at.max(other.at);
    }
}

/// What a layer keeps besides its input.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub qkv: Span,
    pub attended: Span,
    pub stats: Span,
    /// The input of the feed-forward block.
    pub middle: Span,
    pub gate_up: Span,
    /// In the place of `gate_up`, or in scratch memory if they are larger.
    pub d_qkv: Span,
    pub d_attended: Span,
}

#[derive(Clone, Debug)]
pub struct Layout {
    pub matrices: Span,
    /// Of the matrices, for products; may be the same.
    pub products: Span,
    pub gains: Span,
    pub cos: Span,
    pub sin: Span,

    pub matrix_grads: Span,
    pub gain_grads: Span,
    pub held_ids: Span,
    pub held_rows: Span,

    pub groups: Vec<Group>,

    /// 0, 1, 2, ... for every sequence.
    pub positions: Span,
    /// Of a chunk.
    pub losses: Span,
    /// Scratch memory of products and attention.
    pub work: Span,
    /// The residual stream before each layer, and behind the last.
    pub inputs: Vec<Span>,
    pub layers: Vec<Kept>,
    pub normed: Span,
    /// Queries and keys with QK-norm and rotated.
    pub qk: Span,
    pub act: Span,
    pub logits: Span,
    /// The gradient of the residual stream.
    pub grad: Span,
    /// What a norm adds to it.
    pub change: Span,
    /// Of a block's result, with dropout.
    pub attention_branch: Span,
    pub feed_forward_branch: Span,
    /// Scratch memory of Muon, and the change of a matrix whose weights are bf16.
    pub muon: Span,
    pub changes: Span,

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
        let products = match choice.weights == choice.compute {
            true => matrices,
            false => cursor.add(places.matrices * choice.compute.bytes()),
        };
        let gains = cursor.add(places.gains * 4);
        let table = choice.seq_len * shape.head_width / 2 * 4;
        let (cos, sin) = (cursor.add(table), cursor.add(table));
        let weights_end = cursor.at;

        let trained = |bytes: usize| if choice.training { bytes } else { 0 };
        let matrix_grads = cursor.add(trained(places.matrices * 4));
        let gain_grads = cursor.add(trained(places.gains * 4));
        let held_ids = cursor.add(trained(choice.held * 8));
        let held_rows = cursor.add(trained(choice.held * shape.width * choice.compute.bytes()));
        let gradients_end = cursor.at;

        let groups = if choice.training { groups(shape, places, choice, &mut cursor) } else { Vec::new() };
        let states_end = cursor.at;

        let activations = Activations::new(shape, choice, cursor);
        let (scratch, change) = update_scratch(shape, choice);
        let (muon, changes) = (cursor.add(trained(scratch)), cursor.add(trained(change)));
        let activations_end = activations.end.max(activations.logits_end);
        let end = cursor.at.max(activations_end);
        let parts = Parts {
            weights: weights_end,
            gradients: gradients_end - weights_end,
            optimizer: states_end - gradients_end + (end - activations_end),
            activations: activations.end - states_end,
            logits: activations_end - activations.end,
        };
        debug_assert_eq!(parts.total(), end);
        let Activations { positions, losses, work, inputs, layers, normed, qk, act, .. } = activations;
        let Activations { logits, grad, change, attention_branch, feed_forward_branch, .. } = activations;
        Layout {
            matrices,
            products,
            gains,
            cos,
            sin,
            matrix_grads,
            gain_grads,
            held_ids,
            held_rows,
            groups,
            positions,
            losses,
            work,
            inputs,
            layers,
            normed,
            qk,
            act,
            logits,
            grad,
            change,
            attention_branch,
            feed_forward_branch,
            muon,
            changes,
            parts,
        }
    }

    /// The weights by their names, or the gradients, which are fp32.
    pub fn tensors(&self, places: &Places, choice: &Choice, gradients: bool) -> Vec<Tensor> {
        let stored = if gradients { Precision::Fp32 } else { choice.weights };
        let one = |(name, flat, place): (String, Flat, Place)| {
            let (whole, precision) = match (flat, gradients) {
                (Flat::Matrices, false) => (self.matrices, stored),
                (Flat::Matrices, true) => (self.matrix_grads, stored),
                (Flat::Gains, false) => (self.gains, Precision::Fp32),
                (Flat::Gains, true) => (self.gain_grads, Precision::Fp32),
            };
            let shape = match flat {
                Flat::Matrices => vec![place.rows, place.columns],
                Flat::Gains => vec![place.columns],
            };
            let span = Span {
                start: whole.start + place.start * precision.bytes(),
                bytes: place.rows * place.columns * precision.bytes(),
            };
            Tensor { name, dtype: precision.dtype(), shape, span }
        };
        named(places).into_iter().map(one).collect()
    }
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

struct Activations {
    positions: Span,
    losses: Span,
    work: Span,
    inputs: Vec<Span>,
    layers: Vec<Kept>,
    normed: Span,
    qk: Span,
    act: Span,
    logits: Span,
    grad: Span,
    change: Span,
    attention_branch: Span,
    feed_forward_branch: Span,
    /// Of everything but the logits.
    end: usize,
    logits_end: usize,
}

impl Activations {
    fn new(shape: &Shape, choice: &Choice, mut cursor: Cursor) -> Activations {
        let tokens = choice.tokens();
        let rows = |columns: usize| tokens * columns * choice.compute.bytes();
        let stream = rows(shape.width);
        let (qkv, queries) = (rows(shape.qkv_width()), rows(shape.queries_width()));
        let (gate_up, act) = (rows(2 * shape.feed_forward), rows(shape.feed_forward));
        let stats = tokens * shape.heads * STATS * 4;
        let qk = if shape.qk_norm { rows(shape.queries_width() + shape.keys_width()) } else { 0 };
        let branch = if choice.training && choice.dropout > 0.0 { stream } else { 0 };

        let positions = cursor.add(tokens * 8);
        let losses = cursor.add(choice.chunk_tokens() * 4);
        let work = cursor.add(work_lines(shape, choice) * size_of::<Line>());
        let normed = cursor.add(stream);
        if !choice.training {
            return Activations::forward_only(shape, choice, cursor, (positions, losses, work, normed));
        }
        let inputs = (0..=shape.layers).map(|_| cursor.add(stream)).collect();
        let mut keep = || Kept {
            qkv: cursor.add(qkv),
            attended: cursor.add(queries),
            stats: cursor.add(stats),
            middle: cursor.add(stream),
            gate_up: cursor.add(gate_up),
            d_qkv: Span::default(),
            d_attended: Span::default(),
        };
        let mut layers: Vec<Kept> = match choice.recompute {
            true => vec![keep(); shape.layers],
            false => (0..shape.layers).map(|_| keep()).collect(),
        };

        let mut head = cursor;
        let logits = head.add(choice.chunk_tokens() * shape.padded_vocab() * choice.compute.bytes());
        let grad = cursor.add(stream);
        // All of these begin at the same place, for different moments.
        let mut feed_forward = cursor;
        let act = feed_forward.add(act);
        let feed_forward_branch = feed_forward.add(branch);
        let mut added = cursor;
        let change = added.add(stream);
        let mut attention = cursor;
        let attention_branch = Span { start: attention.at, bytes: branch };
        let qk = attention.add(qk.max(branch));
        for layer in &mut layers {
            let mut beyond = attention;
            let mut inside = Cursor { at: layer.gate_up.start };
            for (place, bytes) in [(&mut layer.d_qkv, qkv), (&mut layer.d_attended, queries)] {
                let fits = inside.at + bytes <= layer.gate_up.end();
                *place = if fits { inside.add(bytes) } else { beyond.add(bytes) };
            }
            cursor.extend(beyond);
        }
        cursor.extend(feed_forward);
        cursor.extend(added);
        let (end, logits_end) = (cursor.at, head.at);
        Activations {
            positions,
            losses,
            work,
            inputs,
            layers,
            normed,
            qk,
            act,
            logits,
            grad,
            change,
            attention_branch,
            feed_forward_branch,
            end,
            logits_end,
        }
    }

    /// Attention, the feed-forward block and the head share their memory too.
    fn forward_only(
        shape: &Shape,
        choice: &Choice,
        mut cursor: Cursor,
        (positions, losses, work, normed): (Span, Span, Span, Span),
    ) -> Activations {
        let tokens = choice.tokens();
        let rows = |columns: usize| tokens * columns * choice.compute.bytes();
        let (input, middle) = (cursor.add(rows(shape.width)), cursor.add(rows(shape.width)));
        let [mut attention, mut feed_forward, mut head] = [cursor; 3];
        let kept = Kept {
            qkv: attention.add(rows(shape.qkv_width())),
            attended: attention.add(rows(shape.queries_width())),
            stats: attention.add(tokens * shape.heads * STATS * 4),
            middle,
            gate_up: feed_forward.add(rows(2 * shape.feed_forward)),
            d_qkv: Span::default(),
            d_attended: Span::default(),
        };
        let qk_columns = if shape.qk_norm { shape.queries_width() + shape.keys_width() } else { 0 };
        let qk = attention.add(rows(qk_columns));
        let act = feed_forward.add(rows(shape.feed_forward));
        let logits = head.add(choice.chunk_tokens() * shape.padded_vocab() * choice.compute.bytes());
        attention.extend(feed_forward);
        let none = Span::default();
        Activations {
            positions,
            losses,
            work,
            inputs: vec![input; shape.layers + 1],
            layers: vec![kept; shape.layers],
            normed,
            qk,
            act,
            logits,
            grad: none,
            change: none,
            attention_branch: none,
            feed_forward_branch: none,
            end: attention.at,
            logits_end: head.at,
        }
    }
}

/// Of the largest call of a product or of attention.
fn work_lines(shape: &Shape, choice: &Choice) -> usize {
    let tokens = choice.tokens();
    let (width, queries, ff) = (shape.width, shape.queries_width(), shape.feed_forward);
    let products = [
        (tokens, width, shape.qkv_width()),
        (tokens, queries, width),
        (tokens, width, 2 * ff),
        (tokens, ff, width),
        (choice.chunk_tokens(), width, shape.padded_vocab()),
    ]
    .map(|(rows, inner, columns)| products::scratch(products::Size { rows, inner, columns }, choice.threads));
    let attention = attention::scratch(attention_sizes(shape, choice.seq_len), tokens, choice.threads);
    products.into_iter().fold(attention, usize::max)
}

pub fn attention_sizes(shape: &Shape, seq_len: usize) -> attention::Sizes {
    let Shape { heads, kv_heads, head_width: width, .. } = *shape;
    attention::Sizes { seq_len, heads, kv_heads, width }
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
        let mut always = vec![layout.matrices, layout.gains, layout.matrix_grads, layout.gain_grads];
        always.extend([layout.cos, layout.sin, layout.held_ids, layout.held_rows]);
        if layout.products != layout.matrices {
            always.push(layout.products);
        }
        always.extend(layout.groups.iter().flat_map(|group| group.tensors()).map(|tensor| tensor.span));
        disjoint(&[&always[..], &[layout.muon, layout.changes]].concat());
        always.extend([layout.positions, layout.losses, layout.work]);
        let with = |more: &[Span]| disjoint(&[&always[..], more].concat());
        let inputs = &layout.inputs;
        let kept = |layer: &Kept| [layer.qkv, layer.attended, layer.stats, layer.middle, layer.gate_up];
        for (number, layer) in layout.layers.iter().enumerate() {
            let Kept { qkv, attended, stats, middle, gate_up, d_qkv, d_attended } = *layer;
            let before = match (choice.training, choice.recompute) {
                (false, _) => vec![],
                (true, true) => inputs[..number].to_vec(),
                (true, false) => {
                    let kept = layout.layers[..number].iter().flat_map(kept);
                    inputs[..number].iter().copied().chain(kept).collect()
                }
            };
            let with = |more: &[Span]| with(&[&before[..], more].concat());
            with(&[inputs[number], layout.normed, qkv, layout.qk, attended, stats, middle]);
            with(&[middle, layout.normed, gate_up]);
            with(&[middle, gate_up, layout.act, inputs[number + 1]]);
            if !choice.training {
                with(&[inputs[number + 1], layout.normed, layout.logits]);
                continue;
            }
            let own = [inputs[number], qkv, attended, stats, layout.grad, layout.normed];
            let with = |more: &[Span]| with(&[&own[..], more].concat());
            with(&[middle, gate_up, layout.act, layout.feed_forward_branch]);
            with(&[middle, gate_up, layout.change]);
            with(&[layout.attention_branch, d_attended]);
            with(&[layout.qk, d_attended, d_qkv]);
            with(&[layout.change]);
        }
        if choice.training {
            let kept = layout.layers.iter().flat_map(kept);
            let all: Vec<Span> = match choice.recompute {
                true => inputs.clone(),
                false => inputs.iter().copied().chain(kept).collect(),
            };
            with(&[&all[..], &[layout.normed, layout.logits]].concat());
            with(&[&all[..], &[layout.normed, layout.grad]].concat());
        }
    }

    #[test]
    fn what_is_in_use_at_the_same_time_does_not_overlap() {
        let mut tried = 0;
        for (qk_norm, feed_forward, width) in
            [(true, 96, 48), (false, 96, 48), (true, 8, 48), (false, 300, 16)]
        {
            let shape = Shape { qk_norm, feed_forward, width, ..SHAPE };
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
        assert_eq!(tried, 216);
    }

    #[test]
    fn the_arena_ends_where_the_last_span_ends() {
        for optimizer in [Optimizer::AdamW, Optimizer::Muon] {
            for chunk in [1, 60] {
                let choice = Choice { optimizer, chunk, micro_batch: 1, ..CHOICE };
                let layout = Layout::new(&SHAPE, &Places::new(&SHAPE), &choice);
                let last =
                    [layout.muon, layout.changes, layout.logits, layout.change, layout.feed_forward_branch];
                let last = last.into_iter().chain([layout.act, layout.qk]).map(|span| span.end()).max();
                let end = last.unwrap().next_multiple_of(LINE);
                assert!(layout.parts.total() >= end && layout.parts.total() <= end + LINE * 64, "{layout:?}");
            }
        }
    }
}
